"""Whether the kernels are right: errors against float64, written outputs, equal runs; ``kernels.py`` asks it first."""

import math
from functools import partial

import torch
from torch.nn import functional as F

import infsa

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def tokens(heads, width, n, *, n_k=None, dtype=torch.bfloat16, seed=0):
    """q, k, v as a projection gives them: heads beside each other in memory."""
    g = torch.Generator(DEVICE).manual_seed(seed)
    sizes = (n, n_k or n, n_k or n)
    return [
        torch.randn(1, m, heads, width, generator=g, device=DEVICE, dtype=torch.float32).to(dtype).transpose(1, 2)
        for m in sizes
    ]


def plain(q, k, v, gamma=0.7, is_causal=False):
    """The equations typed into PyTorch, in the type of the input."""
    r = torch.relu(q @ k.mT / math.sqrt(q.shape[-1]))
    r = r.tril() if is_causal else r
    wide = torch.promote_types(q.dtype, torch.float32)  # a sum of squares leaves the range of float16
    squares = torch.linalg.vector_norm(r, dim=-1).to(wide).square()
    total = squares.cumsum(-1)[..., None] if is_causal else squares.sum(-1)[..., None, None]
    alive = total > 0
    norm = torch.where(alive, total, 1).sqrt() * alive
    return gamma * (r / (norm.to(r.dtype) + 1e-6)) @ v


def rms(x):
    return x.double().square().mean().sqrt().item()


def finite(number):
    """The number, or None where there is none: result files hold no NaN."""
    return number if math.isfinite(number) else None


def typed_values(x, wq, bq, wv, bv, heads):
    """Linear-InfSA's equations typed into PyTorch, in the type of the input."""
    q, v = (F.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for w, b in ((wq, bq), (wv, bv)))
    e = q.norm(dim=-1, keepdim=True)
    central = (e * q).sum(2, keepdim=True) / (e.sum(2, keepdim=True) + 1e-6)
    scores = torch.relu(central @ q.mT)  # (B, H, 1, N)
    return scores / (scores.sum(-1, keepdim=True) + 1e-6) @ v


def results(function, inputs):
    """Output and gradients for a fixed ∂L/∂Z."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = function(*inputs)
    g = torch.Generator().manual_seed(7)
    w = torch.randn(out.shape, generator=g).to(torch.bfloat16).to(out)
    return [out.detach(), *torch.autograd.grad(out, inputs, w)]


def oracle(inputs, is_causal):
    """float64, dense while it fits and tile by tile above."""
    wide = [x.double() for x in inputs]
    if inputs[0].shape[2] <= 8192:
        return results(lambda *x: plain(*x, is_causal=is_causal), wide)
    return results(lambda *x: infsa.pure_attention(*x, is_causal=is_causal, impl="chunked"), wide)


def checks(quick):
    """One record per case, with the errors and whether it holds."""
    lengths = [(1, 1), (33, 33), (45, 70)] if not GPU else [(1, 1), (33, 33), (257, 1000), (4097, 4097)]
    cases = [(*n, w, d, c) for n in lengths for w in (16, 64) for d in (torch.bfloat16, torch.float16) for c in (0, 1)]
    cases += [(45, 45, w, torch.float32, c) for w in (20, 80, 128) for c in (0, 1)]
    if GPU and not quick:
        cases += [(16385, 16385, 64, torch.bfloat16, c) for c in (0, 1)] + [(65536, 65536, 64, torch.bfloat16, 0)]
    torch.use_deterministic_algorithms(True, warn_only=True)  # uninitialised memory is filled with NaN
    found = []
    for n, n_k, width, dtype, causal in cases:
        if causal and n != n_k:
            continue
        inputs = tokens(1 if n > 8192 or not GPU else 2, width, n, n_k=n_k, dtype=dtype, seed=n + width)
        exact = oracle(inputs, bool(causal))
        ours = [results(partial(infsa.pure_attention, is_causal=bool(causal), impl="triton"), inputs) for _ in "ab"]
        theirs = results(partial(plain, is_causal=bool(causal)), inputs)
        record = {"layer": "pure", "n": n, "n_k": n_k, "width": width, "dtype": str(dtype), "causal": bool(causal)}
        found.append(record | judge(("z", "dq", "dk", "dv"), ours, theirs, exact, dtype))
    torch.use_deterministic_algorithms(False)
    return found


def linear_checks(quick):
    """The same for fused Linear-InfSA, from tokens to pooled values."""
    lengths = (1, 45) if not GPU else (1, 33, 4097) if quick else (1, 33, 4097, 65537)
    dim, heads = (48, 3) if not GPU else (1024, 64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = []
    for n, dtype in ((n, dtype) for n in lengths for dtype in (torch.bfloat16, torch.float16, torch.float32)):
        g = torch.Generator(DEVICE).manual_seed(n)
        shapes = ((1, n, dim), (dim, dim), (dim,), (dim, dim), (dim,))
        drawn = (torch.randn(s, generator=g, device=DEVICE) for s in shapes)
        inputs = [(y / math.sqrt(dim) if y.shape == (dim, dim) else y).to(dtype) for y in drawn]
        ours = [results(partial(pooled_values, heads=heads, impl="fused"), inputs) for _ in "ab"]
        theirs = results(partial(typed_values, heads=heads), inputs)
        exact = results(partial(pooled_values, heads=heads, impl="reference"), [y.double() for y in inputs])
        record = {"n": n, "dtype": str(dtype), "layer": "linear", "impl": "fused"}
        found.append(record | judge(("values", "dx", "dwq", "dbq", "dwv", "dbv"), ours, theirs, exact, dtype))
    torch.use_deterministic_algorithms(False)
    return found


def pooled_values(x, wq, bq, wv, bv, heads, impl):
    return infsa.ops.projected_values(x, heads, (wq, bq), None, (wv, bv), impl=impl)[0]


def judge(names, ours, theirs, exact, dtype):
    """Errors of one case and whether it holds; a yardstick that is no number allows nothing."""
    equal = all(torch.equal(x, y) for x, y in zip(*ours, strict=True))
    holds, errors = equal, {}
    noise = torch.finfo(torch.float32).eps * max(e.abs().max().item() for e in exact)  # of float32 sums that cancel
    for name, x, y, e in zip(names, ours[0], theirs, exact, strict=True):
        unit = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(e.abs().max().item(), 1e-30)))
        error, yardstick = rms(x - e), finite(rms(y - e))
        errors[name] = {"ours": finite(error), "plain": yardstick}
        holds &= bool(x.isfinite().all()) and error <= max(2 * (yardstick or 0.0), unit, noise)
    return {"equal": equal, "holds": holds, "errors": errors}
