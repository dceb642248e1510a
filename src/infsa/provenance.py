"""Where a number came from: versions and machine, without names of hosts or people."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

from .version import __version__


def provenance(device: torch.device | str | None = None) -> dict[str, Any]:
    """Versions, processor and, for a CUDA device, the GPU: what every result file records."""
    facts: dict[str, Any] = {
        "infsa": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device is not None and torch.device(device).type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
