"""The accuracy curves of docs/training.md."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from infsa.report.figures import BLUE, GREY, INK, ORANGE, RED
from infsa.report.training import tidy

MECHANISM_NAMES = {"softmax": "softmax", "infsa_pure": "Pure InfSA", "infsa_linear": "Linear-InfSA", "mean": "mean"}
MECHANISM_COLOURS = {"softmax": INK, "infsa_pure": ORANGE, "infsa_linear": BLUE, "mean": RED}


def draw_comparison(shards: dict[str, dict[str, list[dict[str, Any]]]], path: str | Path) -> Path:
    """Validation accuracy over the epochs: one panel per shard, one colour per mechanism, one line per seed."""
    figure = Figure(figsize=(4.8 * len(shards), 3.6), layout="constrained")
    panels = figure.subplots(1, len(shards), squeeze=False)[0]
    for axes, (shard, mechanisms) in zip(panels, shards.items(), strict=True):
        for name, runs in mechanisms.items():
            for index, run in enumerate(runs):
                label = MECHANISM_NAMES.get(name, name) if index == 0 else None
                colour = MECHANISM_COLOURS.get(name, GREY)
                axes.plot(*_over_epochs(run["history"]), color=colour, linewidth=1.1, alpha=0.9, label=label)
        axes.set(xlabel="epoch", ylabel="validation top-1, %", title=f"shard {shard}")
        axes.legend(frameon=False, loc="lower right")
        tidy(axes)
    figure.savefig(path, dpi=130)
    return Path(path)


def _over_epochs(history: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [row["epoch"] for row in history], [100 * row["top1"] for row in history]
