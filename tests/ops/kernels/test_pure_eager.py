"""Pure InfSA in eager mode: what a repeated call does besides its launches, and when it is no repeated call."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import infsa
from infsa.ops.pure import packed_attention
from infsa.ops.pure import triton_forward as plans
from infsa.ops.triton.launch import Launch

from ..helpers import generator
from .helpers import DEVICE, attend, exact, problem, pull, value_and_gradients


@pytest.fixture
def launches(monkeypatch):
    """The names of kernels that would have run; none does."""
    found = []
    monkeypatch.setattr(Launch, "__call__", lambda self, *_, **__: found.append(name_of(self)))
    return found


def name_of(launch):
    name = launch.kernel.fn.__name__
    return name + {True: " keys", False: " queries"}.get(launch.constants.get("KEYS"), "")


def operators(call):
    call()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    return [event.name for event in found.events() if event.name.startswith("aten::")]


def run(*qkv, **options):
    return infsa.pure_attention(*qkv, impl="triton", **options)


def test_a_repeated_forward_is_two_launches_and_three_allocations(launches):
    q, k, v, _ = problem(0, 40, dtype=torch.bfloat16)
    assert operators(lambda: run(q, k, v)) == ["aten::empty_strided", "aten::empty", "aten::empty"]
    assert launches == 2 * ["pure_rows", "pure_scale"]


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_the_way_back_copies_nothing(launches, is_causal):
    q, k, v, _ = (x.requires_grad_() for x in problem(0, 40, dtype=torch.bfloat16))
    out = run(q, k, v, is_causal=is_causal)
    w = torch.ones_like(out)
    launches.clear()
    found = operators(lambda: torch.autograd.grad(out, (q, k, v), w, retain_graph=True))
    assert {name.removeprefix("aten::") for name in found} <= {"empty", "empty_like", "empty_strided", "detach"}
    later = ["pure_later_rows"] if is_causal else []
    assert launches == 2 * ["pure_row_dots", *later, "pure_gather keys", "pure_gather queries"]


@pytest.mark.parametrize(
    ("asked", "passes"), [("q", ["queries"]), ("k", ["keys"]), ("v", ["keys"]), ("qv", ["keys", "queries"])]
)
def test_only_the_gradients_that_are_asked_for(launches, asked, passes):
    inputs = dict(zip("qkv", problem(0, 40), strict=False))
    for name in asked:
        inputs[name].requires_grad_()
    out = run(*inputs.values())
    launches.clear()
    found = torch.autograd.grad(out, [inputs[name] for name in asked], torch.ones_like(out))
    assert launches == ["pure_row_dots", *(f"pure_gather {name}" for name in passes)]
    assert [x.shape for x in found] == [inputs[name].shape for name in asked]


def test_gradients_lie_in_memory_as_their_inputs_do(launches):
    """Otherwise autograd would copy them."""
    packed = torch.randn(1, 40, 3, 2, 16, generator=generator(1)).to(DEVICE)
    for q in (problem(0, 40)[0], problem(0, 40)[0].transpose(1, 2).contiguous().transpose(1, 2)):
        q.requires_grad_()
        assert torch.autograd.grad(run(q, *packed.permute(2, 0, 3, 1, 4)[1:]).sum(), q)[0].stride() == q.stride()


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"norm": "row"}], ids=str)
def test_the_gradient_of_one_projection_is_one_tensor(options):
    """The same bits as by views, and no copy on the way."""
    packed = torch.randn(2, 37, 3, 2, 16, generator=generator(2)).to(torch.bfloat16).to(DEVICE)
    gamma = torch.tensor([0.4, 0.8], device=DEVICE)
    by_views = value_and_gradients(
        lambda x, g: run(*x.permute(2, 0, 3, 1, 4).unbind(), gamma=g, **options), (packed, gamma)
    )
    found = value_and_gradients(lambda x, g: packed_attention(x, gamma=g, impl="triton", **options), (packed, gamma))
    for x, y in zip(found, by_views, strict=True):
        assert torch.equal(x, y)
    assert found[1].is_contiguous()


def test_a_layer_concatenates_no_gradients(launches):
    layer = infsa.nn.PureInfSA(32, 2, impl="triton", device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(1, 40, 32, generator=generator(3)).to(torch.bfloat16).to(DEVICE)
    found = operators(lambda: layer(x).sum().backward())
    assert not {"aten::cat", "aten::stack", "aten::select_backward", "aten::slice_backward"} & set(found)


@pytest.mark.parametrize(
    "options",
    [{}, {"key_mask": torch.arange(40)[None] < 30}, {"attn_mask": torch.ones(40, 40).bool()}],
    ids=["plain", "padded", "masked"],
)
def test_a_packed_call_takes_every_option(options):
    packed = torch.randn(1, 40, 3, 2, 16, generator=generator(4)).to(DEVICE)
    options = {name: mask.to(DEVICE) for name, mask in options.items()}
    views = packed.permute(2, 0, 3, 1, 4).unbind()
    assert torch.equal(packed_attention(packed, **options), infsa.pure_attention(*views, **options))


def test_a_new_kind_of_call_is_a_new_plan():
    q, k, v, gamma = problem(5, 40, batch=2)

    def plan(q=q, k=k, v=v, gamma=0.7, seen=None, options=("relu", False, 1e-6)):
        return plans.plan_for(q, k, v, gamma, seen, *options)

    apart = torch.empty(q.numel() + 1, device=DEVICE)[1:].view(q.shape)
    changed = [
        plan(q[:1], k[:1], v[:1]),
        plan(q[:, :, :39]),
        plan(q.bfloat16(), k.bfloat16(), v.bfloat16()),
        plan(q=q.transpose(1, 2).contiguous().transpose(1, 2)),
        plan(q=apart),
        plan(gamma=gamma),
        plan(gamma=gamma[:1]),
        plan(seen=torch.ones(1, 1, dtype=torch.float64, device=DEVICE)),
        plan(options=("gelu", False, 1e-6)),
        plan(options=("relu", True, 1e-6)),
        plan(options=("relu", False, 1e-5)),
    ]
    assert plan() is plan(q.clone(), gamma=0.5), "another γ or another address is the same kind of call"
    assert len({id(x) for x in (plan(), *changed)}) == len(changed) + 1
    assert plans.forward_plan.cache_info().maxsize == plans.PLANS


@pytest.mark.parametrize(
    "wrong",
    [
        {"hops": True},
        {"hops": 1.0},
        {"is_causal": 0},
        {"eps": False},
        {"dropout_p": False},
        {"activation": ["relu"]},
        {"gamma": True},
    ],
    ids=str,
)
def test_what_is_refused_stays_refused_after_a_call_that_is_equal_to_it(wrong):
    """True == 1 == 1.0, also as keys of a table."""
    q, k, v, _ = problem(6, 20)
    run(q, k, v, hops=1, is_causal=False, eps=0.0, dropout_p=0.0)
    with pytest.raises((TypeError, ValueError), match="|".join(wrong) + "|unhashable"):
        run(q, k, v, **wrong)


def test_an_expanded_decay():
    """One number that stands for every head, without memory of its own for each."""
    q, k, v, _ = problem(7, 40)
    gamma = torch.tensor([0.6], device=DEVICE)
    found, expected = (value_and_gradients(attend(), (q, k, v, g)) for g in (gamma.expand(2), gamma))
    for x, y in zip(found[:4], expected[:4], strict=True):
        assert torch.equal(x, y)


def test_autocast_is_followed():
    q, k, v, _ = problem(8, 40)
    with torch.autocast(DEVICE, torch.bfloat16):
        found = run(q, k, v)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, run(q.bfloat16(), k.bfloat16(), v.bfloat16()))


@pytest.mark.parametrize("packed", [False, True], ids=["apart", "packed"])
def test_a_second_derivative_is_refused_in_one_line(packed):
    x = torch.randn(1, 20, 3, 2, 16, generator=generator(9)).to(DEVICE).requires_grad_()
    out = packed_attention(x, impl="triton") if packed else run(*x.permute(2, 0, 3, 1, 4).unbind())
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^this implementation has no second derivatives; [^\n]+$"):
        first.sum().backward()


def test_a_gradient_with_a_graph_is_the_same_gradient():
    packed = torch.randn(1, 20, 3, 2, 16, generator=generator(10)).to(DEVICE).requires_grad_()
    out = packed_attention(packed, impl="triton")
    plain, again = (torch.autograd.grad(out.sum(), packed, create_graph=c, retain_graph=True)[0] for c in (False, True))
    assert torch.equal(plain, again)


def test_a_gradient_that_is_asked_for_alone_is_right():
    q, k, v, gamma = problem(11, 40)
    expected = exact((q, k, v, gamma))
    k.requires_grad_()
    out = run(q, k, v, gamma=gamma)
    (found,) = torch.autograd.grad(out, k, pull(out))
    torch.testing.assert_close(found.double().cpu(), expected[2], rtol=1e-4, atol=1e-5)
