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


def typed_pool(x, w, b, heads):
    """Linear-InfSA's equations typed into PyTorch, in the type of the input."""
    q = F.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2)
    e = q.norm(dim=-1, keepdim=True)
    central = (e * q).sum(2, keepdim=True) / (e.sum(2, keepdim=True) + 1e-6)
    scores = torch.relu(central @ q.mT)  # (B, H, 1, N)
    return scores / (scores.sum(-1, keepdim=True) + 1e-6) @ x.unsqueeze(1)


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
    """The same for the pool-first passes.

    The kernels are held to a yardstick that projects in the same type and sums in float32; the matrix products that
    "auto" takes in bfloat16 on a GPU to the equations typed in bfloat16.
    """
    lengths = (1, 45) if not GPU else (1, 33, 4097) if quick else (1, 33, 4097, 65537)
    ways = [("triton", torch.bfloat16), ("triton", torch.float16), ("triton", torch.float32)]
    ways += [("auto", torch.bfloat16)] if GPU else []
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = []
    for n, (impl, dtype) in ((n, way) for n in lengths for way in ways):
        dim, heads = (48, 3) if not GPU else (1024, 64)
        g = torch.Generator(DEVICE).manual_seed(n)
        x, w, b = (torch.randn(s, generator=g, device=DEVICE).to(dtype) for s in ((1, n, dim), (dim, dim), (dim,)))
        w = w / math.sqrt(dim)
        yardstick = partial(pool, impl="reference") if impl == "triton" else typed_pool
        ours = [results(partial(pool, heads=heads, impl=impl), (x, w, b)) for _ in "ab"]
        theirs = results(partial(yardstick, heads=heads), (x, w, b))
        exact = results(partial(pool, heads=heads, impl="reference"), [y.double() for y in (x, w, b)])
        record = {"n": n, "dtype": str(dtype), "layer": "linear", "impl": impl}
        found.append(record | judge(("mean", "dx", "dw", "db"), ours, theirs, exact, dtype))
    found += [values_check(n, *sizes) for n in lengths for sizes in ((1, 64), (2, 8)) if GPU and n > 16]
    torch.use_deterministic_algorithms(False)
    return found


@torch.no_grad()
def values_check(n, batch, heads):
    """From tokens to pooled values without gradients: what a layer computes as it comes, in bfloat16 on a GPU."""
    g, dim = torch.Generator(DEVICE).manual_seed(n), 1024
    shapes = ((batch, n, dim), (dim, dim), (dim,), (dim, dim), (dim,))
    x, *rest = (torch.randn(s, generator=g, device=DEVICE).bfloat16() for s in shapes)
    w, b, wv, bv = (y / math.sqrt(dim) if y.dim() == 2 else y for y in rest)
    ours = [[infsa.ops.projected_values(x, heads, (w, b), None, (wv, bv))[0]] for _ in "ab"]
    pooled = typed_pool(x, w, b, heads)  # (B, H, 1, D)
    theirs = pooled @ wv.unflatten(0, (heads, -1)).mT + bv.view(heads, 1, -1)
    pairs = [tuple(y.double() for y in pair) for pair in ((w, b), (wv, bv))]
    exact, _ = infsa.ops.projected_values(x.double(), heads, pairs[0], None, pairs[1], impl="reference")
    record = {"n": n, "batch": batch, "heads": heads, "dtype": str(x.dtype), "layer": "linear", "impl": "few launches"}
    return record | judge(("values",), ours, [theirs], [exact], x.dtype)


def pool(x, w, b, heads, impl):
    return infsa.ops.projected_pool(x, heads, (w, b), impl=impl).mean


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
