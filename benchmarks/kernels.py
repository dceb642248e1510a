"""The Triton kernels: correct first, then fast, against fused softmax on the same GPU in the same run.

    python benchmarks/kernels.py --out benchmarks/results/kernels-h200.json
    python benchmarks/kernels.py --causal --out benchmarks/results/kernels-causal-h200.json
    TRITON_INTERPRET=1 python benchmarks/kernels.py --quick         # no GPU: the checks alone

No speed of a layer is measured unless every check of it holds: errors against float64 at most twice those of plain
PyTorch in the same type (or one unit in the last place), memory poisoned with NaN beforehand, two runs equal to the
bit. TFLOP/s count 4 H N² d forward and 14 H N² d forward and backward, for every method. A time is the GPU's: the call
is recorded as a CUDA graph and replayed, for every method alike; ``call_ms``, for short inputs, is the same call from
Python, launches included. Each time is the mean of two medians; their distance is the spread. The file is written after
every row.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from kernel_checks import DEVICE, GPU, checks, finite, linear_checks, plain, rms, tokens
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import infsa
from infsa.files import write_json
from infsa.provenance import provenance

SHAPES = [(16, 64, 16384), (16, 64, 4096), (8, 128, 16384), (64, 16, 4096), (16, 64, 65536)]  # heads, width, tokens
QUICK_SHAPES = [(16, 64, 4096), (16, 64, 16384), (64, 16, 4096)]
CAUSAL_SHAPES = [(16, 64, 16384), (8, 128, 16384)]
LENGTHS = (1024, 2048, 8192, 32768, 131072)  # beside those of SHAPES, for the growth with N at 16 heads of width 64
SHORT = 4096  # tokens up to which the launches from Python are worth a number
BARS = {  # (heads, width, tokens, passes): {against: ratio of times}
    (16, 64, 16384, "forward"): {"sdpa_cudnn": 1.15},
    (16, 64, 65536, "forward"): {"sdpa_cudnn": 1.15},
    (16, 64, 4096, "forward"): {"sdpa_cudnn": 1.0},
    (8, 128, 16384, "forward"): {"sdpa_cudnn": 1.0},
    (16, 64, 16384, "both"): {"sdpa_flash": 1.5, "sdpa_cudnn": 1.0},
}
CAUSAL_BARS = {(*shape, "both"): {"sdpa_cudnn": 1.0} for shape in CAUSAL_SHAPES}


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


def reason(error):
    """All that an exception says, without its trace: the cause is rarely in the first line."""
    return f"{type(error).__name__}: {error}"[:2000]


def median_ms(function, rep=200):
    """Two medians: their mean and their distance, in milliseconds."""
    from triton.testing import do_bench

    a, b = (do_bench(function, warmup=rep / 4, rep=rep, return_mode="median") for _ in range(2))
    return {"ms": (a + b) / 2, "spread": abs(a - b)}


def graphed(call):
    """The call as a CUDA graph: what the GPU takes, without the time that Python takes between launches."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def sdpa(backend, is_causal):
    def attend(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return attend


def methods(is_causal=False):
    """Those of the main table; each computes softmax attention or Pure InfSA of (q, k, v)."""
    return {
        "infsa": partial(infsa.pure_attention, is_causal=is_causal, impl="triton"),
        "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION, is_causal),
        "sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION, is_causal),
        "plain": partial(plain, is_causal=is_causal),
    }


def call_of(function, inputs, passes):
    """The function as a call without arguments, forward or forward and backward."""
    if passes == "forward":
        return torch.no_grad()(lambda: function(*inputs))
    inputs = [x.detach().requires_grad_() for x in inputs]
    w = torch.randn_like(inputs[0])
    return lambda: torch.autograd.grad(function(*inputs), inputs, w)


def beyond(call):
    """The peak of memory beyond what existed before and what the call returns, in bytes."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    returned = call()
    peak = torch.cuda.max_memory_allocated() - before
    returned = returned if isinstance(returned, tuple) else (returned,)
    return peak - sum(x.numel() * x.element_size() for x in returned)


def measure(function, inputs, passes, rep=200):
    """Time and memory; the reason where it does not run."""
    try:
        call = call_of(function, inputs, passes)
        found = {"beyond_bytes": beyond(call)} | median_ms(graphed(call), rep)
        if inputs[0].shape[2] <= SHORT:
            found["call_ms"] = median_ms(call, rep / 4)["ms"]
        return found
    except Exception as error:  # out of memory, a backend that does not take the shape, a compiler
        return {"failed": reason(error)}
    finally:
        torch.cuda.empty_cache()


def row_of(heads, width, n, passes, functions, rep=200, bars=BARS):
    """Every method on one shape, with the ratios of times and of memory to ours."""
    inputs = tokens(heads, width, n)
    row = {"heads": heads, "width": width, "n": n, "passes": passes, "times": {}}
    for name, function in functions.items():
        if name == "plain" and n > 16384:
            continue
        row["times"][name] = found = measure(function, inputs, passes, rep)
        if "ms" in found:
            found["tflops"] = {"forward": 4, "both": 14}[passes] * heads * n * n * width / found["ms"] / 1e9
    asked = bars.get((heads, width, n, passes), {})
    return row | compared(row["times"], {m: ratio for m, ratio in asked.items() if m in functions})


def compared(times, bars):
    """How many times as long the others take and how much of their memory we need, and which bars are met."""
    ours = times["infsa"]
    others = {m: t for m, t in times.items() if m != "infsa" and "ms" in t}
    if "ms" not in ours:
        others = {}
    ratios = {m: t["ms"] / ours["ms"] for m, t in others.items()}
    memory = {m: ours["beyond_bytes"] / t["beyond_bytes"] for m, t in others.items() if t["beyond_bytes"] > 0}
    judged = {
        m: {"asked": asked, "ratio": ratios.get(m), "met": ratios.get(m, 0) >= asked} for m, asked in bars.items()
    }
    return {"ratios": ratios, "memory": memory, "bars": judged}


def speeds(quick, causal, rows, keep, left):
    """The main table, or its causal rows; backward passes up to 16,384 tokens. TFLOP/s count all pairs of tokens."""
    functions = methods(causal)
    if causal:
        functions.pop("plain")
    for heads, width, n in CAUSAL_SHAPES if causal else QUICK_SHAPES if quick else SHAPES:
        for passes in ("forward", "both") if n <= 16384 else ("forward",):
            if not left():
                return
            rows.append(row_of(heads, width, n, passes, functions, bars=CAUSAL_BARS if causal else BARS))
            keep()
            show(rows[-1])


def growth(quick, rows, keep, left):
    """Forward over the number of tokens, and the memory of both passes, in short measurements."""
    for n in LENGTHS[:2] if quick else LENGTHS:
        for passes in ("forward", "both") if n <= 32768 else ("forward",):
            if not left():
                return
            rows.append(row_of(16, 64, n, passes, {k: f for k, f in methods().items() if k != "plain"}, rep=50))
            keep()
            show(rows[-1])


def flex_speeds(rows, keep, left):
    """FlexAttention on two shapes; how far it is from our output says if it is right."""
    flex = torch.compile(flex_attention, dynamic=False)
    functions = {"infsa": methods()["infsa"], "flex_relu": lambda q, k, v: flex_pure(flex, q, k, v)}
    for heads, width, n in ((16, 64, 4096), (16, 64, 16384)):
        if not left():
            return
        row = row_of(heads, width, n, "forward", functions)
        if "ms" in row["times"]["flex_relu"]:
            ours, theirs = (torch.no_grad()(f)(*tokens(heads, width, n)) for f in functions.values())
            row["distance"] = finite(rms(ours - theirs) / rms(ours))
        rows.append(row)
        keep()
        show(row)


def ceilings():
    """What this GPU does at most: a large matrix product in TFLOP/s, a large copy in TB/s read and written."""
    a, b = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randn(2**29, device=DEVICE, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    product, copy = median_ms(lambda: a @ b), median_ms(lambda: target.copy_(source))
    return {"tflops": 2 * 8192**3 / product["ms"] / 1e9, "tb_per_s": 2 * source.nbytes / copy["ms"] / 1e9}


def linear_memory(rows):
    """Whether our memory beyond inputs and results grows at most in proportion to N: (N, bytes) per kind of pass."""
    found = {}
    for passes in ("forward", "both"):
        points = sorted(
            (r["n"], r["times"]["infsa"]["beyond_bytes"])
            for r in rows
            if (r["heads"], r["width"], r["passes"]) == (16, 64, passes) and "ms" in r["times"]["infsa"]
        )
        slack = 2**21  # the allocator's smallest block
        linear = all(m <= 1.1 * points[0][1] * n / points[0][0] + slack for n, m in points)
        found[passes] = {"points": points, "linear": linear if len(points) > 1 else None}
    return found


def show(row):
    name = f"H{row['heads']} d{row['width']} N{row['n']} {row['passes']}"
    times = "  ".join(
        f"{m} {t['ms']:.3f} ms ({t['tflops']:.0f})" if "ms" in t else f"{m} failed" for m, t in row["times"].items()
    )
    bars = "  ".join(
        f"{'met' if b['met'] else 'MISSED'} {m} {b['ratio'] or 0:.2f}x of {b['asked']}x" for m, b in row["bars"].items()
    )
    print(f"{name:32} {times}  {bars}", flush=True)


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write, after every row.")] = None,
    quick: Annotated[bool, typer.Option(help="Fewer shapes and methods.")] = False,
    causal: Annotated[bool, typer.Option(help="Causal attention alone.")] = False,
    budget: Annotated[float, typer.Option(help="Seconds after which no further row is begun.")] = 540,
) -> None:
    """Check the kernels, then measure those that are right.

    Example: python benchmarks/kernels.py --quick --out kernels.json
    """
    begin = time.perf_counter()
    tested = checks(quick) + ([] if causal else linear_checks(quick))
    report = {"provenance": provenance(DEVICE), "quick": quick, "causal": causal, "checks": tested}
    broken = [c for c in report["checks"] if not c["holds"]]
    print(f"{len(report['checks']) - len(broken)} of {len(report['checks'])} checks hold")
    for case in broken:
        print("does not hold:", json.dumps(case))

    def keep():
        if out is not None:
            write_json(report, out)

    def left():
        return time.perf_counter() - begin < budget

    keep()
    right = {layer for layer in ("pure", "linear") if all(c["holds"] for c in report["checks"] if c["layer"] == layer)}
    if GPU:
        report |= {"ceilings": ceilings(), "pure": [], "growth": [], "flex": []}
        if "pure" in right:
            speeds(quick, causal, report["pure"], keep, left)
        if "pure" in right and not (quick or causal):
            flex_speeds(report["flex"], keep, left)
        if "pure" in right and not causal:
            growth(quick, report["growth"], keep, left)
            report["linear_memory"] = linear_memory(report["pure"] + report["growth"])
        report["seconds"] = time.perf_counter() - begin
        keep()
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    typer.run(main)
