"""Half precision: finite for every input that fits the type, and right where sums run over many tokens."""

import pytest
import torch

from .helpers import BLOCK, NAMES, build, tokens

HALVES = (torch.float16, torch.bfloat16)
QUADRATIC = ("softmax", "infsa_pure")
halves = pytest.mark.parametrize("dtype", HALVES, ids=str)
everything = pytest.mark.parametrize("name", [*NAMES, BLOCK])


def check_finite(module, x, grid, upstream):
    """Values, and the gradients of the mean times ``upstream``, are finite."""
    x = x.clone().requires_grad_()
    out = module(x, grid)
    assert out.dtype == x.dtype
    assert out.isfinite().all()
    (out.double().mean() * upstream).backward()
    assert x.grad.isfinite().all()
    for name, parameter in module.named_parameters():
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("dead", ["some", "all"])
@halves
@everything
def test_dead_tokens(name, dtype, dead):
    x = tokens((9, 8), dtype=dtype)
    x[:, ::3] = 0
    module = build(name, dtype=dtype, noise=0.0, grid=(7, 7))
    check_finite(module, torch.zeros_like(x) if dead == "all" else x, (9, 8), upstream=1.0)


@halves
@everything
def test_dead_tokens_without_biases(name, dtype):
    """All queries, keys and values are exactly zero."""
    module = build(name, dtype=dtype, noise=0.0, grid=(7, 7), bias=False)
    check_finite(module, torch.zeros(2, 73, 16, dtype=dtype), (9, 8), upstream=1.0)


@pytest.mark.parametrize("signs", ["mixed", "same"])
@halves
@everything
def test_huge_tokens(name, dtype, signs):
    """Entries of 1e4: squares, cubes and products of projections leave the range of float16."""
    module = build(name, dtype=dtype, noise=0.0, grid=(7, 7))
    x = tokens((9, 8), dtype=dtype)
    x = 1e4 * (x.sign() if signs == "mixed" else torch.ones_like(x))
    if name == "softmax":  # fused kernels lose such gradients: see its docstring
        assert module(x, (9, 8)).isfinite().all()
        module.fused = False
    # Fastformer multiplies three projections: its true gradient is 1e12 times the upstream one
    check_finite(module, x, (9, 8), upstream=1e-12 if name == "fastformer" else 1e-3)


def grid_for(name):
    return (40, 41) if name in QUADRATIC else (256, 256)


def long_module(name, dtype):
    options = {"agent": {"agents": 49}, "soft": {"landmarks": 7}}.get(name, {})
    return build(name, dtype=dtype, dim=8, grid=(14, 14), noise=0.0, **options)


@halves
@everything
def test_long_inputs_are_finite_and_right(name, dtype):
    """65k tokens (1.6k for the quadratic ones): as close to float64 as a few roundings allow."""
    grid = grid_for(name)
    module, exact = long_module(name, dtype), long_module(name, torch.float64)
    exact.load_state_dict(module.state_dict())
    x = tokens(grid, dim=8, batch=1, dtype=dtype)
    check_finite(module, x, grid, upstream=1.0)
    with torch.no_grad():
        out, expected = module(x, grid).double(), exact(x.double(), grid)
    assert (out - expected).abs().max() < 32 * torch.finfo(dtype).eps * expected.abs().max()


@halves
@everything
def test_autocast_does_not_bring_half_precision_sums_back(name, dtype):
    grid = grid_for(name)
    module = long_module(name, torch.float32)
    x = tokens(grid, dim=8, batch=1, dtype=torch.float32) + 1
    with torch.no_grad():
        exact = module(x, grid)
        with torch.autocast("cpu", dtype=dtype):
            out = module(x, grid)
    assert out.isfinite().all()
    assert (out.float() - exact).abs().max() < 32 * torch.finfo(dtype).eps * exact.abs().max()


def test_token_sums_and_exponentials_run_in_float32_under_autocast():
    """By operation: what sums over tokens or raises to a power never sees half precision."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            name = function.overloadpacket.__name__
            if name in {"exp", "pow", "sum", "mean", "bmm", "_softmax", "linalg_vector_norm", "convolution"}:
                seen.add((name, out.dtype))
            return out

    for name in NAMES:
        seen: set = set()
        module, x = build(name, dtype=torch.float32), tokens(dtype=torch.float32)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), Recorder():
            module(x, (3, 5))
        half = {item for item in seen if item[1] != torch.float32}
        # the layers project pooled rows head by head in the type of their weights' products
        assert half <= ({("bmm", torch.bfloat16)} if name in {"infsa_linear", "mean", "energy"} else set()), name
