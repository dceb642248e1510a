"""Which implementation a call gets: an explicit one or an error of one line, "auto" what the device has."""

import math
import weakref

import pytest
import torch

import infsa
from infsa.ops import checks
from infsa.ops.triton import layout
from infsa.ops.triton.support import pure_limit

from ..helpers import tokens

X = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
WIDE = torch.zeros(1, 1, 2, 129)
LIMITS = {
    "mask": ({"attn_mask": torch.ones(4, 4, dtype=torch.bool)}, "attn_mask"),
    "dropout": ({"dropout_p": 0.1}, "dropout_p=0.1"),
    "hops": ({"hops": math.inf}, "hops=inf"),
}


def limit(q=X, v=X, attn_mask=None, hops=1, dropout_p=0.0):
    return pure_limit(q, v, attn_mask, hops, dropout_p)


@pytest.mark.parametrize("case", LIMITS)
def test_limits_name_the_value(case):
    options, says = LIMITS[case]
    assert says in limit(**options)
    assert "\n" not in limit(**options)


def test_limits_of_the_tensors():
    assert limit() is None
    assert "float64" in limit(X.double(), X.double())
    assert "129" in limit(WIDE, WIDE)
    assert "129" in limit(v=WIDE)


@pytest.mark.parametrize("kind", ["pure_attention", "linear_attention"])
def test_a_cpu_tensor_is_refused_outside_the_interpreter(kind, monkeypatch):
    monkeypatch.setattr(checks, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"^impl='triton' needs tensors on a CUDA device, got cpu$"):
        getattr(infsa, kind)(X, X, X, impl="triton")


def test_without_triton_it_is_not_available(monkeypatch):
    monkeypatch.setattr(checks, "AVAILABLE", ("reference", "chunked"))
    with pytest.raises(ValueError, match="impl='triton' is not available here"):
        infsa.pure_attention(X, X, X, impl="triton")


@pytest.mark.parametrize("case", LIMITS)
def test_an_explicit_choice_never_falls_back(case, monkeypatch):
    monkeypatch.setattr(checks, "INTERPRETED", True)
    options, says = LIMITS[case]
    with pytest.raises(ValueError, match=r"^impl='triton' takes ") as caught:
        infsa.pure_attention(X, X, X, impl="triton", **options)
    assert says in str(caught.value)


def test_auto_on_the_cpu_is_the_chunked_path():
    q, k, v = tokens(0, 9, dtype=torch.float32)
    assert torch.equal(infsa.pure_attention(q, k, v), infsa.pure_attention(q, k, v, impl="chunked"))


@pytest.mark.parametrize(
    ("device", "limited", "capability", "chosen"),
    [
        ("cuda", None, 9, "triton"),
        ("cuda", None, 8, "triton"),
        ("cuda", None, 7, "chunked"),
        ("cuda", "takes no attn_mask", 9, "chunked"),
        ("cpu", None, 9, "chunked"),
    ],
)
def test_auto_asks_the_device(device, limited, capability, chosen, monkeypatch):
    monkeypatch.setattr(checks, "HAS_TRITON", True)
    monkeypatch.setattr(checks, "KERNELS_BY_DEFAULT", True)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("Properties", (), {"major": capability}), raising=True
    )
    like = type("Like", (), {"device": torch.device(device)})
    assert checks.choose_implementation("auto", like, limited) == chosen


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
    monkeypatch.setattr(checks, "_kernels_run_on", lambda kind, index: True)

    def chosen(x):
        return x + ("reference", "chunked", "triton").index(checks.choose_implementation("auto", x, None))

    torch._dynamo.reset()
    assert torch.compile(chosen, fullgraph=True, backend="eager")(torch.zeros(1)).item() == 2
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


def test_memory_for_descriptors_keeps_no_tensor():
    x = torch.zeros(3)
    kept = weakref.ref(x)
    layout.allow_descriptors(x)
    del x
    assert kept() is None


def test_compiled_code_notices_forward_derivatives():
    compiled = torch.compile(lambda x: infsa.pure_attention(x, x, x), backend="eager")
    torch._dynamo.reset()
    expected = compiled(X)
    with torch.autograd.forward_ad.dual_level():
        value, tangent = torch.autograd.forward_ad.unpack_dual(compiled(torch.autograd.forward_ad.make_dual(X, X)))
    torch.testing.assert_close(value, expected)
    assert tangent is not None
    torch._dynamo.reset()
