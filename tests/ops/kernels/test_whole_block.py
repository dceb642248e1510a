"""A block of Linear-InfSA as one function: as accurate as its modules, and only where it may stand for them."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from infsa.models.blocks import Block
from infsa.nn.peers import create_attention

from ..helpers import generator
from .helpers import DEVICE, DTYPES, rms

GRID, DIM, HEADS = (4, 5), 32, 2


def made(dtype=torch.float32, *, impl="fused", mlp_chunk=None, **options):
    """A block, and tokens for it."""
    torch.manual_seed(0)
    given = {"tied": True, "bias": True, "learn_gamma": False, "activation": "relu"} | options
    attention = create_attention("infsa_linear", DIM, HEADS, grid=GRID, num_prefix=1, impl=impl, **given)
    block = Block(DIM, attention, hidden=3 * DIM, mlp_chunk=mlp_chunk)
    for parameter in block.parameters():  # numbers that every type holds; no gain is 1, no bias 0
        spread = 0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
        drawn = parameter.detach() * (parameter.dim() == 1) + spread * torch.randn(parameter.shape)
        parameter.data = drawn.bfloat16().float()
    x = torch.randn(2, 21, DIM, generator=generator(1)) + 0.5 * torch.randn(DIM, generator=generator(2))
    return block.to(DEVICE, dtype), x.bfloat16().to(DEVICE, dtype).requires_grad_()


def by_modules(block):
    """The same block with a hook, before which its modules are called one by one."""
    other = copy.deepcopy(block)
    other.norm1.register_forward_hook(lambda *_: None)
    return other


def results(block, x, *frozen):
    """The tokens after a block, and the gradients of ⟨w, tokens⟩ by name for a fixed w."""
    x = x.detach().requires_grad_("x" not in frozen)
    for name, parameter in block.named_parameters():
        parameter.requires_grad_(not any(name.startswith(part) for part in frozen))
    found = block(x, GRID)
    named = {"x": x, **dict(block.named_parameters())}
    asked = {name: y for name, y in named.items() if y.requires_grad}
    weights = torch.randn(found.shape, generator=generator(3)).bfloat16().to(found)
    return {"tokens": found.detach()} | dict(
        zip(asked, torch.autograd.grad(found, asked.values(), weights), strict=True)
    )


def is_whole(found):
    return type(found.grad_fn).__name__ == "_WholeBackward"


@pytest.mark.parametrize(
    "options",
    [{}, {"tied": False, "learn_gamma": True}, {"bias": False}, {"activation": "gelu"}],
    ids=["tied", "untied", "no_bias", "gelu"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients(dtype, options):
    """No further from float64 than twice what the modules are."""
    block, x = made(dtype, **options)
    assert is_whole(block(x, GRID))
    assert not is_whole(by_modules(block)(x, GRID))
    exact, _ = made(impl="reference", **options)
    exact.load_state_dict({name: y.float() for name, y in block.state_dict().items()})
    expected = results(exact.double(), x.double())
    found, beside = results(block, x), results(by_modules(block), x)
    assert found.keys() == expected.keys()
    for name, y in found.items():
        assert y.dtype == x.dtype
        allowed = 2 * rms(beside[name].double() - expected[name]) + 4 * torch.finfo(dtype).eps * rms(expected[name])
        assert rms(y.double() - expected[name]) <= allowed, name


@pytest.mark.parametrize(
    "frozen",
    [
        ("x",), ("x", "norm", "attn"), ("attn",), ("norm1", "attn.q", "mlp.fc1"), ("mlp", "norm2", "attn.proj"),
        ("attn.v", "x"),
    ],
    ids="+".join,
)  # fmt: skip
def test_only_what_is_asked(frozen):
    block, x = made()
    everything, found = results(copy.deepcopy(block), x), results(block, x, *frozen)
    assert found.keys() == {name for name in everything if not any(name.startswith(part) for part in frozen)}
    for name, y in found.items():
        if name in ("mlp.fc1.bias", "mlp.fc2.bias"):  # where no LayerNorm is asked for, others add them up
            largest = everything[name].abs().max().item()
            tokens = x.shape[0] * x.shape[1]
            torch.testing.assert_close(y, everything[name], rtol=0, atol=tokens * torch.finfo(y.dtype).eps * largest)
        else:
            assert torch.equal(y, everything[name])


def test_two_runs_are_equal():
    block, x = made()
    first, second = results(block, x), results(block, x)
    assert all(torch.equal(y, second[name]) for name, y in first.items())


def test_without_gradients():
    block, x = made()
    expected = block(x, GRID)
    with torch.no_grad():
        assert torch.equal(block(x, GRID), expected)


def test_checkpointed():
    block, x = made()
    again = checkpoint(block, x, GRID, use_reentrant=False)
    (found,), (expected,) = (torch.autograd.grad(y.sum(), x) for y in (again, block(x, GRID)))
    assert torch.equal(found, expected)


def test_second_derivatives():
    block, x = made(learn_gamma=True)
    found = []
    for own in (block, by_modules(block)):
        (pulled,) = torch.autograd.grad(own(x, GRID).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(pulled.square().sum(), [x, *own.parameters()]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * other.abs().max().item())


def test_batched_gradients():
    block, x = made()
    pulls = torch.randn(3, *x.shape, generator=generator(4)).to(DEVICE)
    (found,) = torch.autograd.grad(block(x, GRID), x, pulls, is_grads_batched=True)
    for pull, y in zip(pulls, found, strict=True):
        (expected,) = torch.autograd.grad(block(x, GRID), x, pull)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


def test_second_derivatives_ignore_autocast():
    block, x = made()
    found = block(x, GRID).square().sum()
    (expected,) = torch.autograd.grad(found, x, create_graph=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        (pulled,) = torch.autograd.grad(found, x, create_graph=True)
    assert torch.equal(pulled, expected)


def test_the_result_may_be_changed_in_place():
    block, x = made()
    (expected,) = torch.autograd.grad(block(x, GRID).mul(2).sum(), x)
    (found,) = torch.autograd.grad(block(x, GRID).mul_(2).sum(), x)
    assert torch.equal(found, expected)


def dropping(block):
    block.drop.p = 0.1


def dropping_paths(block):
    block.drop_path2.drop_prob = 0.1


def hooked(block):
    block.mlp.fc2.register_forward_hook(lambda *_: None)


def replaced(block):
    block.mlp.act = nn.ReLU()


def wrapped(block):
    block.mlp = nn.Sequential(block.mlp)


def adapted(block):
    block.attn.impl, block.attn.v = "auto", nn.Sequential(block.attn.v)


def chunked(block):
    block.mlp_chunk = 8


def chosen(block):
    block.attn.impl = "chunked"


def patched(block):
    block.attn.proj.forward = block.attn.proj.forward


def transposed(block):
    weight = block.attn.v.weight
    weight.data = weight.data.t().contiguous().t()


def of_plain_tensors(block):
    """As the replicas of DataParallel are."""
    weight = block.mlp.fc1.weight
    del block.mlp.fc1.weight
    block.mlp.fc1.weight = weight * 1


def without_shift(block):
    block.norm2.bias = None


CHANGES = [
    dropping, dropping_paths, hooked, replaced, wrapped, adapted, chunked, chosen, patched, transposed, without_shift,
    of_plain_tensors,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_other_blocks_run_by_their_modules(change):
    """A change is noticed after a call too."""
    block, x = made()
    assert is_whole(block(x, GRID))
    change(block)
    assert not is_whole(block(x, GRID))


def test_new_parameters_are_read():
    block, x = made()
    block(x, GRID)
    other = copy.deepcopy(block)
    other.attn.v.weight = nn.Parameter(-block.attn.v.weight.detach())
    other.mlp.fc2.bias = None
    found, expected = results(other, x), results(by_modules(other), x)
    assert is_whole(other(x, GRID))
    for name, y in found.items():
        torch.testing.assert_close(y, expected[name], rtol=1e-4, atol=1e-4)
    half = other.to(torch.bfloat16)
    assert half(x.bfloat16(), GRID).dtype == torch.bfloat16


def test_a_dropout_that_sleeps_changes_nothing():
    block, x = made()
    dropping(block)
    assert is_whole(block.eval()(x, GRID))


def test_masks_fewer_tokens_and_counted_operations_run_by_the_modules():
    block, x = made()
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=DEVICE)
    assert not is_whole(block(x, GRID, 1, mask))
    assert block(x, GRID, 1, None, 1).shape == (2, 1, DIM)
    block.attn.impl = "auto"
    with FlopCounterMode(display=False) as counted:
        assert not is_whole(block(x, GRID))
    assert counted.get_total_flops() > 0


def test_under_autocast_the_modules_run():
    block, x = made()
    with torch.autocast(DEVICE, torch.bfloat16):
        assert not is_whole(block(x, GRID))


def test_wrong_grids_are_refused_as_before():
    block, x = made()
    with pytest.raises(ValueError, match="x must have num_prefix"):
        block(x, (3, 5))
    for grid, num_prefix, wrong in (((-4, -5), 1, "h of grid"), ((2, 11), -1, "num_prefix"), ((20, 1, 1), 1, "grid")):
        with pytest.raises(ValueError, match=wrong):
            block(x, grid, num_prefix)
    with pytest.raises(ValueError, match="h of grid"):
        block(x[:, :0], (0, 0), 0)


def test_copies_of_tokens_that_are_no_plain_memory():
    block, x = made()
    wide = torch.cat([x, x], 2)[..., :DIM]
    assert not wide.is_contiguous()
    assert torch.equal(block(wide, GRID), block(x, GRID))
