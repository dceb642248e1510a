"""Which implementation of Linear-InfSA is fastest where: the table behind ``infsa.ops.dispatch``.

    python benchmarks/linear_choice.py --out benchmarks/results/linear-choice-h200.json

The layer (1024 channels, 64 heads) from tokens to its output, and the function on (B, H, N, d), each implementation by
its name, forward and forward with backward, times in milliseconds of one call from Python. ``error`` is the largest
relative root-mean-square distance to float64 of the output and of every gradient, at the shortest length. The committed
file also holds rows named "kernels", a pair of Triton kernels that projected and scored a tile of tokens at a time:
they lost to "fused" in every row.
"""

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from kernel_checks import DEVICE, GPU, rms

import infsa
from infsa.files import write_json
from infsa.provenance import provenance

DIM, HEADS = (1024, 64) if GPU else (64, 4)
LENGTHS = (1024, 16384, 262144) if GPU else (40,)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def by_name(impl):
    def run(layer, x):
        layer.impl = impl
        return layer(x)

    return run


LAYER = {"fused": by_name("fused"), "chunked": by_name("chunked")}


def functional(impl):
    return lambda q, k, v: infsa.linear_attention(q, k, v, impl=impl)


FUNCTION = {"chunked": functional("chunked"), "reference": functional("reference")}
COMPILED = {f"{name}, compiled": torch.compile(function, dynamic=True) for name, function in FUNCTION.items()}


def layer_case(dtype, n):
    torch.manual_seed(0)
    layer = infsa.nn.LinearInfSA(DIM, HEADS, device=DEVICE).to(dtype)
    return layer, torch.randn(1, n, DIM, device=DEVICE).to(dtype).requires_grad_()


def function_case(dtype, n):
    torch.manual_seed(0)
    return tuple(torch.randn(1, HEADS, n, DIM // HEADS, device=DEVICE).to(dtype).requires_grad_() for _ in range(3))


def gradients(function, inputs):
    """The output and every gradient, for a fixed ∂L/∂output on the first token's row."""
    leaves = [*inputs[0].parameters(), inputs[1]] if isinstance(inputs[0], torch.nn.Module) else list(inputs)
    row = function(*inputs)[..., :1, :]
    weights = torch.randn(row.shape, generator=torch.Generator().manual_seed(7)).to(torch.bfloat16).to(row)
    return [row.detach(), *torch.autograd.grad(row, leaves, weights)]


def error(function, inputs, exact):
    return max(rms(found - e) / max(rms(e), 1e-30) for found, e in zip(gradients(function, inputs), exact, strict=True))


def milliseconds(call):
    """The median of a call from Python, in a fifth of a second at most."""
    if not GPU:
        start = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - start)
    from triton.testing import do_bench

    return do_bench(call, warmup=20, rep=120, return_mode="median")


def forward(function, inputs):
    with torch.no_grad():
        function(*inputs)


def double(case, n):
    first, *rest = case(torch.float64, n)
    return gradients(
        by_name("chunked") if isinstance(first, torch.nn.Module) else functional("chunked"), (first, *rest)
    )


def measure(kind, functions, case, n, dtype, exact):
    inputs = case(dtype, n)
    for name, function in functions.items():
        record = {"what": kind, "impl": name, "n": n, "dtype": str(dtype).removeprefix("torch.")}
        try:
            if exact is not None:
                record["error"] = error(function, inputs, exact)
            record["forward_ms"] = milliseconds(partial(forward, function, inputs))
            record["both_ms"] = milliseconds(partial(gradients, function, inputs))
        except Exception as problem:  # a case that fails must not lose the others
            record["failed"] = f"{type(problem).__name__}: {problem}"[:300]
        print(*(f"{v:.4g}" if isinstance(v, float) else v for v in record.values()), flush=True)
        yield record


def main(out: Annotated[Path | None, typer.Option(help="Where the JSON file goes.")] = None) -> None:
    """Measure, print, and write after every row."""
    found = []
    for kind, functions, case in (("layer", LAYER, layer_case), ("function", FUNCTION, function_case)):
        for n in LENGTHS:
            exact = double(case, n) if n == LENGTHS[0] else None
            for dtype in DTYPES:
                more = COMPILED if GPU and kind == "function" and dtype == torch.bfloat16 else {}
                for record in measure(kind, functions | more, case, n, dtype, exact):
                    found.append(record)
                    if out is not None:
                        write_json({"provenance": provenance(DEVICE), "dim": DIM, "heads": HEADS, "rows": found}, out)


if __name__ == "__main__":
    typer.run(main)
