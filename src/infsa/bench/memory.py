"""Peak memory, artificial caps, and the search for the largest size that runs."""

import ctypes
import gc
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from .cases import Case
from .flops import formula

OVER = 1.15  # how far beyond the time limit a search reaches
GPU_WORDS = ("CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
HOST_WORDS = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")


def settle(device: torch.device) -> None:
    """Give back what is not in use, so that the next peak is that of the next call."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def used(device: torch.device) -> int | None:
    """Bytes in use now: the allocator's on a GPU, resident memory elsewhere; None where it cannot be told."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _resident("VmRSS")


def reset_peak(device: torch.device) -> None:
    """Forget the peak so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak(device: torch.device) -> int | None:
    """The most bytes in use since :func:`reset_peak`; None where it cannot be told."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident("VmHWM")


def _resident(field: str) -> int | None:
    try:
        found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def cap_memory(device: torch.device, cap: int) -> None:
    """Let this process use ``cap`` more bytes: of a GPU's memory, or of address space beyond what it has now."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        index = torch.cuda.current_device() if device.index is None else device.index  # torch 2.11 asks for one
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), index)
        return
    now = _resident("VmSize")
    if now is None:
        raise ValueError("a memory cap on the CPU needs Linux's /proc")
    resource.setrlimit(resource.RLIMIT_AS, (now + cap, resource.getrlimit(resource.RLIMIT_AS)[1]))


def resource_of(error: BaseException) -> str | None:
    """Which memory ran out, or None if the error is of another kind."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or any(word in text for word in GPU_WORDS):
        return "GPU memory"
    if isinstance(error, MemoryError) or any(word in text for word in HOST_WORDS):
        return "host memory"
    return None


def explain(error: BaseException) -> str:
    """An error as one short line.

    Example:
        >>> explain(ValueError("first\\nsecond"))
        'ValueError: first'
    """
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:240].rstrip(": ")


class Probe(NamedTuple):
    """One attempt of a search: the size, and what ran out (None: it ran)."""

    size: int
    ran_out: str | None


class Found(NamedTuple):
    """The largest size that ran (0: none), what the next one ran out of (None: nothing), and all attempts."""

    size: int
    ran_out: str | None
    probes: list[Probe]


def largest(
    try_size: Callable[[int], str | None],
    start: int,
    most: int,
    tolerance: float = 0.0,
    grow: Callable[[int], int] = lambda size: 2 * size,
) -> Found:
    """Grow from ``start`` until a size fails, then bisect, until the gap is 1 or ``tolerance`` of the size.

    ``try_size`` returns what ran out, or None. Sizes above ``most`` are not tried. ``grow`` says what to try after a
    size that ran, at least 1 more.

    Example:
        >>> largest(lambda size: "memory" if size > 70 else None, start=8, most=1000).size
        70
    """
    probes: list[Probe] = []

    def runs(size: int) -> bool:
        probes.append(Probe(size, try_size(size)))
        return probes[-1].ran_out is None

    good, bad, size = 0, most + 1, min(start, most)
    while good < most and bad > most:
        if runs(size):
            good, size = size, min(max(grow(size), size + 1), most)
        else:
            bad = size
    while bad <= most and bad - good > max(1, tolerance * good):
        middle = (good + bad) // 2
        if runs(middle):
            good = middle
        else:
            bad = middle
    ran_out = next((probe.ran_out for probe in probes if probe.size == bad), None)
    return Found(good, ran_out, probes)


def next_side(case: Case, side: int, seconds: float, limit: float) -> int:
    """Twice the side, or less where the multiply-adds say that it would take far longer than the limit."""
    allowed = OVER * limit / seconds * formula(case.at(side))
    sides = range(side + case.patch, 2 * side, case.patch)
    return next((larger for larger in sides if formula(case.at(larger)) > allowed), 2 * side)
