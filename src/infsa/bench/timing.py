"""Times of calls: how they are taken and what is said about them."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

FAR = 3.0  # interquartile ranges beyond the quartiles from which a time is an outlier
LONG = 4.0  # seconds: a warm call that takes longer is the measurement
DRIFT = 0.05  # share by which the rounds may differ


def synchronize(device: torch.device) -> None:
    """Wait for a device to finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_calls(call: Callable[[], None], device: torch.device, calls: int) -> list[float]:
    """Milliseconds of each of so many calls, one after the other: CUDA events on a GPU, a clock elsewhere."""
    times: list[float] = []
    if device.type != "cuda":
        for _ in range(calls):
            begin = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begin))
        return times
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * calls)]
    for begin_mark, end_mark in zip(marks[::2], marks[1::2], strict=True):
        begin_mark.record()
        call()
        end_mark.record()
    torch.cuda.synchronize(device)
    return [begin_mark.elapsed_time(end_mark) for begin_mark, end_mark in zip(marks[::2], marks[1::2], strict=True)]


def median_milliseconds(call: Callable[[], None], device: torch.device, warmups: int, timed: int) -> float:
    """Median time of a call after some that do not count."""
    for _ in range(warmups):
        call()
    synchronize(device)
    return statistics.median(time_calls(call, device, timed))


def calls_for(seconds: float, once_ms: float, most: int = 500) -> int:
    """How many calls fill a time, between 1 and ``most``."""
    return max(1, min(most, int(1e3 * seconds / max(once_ms, 1e-3))))


def describe(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Median, quartiles and extremes of all times, how many lie far out, and how the rounds' medians moved."""
    times = sorted(time for times in rounds for time in times)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    fence = FAR * (high - low)
    medians = [statistics.median(times) for times in rounds]
    moved = medians[-1] / medians[0] - 1
    apart = max(medians) / min(medians) - 1
    return {
        "median": statistics.median(times),
        "p25": low,
        "p75": high,
        "min": times[0],
        "max": times[-1],
        "count": len(times),
        "outliers": sum(time < low - fence or time > high + fence for time in times),
        "rounds": medians,
        "moved": moved,
        "drift": apart > DRIFT,
    }


def check_gemm(device: torch.device, size: int | None = None) -> dict[str, float]:
    """A square matrix product timed call by call as everything else, and directly as one long stretch of calls.

    Both alternate in short stretches; ``ratio`` is the median over neighbours, 1 if the harness adds nothing.
    ``tflops`` is what the product reached.
    """
    gpu = device.type == "cuda"
    size = size or (8192 if gpu else 768)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16 if gpu else torch.float32) for _ in range(2))

    def multiply() -> None:
        torch.mm(a, b)

    once = median_milliseconds(multiply, device, warmups=3, timed=3)
    calls = calls_for(0.02, once)

    def harness() -> float:
        return statistics.mean(time_calls(multiply, device, calls))

    def directly() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            torch.mm(a, b)
        synchronize(device)
        return 1e3 * (time.perf_counter() - begin) / calls

    timed: list[float] = []
    direct: list[float] = []
    for turn in range(30):
        for measure, times in ((harness, timed), (directly, direct))[:: 1 if turn % 2 else -1]:
            times.append(measure())
    return {
        "size": size,
        "harness_ms": statistics.median(timed),
        "direct_ms": statistics.median(direct),
        "ratio": statistics.median(harness / plain for harness, plain in zip(timed, direct, strict=True)),
        "tflops": 2 * size**3 / statistics.median(timed) / 1e9,
    }
