"""The Triton kernels: correct first, then fast, against fused softmax on the same GPU in the same run.

    python benchmarks/kernels.py --out benchmarks/results/kernels-h200.json
    python benchmarks/kernels.py --tune --out tuned.json            # sweep the configs (no checks), print the best
    TRITON_INTERPRET=1 python benchmarks/kernels.py --quick         # no GPU: the checks alone

No speed is printed unless every check holds: errors against float64 at most twice those of plain PyTorch in the same
type (or one unit in the last place), memory poisoned with NaN beforehand, two runs equal to the bit. TFLOP/s count
4 H N² d forward and 14 H N² d forward and backward, for every method. Each time is the median of two medians; their
distance is the spread.
"""

import dataclasses
import json
import math
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

import infsa
from infsa.files import write_json
from infsa.ops.triton import configs
from infsa.ops.triton.pure_backward import backward
from infsa.ops.triton.pure_forward import forward
from infsa.provenance import provenance

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SHAPES = [(16, 64, 4096), (16, 64, 16384), (16, 64, 65536), (8, 128, 16384), (64, 16, 4096)]  # heads, width, tokens
QUICK_SHAPES = [(16, 64, 4096), (16, 64, 16384), (64, 16, 4096)]
BARS = {  # (heads, width, tokens, passes): {against: ratio of times}
    (16, 64, 16384, "forward"): {"sdpa_cudnn": 1.15},
    (16, 64, 65536, "forward"): {"sdpa_cudnn": 1.15},
    (16, 64, 4096, "forward"): {"sdpa_cudnn": 1.0},
    (8, 128, 16384, "forward"): {"sdpa_cudnn": 1.0},
    (16, 64, 16384, "both"): {"sdpa_flash": 1.5, "sdpa_cudnn": 1.0},
}


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
    squares = r.square().sum(-1)
    total = squares.cumsum(-1)[..., None] if is_causal else squares.sum(-1)[..., None, None]
    alive = total > 0
    return gamma * (r / (torch.where(alive, total, 1).sqrt() * alive + 1e-6)) @ v


def log_relu(score, *_):
    """exp of this is relu: the softmax kernel then sums R v, and its log-sum-exp knows the missing factor."""
    return torch.log(torch.relu(score))


def twice_log_relu(score, *_):
    return 2 * torch.log(torch.relu(score))


def flex_pure(flex, q, k, v, gamma=0.7):
    """Pure InfSA out of FlexAttention, exactly: one call for R v, one for the squared row norms."""
    out, size = flex(q, k, v, score_mod=log_relu, return_lse=True)
    _, squares = flex(q, k, v, score_mod=twice_log_relu, return_lse=True)
    norm = squares.double().exp().sum(-1, keepdim=True).sqrt().float()
    return (gamma * out * (size.exp() / (norm + 1e-6)).unsqueeze(-1)).to(q.dtype)


def rms(x):
    return x.double().square().mean().sqrt().item()


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
        record = {"n": n, "n_k": n_k, "width": width, "dtype": str(dtype), "causal": bool(causal)}
        found.append(record | judge(("z", "dq", "dk", "dv"), ours, theirs, exact, dtype))
    torch.use_deterministic_algorithms(False)
    return found


def linear_checks(quick):
    """The same for the pool-first passes; the yardstick projects in the same type and sums in float32."""
    lengths = (1, 45) if not GPU else (1, 33, 4097) if quick else (1, 33, 4097, 65537)
    found = []
    for n, dtype in ((n, d) for n in lengths for d in (torch.bfloat16, torch.float16, torch.float32)):
        dim, heads = (48, 3) if not GPU else (1024, 64)
        g = torch.Generator(DEVICE).manual_seed(n)
        x, w, b = (torch.randn(s, generator=g, device=DEVICE).to(dtype) for s in ((1, n, dim), (dim, dim), (dim,)))
        w = w / math.sqrt(dim)
        torch.use_deterministic_algorithms(True, warn_only=True)
        ours = [results(partial(pool, heads=heads, impl="triton"), (x, w, b)) for _ in "ab"]
        theirs = results(partial(pool, heads=heads, impl="reference"), (x, w, b))
        exact = results(partial(pool, heads=heads, impl="reference"), [y.double() for y in (x, w, b)])
        torch.use_deterministic_algorithms(False)
        names = ("mean", "dx", "dw", "db")
        found.append({"n": n, "dtype": str(dtype), "layer": "linear"} | judge(names, ours, theirs, exact, dtype))
    return found


def pool(x, w, b, heads, impl):
    return infsa.ops.projected_pool(x, heads, (w, b), impl=impl).mean


def judge(names, ours, theirs, exact, dtype):
    """Errors of one case and whether it holds."""
    equal = all(torch.equal(x, y) for x, y in zip(*ours, strict=True))
    holds, errors = equal, {}
    noise = torch.finfo(torch.float32).eps * max(e.abs().max().item() for e in exact)  # of float32 sums that cancel
    for name, x, y, e in zip(names, ours[0], theirs, exact, strict=True):
        unit = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(e.abs().max().item(), 1e-30)))
        errors[name] = {"ours": rms(x - e), "plain": rms(y - e)}
        holds &= bool(x.isfinite().all()) and errors[name]["ours"] <= max(2 * errors[name]["plain"], unit, noise)
    return {"equal": equal, "holds": holds, "errors": errors}


def median_ms(function, rep=200):
    """Two medians: their mean and their distance, in milliseconds."""
    from triton.testing import do_bench

    a, b = (do_bench(function, warmup=rep / 4, rep=rep, return_mode="median") for _ in range(2))
    return {"ms": (a + b) / 2, "spread": abs(a - b)}


def sdpa(backend):
    def attend(q, k, v):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v)

    return attend


def methods(quick):
    found = {
        "infsa": lambda q, k, v: infsa.pure_attention(q, k, v, impl="triton"),
        "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION),
        "sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        "plain": plain,
    }
    if not quick:
        flex = torch.compile(flex_attention, dynamic=False)
        found["flex_relu"] = lambda q, k, v: flex_pure(flex, q, k, v)
    return found


def measure(function, inputs, passes):
    """Time and the peak of memory beyond what existed before; the reason where it does not run."""
    try:
        if passes == "forward":
            call = torch.no_grad()(lambda: function(*inputs))
        else:
            inputs = [x.detach().requires_grad_() for x in inputs]
            w = torch.randn_like(inputs[0])
            call = lambda: torch.autograd.grad(function(*inputs), inputs, w)  # noqa: E731
        call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        peak = torch.cuda.max_memory_allocated() - before
        return median_ms(call) | {"peak_bytes": peak}
    except (RuntimeError, ValueError) as error:  # out of memory, or a backend that does not take the shape
        torch.cuda.empty_cache()
        return {"failed": str(error).splitlines()[0][:200]}


def speeds(quick, rows, keep):
    for heads, width, n in QUICK_SHAPES if quick else SHAPES:
        inputs = tokens(heads, width, n)
        for passes, flops in (("forward", 4), ("both", 14)):
            if passes == "both" and n > 16384:
                continue
            row = {"heads": heads, "width": width, "n": n, "passes": passes, "times": {}}
            for name, function in methods(quick).items():
                if name == "plain" and n > 16384:
                    continue
                time = measure(function, inputs, passes)
                if "ms" in time:
                    time["tflops"] = flops * heads * n * n * width / time["ms"] / 1e9
                row["times"][name] = time
            ours = row["times"]["infsa"].get("ms", math.inf)
            row["ratios"] = {m: t["ms"] / ours for m, t in row["times"].items() if m != "infsa" and "ms" in t}
            row["bars"] = BARS.get((heads, width, n, passes), {})
            rows.append(row)
            keep()
            show(row)


def show(row):
    name = f"H{row['heads']} d{row['width']} N{row['n']} {row['passes']}"
    times = "  ".join(
        f"{m} {t['ms']:.3f} ms ({t['tflops']:.0f})" if "ms" in t else f"{m} failed" for m, t in row["times"].items()
    )
    bars = "  ".join(
        f"{'met' if row['ratios'].get(m, 0) >= bar else 'MISSED'} {m} {row['ratios'].get(m, 0):.2f}x of {bar}x"
        for m, bar in row["bars"].items()
    )
    print(f"{name:32} {times}  {bars}", flush=True)


def linear_speeds(quick):
    """The pool-first layer's two passes against the same equations compiled."""
    rows = []
    for n in (4096, 65536) if quick else (4096, 65536, 331776):
        dim, heads = 1024, 64
        x, w, b = (torch.randn(s, device=DEVICE, dtype=torch.bfloat16) for s in ((1, n, dim), (dim, dim), (dim,)))
        w /= math.sqrt(dim)

        compiled = torch.compile(pool)
        row = {"n": n, "dim": dim, "heads": heads, "floor_ms_at_700": 2 * n * dim * (dim + 2 * heads) / 700e9}
        for passes in ("forward", "both"):
            for name, function in (("infsa", pool), ("compiled", compiled)):
                impl = "triton" if name == "infsa" else "chunked"
                row[f"{name}_{passes}"] = measure_pool(function, (x, w, b), impl, passes)
        rows.append(row)
        print(json.dumps({"linear": row}), flush=True)
    return rows


def measure_pool(function, inputs, impl, passes):
    if passes == "forward":
        return median_ms(torch.no_grad()(lambda: function(*inputs, 64, impl)))
    leaves = [x.detach().requires_grad_() for x in inputs]
    return median_ms(lambda: torch.autograd.grad(function(*leaves, 64, impl).sum(), leaves))


def run_config(kernel, heads, width, n, fields):
    """A closure that runs one kernel with one config (backward: with the other kernel at its default)."""
    config = configs.Config(**fields)
    q, k, v = tokens(heads, width, n)
    gamma = torch.full((1, 1, 1), 0.7, device=DEVICE)
    if kernel == "forward":
        return lambda: forward(q, k, v, gamma, "relu", False, 1e-6, config)
    z, norm = forward(q, k, v, gamma, "relu", False, 1e-6)
    chosen = {f"{kernel}_config": config}
    return lambda: backward(torch.ones_like(z), q, k, v, gamma, z, norm, "relu", False, 1e-6, **chosen)


def compile_config(job):
    """In a worker: compile into the cache on disk, on few tokens; the reason if it cannot be."""
    kernel, heads, width, fields = job
    try:
        run_config(kernel, heads, width, 256, fields)()
        torch.cuda.synchronize()
    except Exception as error:  # the compiler raises many kinds
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
    return None


def tune(quick, workers):
    """The candidates of every kernel, compiled in parallel and timed one by one."""
    shapes = [(16, 64, 16384), (64, 16, 4096), (8, 128, 16384)] + ([] if quick else [(16, 64, 4096), (32, 32, 8192)])
    kind = configs.generation(torch.cuda.current_device())
    jobs = [
        (kernel, heads, width, dataclasses.asdict(c))
        for kernel in ("forward", "keys", "queries")
        for heads, width in dict.fromkeys(s[:2] for s in shapes)
        for c in configs.candidates(kernel, width, kind)
    ]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        failures = dict(zip(map(str, jobs), pool.map(compile_config, jobs), strict=True))
    rows = []
    for heads, width, n in shapes:
        for kernel, *job in jobs:
            if job[:2] != [heads, width]:
                continue
            failed = failures[str((kernel, *job))]
            row = {"kernel": kernel, "heads": heads, "width": width, "n": n, "config": job[2], "failed": failed}
            if failed is None:
                try:
                    row |= median_ms(run_config(kernel, heads, width, n, job[2]), rep=20)
                except Exception as error:
                    row["failed"] = str(error).splitlines()[0][:120]
            rows.append(row)
        show_best([r for r in rows if "ms" in r and r["n"] == n and (r["heads"], r["width"]) == (heads, width)])
    return rows


def show_best(rows):
    """The three fastest configs of each kernel for one shape."""
    for kernel in ("forward", "keys", "queries"):
        for row in sorted((r for r in rows if r["kernel"] == kernel), key=lambda r: r["ms"])[:3]:
            shape = f"H{row['heads']} d{row['width']} N{row['n']}"
            print(f"{kernel:8} {shape:18} {row['ms']:.4f} ms ±{row['spread']:.4f} {configs.Config(**row['config'])}")


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer shapes and methods.")] = False,
    tuning: Annotated[bool, typer.Option("--tune", help="Sweep the configs instead of comparing.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that compile configs.")] = 12,
) -> None:
    """Check the kernels, then measure them.

    Example: python benchmarks/kernels.py --quick --out kernels.json
    """
    report = {"provenance": provenance(DEVICE), "quick": quick}
    report["checks"] = [] if tuning else checks(quick) + linear_checks(quick)
    broken = [c for c in report["checks"] if not c["holds"]]
    print(f"{len(report['checks']) - len(broken)} of {len(report['checks'])} checks hold")
    for case in broken:
        print("does not hold:", json.dumps(case))

    def keep():
        if out is not None:
            write_json(report, out)

    keep()
    if GPU and not broken:
        if tuning:
            report["tuning"] = tune(quick, workers)
        else:
            report["pure"] = []
            speeds(quick, report["pure"], keep)
            report["linear"] = linear_speeds(quick)
        keep()
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    typer.run(main)
