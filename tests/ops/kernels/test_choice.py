"""Which implementation a call gets: an explicit one or an error of one line, "auto" what the device has."""

import math

import pytest
import torch

import infsa
from infsa.ops import validate
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
    monkeypatch.setattr(validate, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"^impl='triton' needs tensors on a CUDA device, got cpu$"):
        getattr(infsa, kind)(X, X, X, impl="triton")


def test_without_triton_it_is_not_available(monkeypatch):
    monkeypatch.setattr(validate, "AVAILABLE", ("reference", "chunked"))
    with pytest.raises(ValueError, match="impl='triton' is not available here"):
        infsa.pure_attention(X, X, X, impl="triton")


@pytest.mark.parametrize("case", LIMITS)
def test_an_explicit_choice_never_falls_back(case, monkeypatch):
    monkeypatch.setattr(validate, "INTERPRETED", True)
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
    monkeypatch.setattr(validate, "HAS_TRITON", True)
    monkeypatch.setattr(validate, "KERNELS_BY_DEFAULT", True)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("Properties", (), {"major": capability}), raising=True
    )
    like = type("Like", (), {"device": torch.device(device)})
    assert validate.choose_implementation("auto", like, limited) == chosen
