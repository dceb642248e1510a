"""Published accuracies, with their sources."""

from pathlib import Path
from typing import Any

from ..files import read_json


def published() -> dict[str, Any]:
    """The published accuracies that the paper's supplement lists, each with its source."""
    return read_json(Path(__file__).with_name("published.json"))
