"""The nine mechanisms over growing N on this machine, in a few seconds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..bench.build import build
from ..bench.cases import NINE, VARIANTS, Case
from ..bench.timing import calls_for, time_calls

SIDES = (256, 512, 768, 1024)  # pixels: 257 to 4,097 tokens
SMALL: dict[str, Any] = {"depth": 1, "heads": 2, "width": 128, "dtype": "float32", "part": "attention"}


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread meanwhile: small layers gain nothing from two, and lose much where a core is taken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def time_mechanisms(
    sides: Sequence[int] = SIDES,
    seconds: float = 0.15,
    report: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> dict[str, Any]:
    """Milliseconds of one attention layer, by mechanism, for square images: the fastest of several calls."""
    times: dict[str, list[float]] = {VARIANTS[name].label: [] for name in NINE}
    cases = [Case(name, size=(side, side), **SMALL) for side in sides for name in NINE]
    device = torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        for done, case in enumerate(cases):
            report("Timing", done, len(cases))
            call = build(case, device).call
            call()  # the first one does not count
            (once,) = time_calls(call, device, 1)
            more = time_calls(call, device, max(2, calls_for(seconds, once, most=50)))
            times[case.variant.label].append(min(once, *more))
    report("Timing", len(cases), len(cases))
    tokens = [case.tokens for case in cases[:: len(NINE)]]
    return {"tokens": tokens, "milliseconds": times, "threads": torch.get_num_threads(), "layer": SMALL}
