"""Memory: what a process holds, what it may hold, and what a stream needs."""

import ctypes
import os
import re
from pathlib import Path

import torch

from ..machine import available, container_room, show_bytes

__all__ = ["available", "container_room", "on_gpu", "parse_bytes", "resident", "show_bytes", "trim"]
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20,
         "gib": 2**30, "tib": 2**40, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}  # fmt: skip


def parse_bytes(text: str | int, name: str = "memory") -> int:
    """A number of bytes from ``"2GiB"``, ``"500 MB"`` or a whole number."""
    if isinstance(text, int) and not isinstance(text, bool):
        number, unit = float(text), ""
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
        if match is None or match[2].lower() not in UNITS:
            raise ValueError(f"{name} must be a size such as 2GiB, 500MB or a number of bytes, got {text!r}")
        number, unit = float(match[1]), match[2].lower()
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {text!r}")
    return int(number * UNITS[unit])


def resident() -> int:
    """Bytes of memory that this process holds now (its resident set)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc: the peak so far stands in for it
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def on_gpu(device: torch.device) -> tuple[int, int, int]:
    """Bytes on a GPU: held by tensors of this process, free, and all there are."""
    free, total = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.memory_allocated(device), free + cached, total


def trim() -> None:
    """Have the C library give freed memory back, where it can."""
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if release is not None:
        release(0)
