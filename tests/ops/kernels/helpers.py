"""Inputs and comparisons for the kernels, on a GPU or in the interpreter."""

import math

import torch

import infsa

from .. import plain
from ..helpers import generator, leaves

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
NAMES = ("output", "q.grad", "k.grad", "v.grad", "gamma.grad")


def problem(seed, n, n_k=None, *, width=16, value_width=None, batch=1, heads=2, dtype=torch.float32):
    """q, k, v and a decay per head."""
    n_k, value_width = n_k or n, value_width or width
    g = generator(seed)
    shapes = ((n, width), (n_k, width), (n_k, value_width))
    qkv = (torch.randn(batch, heads, *s, generator=g).to(dtype).to(DEVICE) for s in shapes)
    return *qkv, torch.linspace(0.4, 0.8, heads, device=DEVICE)


def pull(out):
    """A fixed ∂L/∂Z that every type represents exactly."""
    return torch.randn(out.shape, generator=generator(11)).to(torch.bfloat16).to(torch.float16).to(out)


def value_and_gradients(function, inputs):
    """The output and the gradients of ⟨w, output⟩ for a fixed w."""
    inputs = leaves(*inputs)
    out = function(*inputs)
    return out.detach(), *torch.autograd.grad(out, inputs, pull(out))


def attend(impl="triton", **options):
    """infsa.pure_attention as a function of (q, k, v, gamma)."""
    return lambda q, k, v, gamma: infsa.pure_attention(q, k, v, gamma=gamma, impl=impl, **options)


def exact(inputs, **options):
    """Plain PyTorch in float64: output and gradients."""
    return value_and_gradients(
        lambda q, k, v, gamma: plain.pure_attention(q, k, v, gamma=gamma, **options),
        [x.double().cpu() for x in inputs],
    )


def rms(x):
    return x.double().square().mean().sqrt().item()


def unit(scale, dtype):
    """One unit in the last place of numbers as large as `scale`."""
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(scale, 1e-30)))


def assert_within_twice(found, yardstick, expected, dtype):
    """Errors (root mean square) at most twice those of the plain path, or one unit in the last place.

    γ's gradient is one number per head, so that its error is luck; test_pure takes the mean over many inputs.
    """
    for name, x, y, e in zip(NAMES, found, yardstick, expected, strict=True):
        assert x.isfinite().all(), name
        if name == "gamma.grad":
            continue
        error, plain_error = rms(x.cpu() - e), rms(y.cpu() - e)
        allowed = max(2 * plain_error, unit(e.abs().max().item(), dtype))
        assert error <= allowed, f"{name}: error {error:.3e}, plain path {plain_error:.3e}, allowed {allowed:.3e}"


def plain_results(inputs, **options):
    """Output and gradients of plain PyTorch on the CPU, in the type of q."""
    own = [x.to(inputs[0].dtype).cpu() for x in inputs]
    return value_and_gradients(lambda q, k, v, gamma: plain.pure_attention(q, k, v, gamma=gamma, **options), own)


def assert_accurate(inputs, **options):
    """The rule of the issue, on values and gradients, for one set of inputs."""
    inputs = tuple(inputs)
    dtype = inputs[0].dtype
    theirs = plain_results(inputs, **options)
    on_device = {k: v.to(DEVICE) if torch.is_tensor(v) else v for k, v in options.items()}
    found = value_and_gradients(attend(**on_device), inputs)
    assert found[0].dtype == dtype
    assert_within_twice(found, theirs, exact(inputs, **options), dtype)


def forward(inputs, *options, config=None):
    """Z and the norms, straight from the launches; ``inputs`` end with what each query may see, or None."""
    from infsa.ops.pure.triton_forward import plan_for

    return plan_for(*inputs, *options, config=config)(*inputs)


def backward(grad, inputs, result, *options, config=None):
    """dQ, dK, dV and sums of c, straight from the launches."""
    from infsa.ops.pure.triton_backward import pass_back
    from infsa.ops.pure.triton_forward import plan_for

    found = tuple(torch.empty_like(x) for x in inputs[:3])
    sums = pass_back(plan_for(*inputs, *options), grad, inputs, result, found, configs=(config, config))
    return *found, sums[0]
