"""Sweep the tile sizes of Pure InfSA's kernels on this GPU and print the best per shape.

    python benchmarks/kernel_tuning.py --out benchmarks/results/kernels-tuning-h200.json
    python benchmarks/kernel_tuning.py --causal --out causal.json

Nothing is checked here: the winners go into ``infsa/ops/triton/configs.py`` by hand, then ``benchmarks/kernels.py``
checks them.
"""

import dataclasses
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import torch
import typer
from kernel_checks import DEVICE, GPU, tokens
from kernels import median_ms, reason

from infsa.files import write_json
from infsa.ops.pure.triton_backward import pass_back
from infsa.ops.pure.triton_forward import plan_for
from infsa.ops.triton import configs
from infsa.provenance import provenance


def run_config(kernel, heads, width, n, is_causal, fields):
    """A closure that runs one kernel with one config, in the backward pass without the other one."""
    config, options = configs.Config(**fields), ("relu", is_causal, 1e-6)
    inputs = (*tokens(heads, width, n), 0.7, None)
    if kernel == "forward":
        return lambda: plan_for(*inputs, *options, config=config)(*inputs)
    plan = plan_for(*inputs, *options)
    z, norm = plan(*inputs)
    grad, found = torch.ones_like(z), tuple(torch.empty_like(x) for x in inputs[:3])
    wanted = (kernel == "queries", kernel == "keys")
    chosen = (config if kernel == "keys" else None, config if kernel == "queries" else None)
    return lambda: pass_back(plan, grad, inputs, (z, norm), found, wanted, chosen)


def compile_config(job):
    """In a worker: compile into the cache on disk, on few tokens; the reason if it cannot be."""
    kernel, heads, width, is_causal, fields = job
    try:
        run_config(kernel, heads, width, 256, is_causal, fields)()
        torch.cuda.synchronize()
    except Exception as error:  # the compiler raises many kinds
        return reason(error)
    return None


def tune(quick, causal, workers):
    """The candidates of every kernel, compiled in parallel and timed one by one."""
    shapes = [(16, 64, 16384), (64, 16, 4096), (8, 128, 16384)] + (
        [] if quick else [(16, 64, 4096), (32, 32, 8192), (12, 80, 8192)]
    )
    kind = configs.generation(torch.cuda.current_device())
    jobs = [
        (kernel, heads, width, causal, dataclasses.asdict(c))
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
            row = {"kernel": kernel, "heads": heads, "width": width, "n": n, "config": job[3], "failed": failed}
            if failed is None:
                try:
                    row |= median_ms(run_config(kernel, heads, width, n, causal, job[3]), rep=20)
                except Exception as error:
                    row["failed"] = reason(error)
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
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    quick: Annotated[bool, typer.Option(help="Fewer shapes.")] = False,
    causal: Annotated[bool, typer.Option(help="Causal attention.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that compile configs.")] = 12,
) -> None:
    """Compile every candidate in parallel, time them one by one, write all and print the best.

    Example: python benchmarks/kernel_tuning.py --quick --out tuning.json
    """
    if not GPU:
        raise typer.BadParameter("needs a CUDA device")
    write_json({"provenance": provenance(DEVICE), "causal": causal, "tuning": tune(quick, causal, workers)}, out)


if __name__ == "__main__":
    typer.run(main)
