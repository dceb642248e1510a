"""Which implementation a call gets: an explicit one or an error of one line, "auto" what the device has."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import infsa
from infsa.ops import dispatch, explain_dispatch

from ..helpers import tokens

X = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
WIDE = torch.zeros(1, 1, 2, 129)
LIMITS = {
    "mask": ({"attn_mask": torch.ones(4, 4, dtype=torch.bool)}, "attn_mask"),
    "dropout": ({"dropout_p": 0.1}, "dropout_p=0.1"),
    "hops": ({"hops": math.inf}, "hops=inf"),
}


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels are allowed on the CPU, as in Triton's interpreter; nothing here runs one."""
    monkeypatch.setattr(dispatch, "INTERPRETED", True)


@pytest.mark.parametrize("case", LIMITS)
def test_limits_name_the_value(case, interpreted):
    options, says = LIMITS[case]
    why = explain_dispatch(infsa.pure_attention, X, X, X, **options).rejected["triton"]
    assert says in why
    assert "\n" not in why


@pytest.mark.parametrize(
    ("inputs", "says"),
    [((X.double(),) * 3, "float64"), ((WIDE,) * 3, "129"), ((WIDE[..., :8], WIDE[..., :8], WIDE), "129")],
)
def test_limits_of_the_tensors(inputs, says, interpreted):
    assert says in explain_dispatch(infsa.pure_attention, *inputs).rejected["triton"]
    assert explain_dispatch(infsa.pure_attention, X, X, X, impl="triton").impl == "triton"


def layer(**options):
    torch.manual_seed(0)
    return infsa.nn.LinearInfSA(32, 4, **options)


FUSED_LIMITS = {
    "iterations": (layer(iterations=2), torch.zeros(1, 20, 32), "iterations=1, got 2"),
    "queries": (layer(queries=3), torch.zeros(1, 20, 32), "queries=1, got 3"),
    "float64": (layer().double(), torch.zeros(1, 20, 32, dtype=torch.float64), "float64"),
    "dtypes": (layer(), torch.zeros(1, 20, 32, dtype=torch.float16), "float16 and torch.float32"),
    "nobody": (layer(), torch.zeros(0, 20, 32), "at least one image"),
    "width": (infsa.nn.LinearInfSA(260, 2), torch.zeros(1, 20, 260), "up to 128, got 130"),
}


@pytest.mark.parametrize("case", FUSED_LIMITS)
def test_what_fused_does_not_do_is_left_to_others_or_refused(case, interpreted):
    module, x, says = FUSED_LIMITS[case]
    found = explain_dispatch(module, x)
    assert found.impl == "chunked"
    assert says in found.rejected["fused"]
    with pytest.raises(ValueError, match=r"^impl='fused' takes [^\n]+$") as caught:
        explain_dispatch(module, x, impl="fused")
    assert says in str(caught.value)
    assert explain_dispatch(layer(), torch.zeros(1, 20, 32), impl="fused").impl == "fused"


def test_a_causal_layer_and_projected_tokens_are_not_fused(interpreted):
    found = explain_dispatch(layer(chunk_size=4), torch.zeros(1, 20, 32), is_causal=True)
    assert "causal=None, got 'chunk'" in found.rejected["fused"]
    with pytest.raises(ValueError, match=r"use infsa\.ops\.projected_values$"):
        infsa.linear_attention(X, X, X, impl="fused")


def test_a_projection_that_is_no_plain_layer_is_called(interpreted):
    """A hook hears the projection, so its weights alone do not say what it does."""
    module, x, heard = layer(), torch.randn(1, 20, 32), []
    module.q.register_forward_hook(lambda *_: heard.append(1))
    assert "before their projection" in explain_dispatch(module, x).rejected["fused"]
    module(x)
    assert heard


def test_one_choice_says_which_and_why():
    found = explain_dispatch(infsa.linear_attention, X, X, X)
    assert (found.operator, found.impl) == ("linear", "chunked")
    assert set(found.rejected) == {"fused", "reference"}
    assert str(found).count("\n") == 2
    assert explain_dispatch(infsa.linear_attention, X, X, X, impl="reference").reason == "requested"
    assert explain_dispatch(infsa.pure_attention, X, X, X, hops=math.inf).impl == "reference"  # 4 tokens
    with pytest.raises(ValueError, match=r"^impl must be one of \['auto', 'fused', 'chunked', 'reference'\]"):
        explain_dispatch(infsa.linear_attention, X, X, X, impl="triton")
    with pytest.raises(ValueError, match="for pure InfSA, got 'fused'"):
        infsa.nn.PureInfSA(32, 4, impl="fused")


def test_explaining_runs_nothing_and_changes_nothing():
    module = layer()
    for part in (module, module.proj):
        part.register_forward_hook(lambda *_: pytest.fail("it ran"))
    explain_dispatch(module, torch.zeros(1, 20, 32), impl="reference")
    assert module.impl == "auto"
    assert explain_dispatch(infsa.nn.PureInfSA(32, 4), torch.zeros(1, 20, 32)).operator == "pure"
    with pytest.raises(TypeError, match=r"^explain_dispatch takes a function or a layer with an impl, got Linear$"):
        explain_dispatch(module.proj, torch.zeros(1, 32))
    with pytest.raises(ValueError, match=r"^x must have shape \(B, N, 32\), got \(3, 32\)$"):
        explain_dispatch(module, torch.zeros(3, 32))


def linear_layer(q, k, v, impl):
    return layer(impl=impl)(q.flatten(1, 2))


@pytest.mark.parametrize(("call", "name"), [(infsa.pure_attention, "triton"), (linear_layer, "fused")])
def test_a_cpu_tensor_is_refused_outside_the_interpreter(call, name, monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", False)
    x = torch.zeros(1, 2, 4, 32)
    with pytest.raises(ValueError, match=rf"^impl='{name}' needs tensors on a CUDA device, got cpu$"):
        call(x, x, x, impl=name)


@pytest.mark.parametrize(("call", "name"), [(infsa.pure_attention, "triton"), (infsa.linear_attention, "fused")])
def test_without_triton_it_is_not_available(call, name, monkeypatch):
    monkeypatch.setattr(dispatch, "AVAILABLE", ("reference", "chunked"))
    with pytest.raises(ValueError, match=f"impl='{name}' is not available here"):
        call(X, X, X, impl=name)


@pytest.mark.parametrize("case", LIMITS)
def test_an_explicit_choice_never_falls_back(case, interpreted):
    options, says = LIMITS[case]
    with pytest.raises(ValueError, match=r"^impl='triton' takes ") as caught:
        infsa.pure_attention(X, X, X, impl="triton", **options)
    assert says in str(caught.value)


def test_auto_on_the_cpu_is_the_chunked_path():
    q, k, v = tokens(0, 9, dtype=torch.float32)
    assert torch.equal(infsa.pure_attention(q, k, v), infsa.pure_attention(q, k, v, impl="chunked"))


@pytest.mark.parametrize(
    ("device", "capability", "chosen"),
    [("cuda", 9, "triton"), ("cuda", 8, "triton"), ("cuda", 7, "chunked"), ("cpu", 9, "chunked")],
)
def test_auto_asks_the_device(device, capability, chosen, monkeypatch):
    """Tensors without memory stand for those of a GPU."""
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    properties = type("Properties", (), {"major": capability})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties, raising=True)
    monkeypatch.setattr(dispatch, "_new_enough", dispatch._new_enough.__wrapped__)  # nothing remembered
    with FakeTensorMode():
        q = torch.empty(1, 2, 8, 16, device=device)
        assert explain_dispatch(infsa.pure_attention, q, q, q).impl == chosen
        mask = torch.ones(8, 8, dtype=torch.bool, device=device)
        assert explain_dispatch(infsa.pure_attention, q, q, q, attn_mask=mask).impl == "chunked"


@pytest.mark.parametrize("who", ["nobody", "counts", "fakes", "maps", "adapts"])
def test_whoever_needs_plain_operations_gets_them(who, monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    monkeypatch.setattr(dispatch, "kernels_run_on", lambda kind, index: True)
    x, weight, found = torch.zeros(1, 20, 32), torch.zeros(32, 32), []

    def ask(x, weight=weight):
        found.append(explain_dispatch(infsa.ops.projected_values, x, 4, (weight, None), None, (weight, None)).impl)
        return x

    if who == "counts":
        with FlopCounterMode(display=False):
            ask(x)
    elif who == "fakes":
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            ask(mode.from_tensor(x))
    elif who == "maps":
        torch.func.vmap(ask)(x.unsqueeze(0))
    else:
        ask(x, weight.as_subclass(type("Adapted", (torch.Tensor,), {})) if who == "adapts" else weight)
    assert found == [{"nobody": "fused", "maps": "reference"}.get(who, "chunked")]


def test_compiled_code_gets_what_other_code_gets():
    """Not the reference: asked in compiled code, torch says that it is exporting."""
    seen = []

    def remember(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    q, k, v = tokens(0, 9, dtype=torch.float32)
    for kind in ("pure_attention", "linear_attention"):
        seen.clear()
        torch._dynamo.reset()
        torch.compile(getattr(infsa, kind), backend=remember, fullgraph=True)(q, k, v)
        assert any(name.startswith("infsa.") for name in seen), seen
    torch._dynamo.reset()


def test_compiled_code_asks_the_device(monkeypatch):
    monkeypatch.setattr(dispatch, "kernels_run_on", lambda kind, index: True)
    monkeypatch.setattr(dispatch, "INTERPRETED", True)

    def chosen(x):
        return x.sum() + ("reference", "chunked", "triton").index(dispatch.choose_pure("auto", x, x, None, 1, 0.0))

    torch._dynamo.reset()
    assert torch.compile(chosen, fullgraph=True, backend="eager")(torch.zeros(1, 1, 1, 1)).item() == 2
    torch._dynamo.reset()


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_compiled_transforms_take_plain_operations(transform):
    """Where torch.func is at work inside compiled code, only the reference has the derivatives."""
    x = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0))

    def attend(x):
        return infsa.pure_attention(x, x, x)

    transformed = {
        "grad": lambda x: torch.func.grad(lambda y: attend(y).square().sum())(x[0]),
        "vmap": lambda x: torch.func.vmap(attend)(x),
        "jvp": lambda x: torch.func.jvp(attend, (x[0],), (x[1],))[1],
    }[transform]
    torch._dynamo.reset()
    backend = "eager" if transform == "jvp" else "aot_eager"  # torch 2.15 cannot lower forward-mode views
    torch.testing.assert_close(torch.compile(transformed, backend=backend)(x), transformed(x))
    torch._dynamo.reset()


def test_compiled_code_notices_forward_derivatives():
    compiled = torch.compile(lambda x: infsa.pure_attention(x, x, x), backend="eager")
    torch._dynamo.reset()
    expected = compiled(X)
    with torch.autograd.forward_ad.dual_level():
        value, tangent = torch.autograd.forward_ad.unpack_dual(compiled(torch.autograd.forward_ad.make_dual(X, X)))
    torch.testing.assert_close(value, expected)
    assert tangent is not None
    torch._dynamo.reset()
