"""``infsa info``: what is installed and what can run here."""

import importlib.metadata
import os
import platform
from typing import Any

from rich.console import Console
from rich.table import Table

from ..version import __version__
from .options import Json, print_json

OPTIONAL = ("timm", "triton", "torchvision", "lightning", "transformers", "onnxruntime", "gradio")


def installed(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def collect() -> dict[str, Any]:
    """Versions, devices and implementations, as plain data."""
    import torch

    from ..ops.dispatch import AVAILABLE

    devices = [f"cpu ({os.cpu_count()} cores, {torch.get_num_threads()} threads)"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} ({properties.name}, {properties.total_memory / 2**30:.0f} GiB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return {
        "infsa": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {name: installed(name) for name in OPTIONAL},
        "devices": devices,
        "implementations": list(AVAILABLE),
    }


def info(as_json: Json = False) -> None:
    """Show versions, devices and the available implementations.

    Example: infsa info --json
    """
    facts = collect()
    print_json(facts, as_json)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    for name in ("infsa", "python", "torch"):
        table.add_row(name, facts[name])
    for name, version in facts["packages"].items():
        table.add_row(name, version or "[dim]not installed[/dim]")
    table.add_row("devices", "\n".join(facts["devices"]))
    table.add_row("implementations", ", ".join(facts["implementations"]))
    Console(quiet=as_json).print(table)
