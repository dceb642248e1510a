"""What a classifier takes for what: tables for files and a figure."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data.paths import shown
from ..files import write_atomically
from .figures import one_panel

if TYPE_CHECKING:
    from ..evaluate.accuracy import Accuracy

NAMED, COUNTED = 60, 15  # classes up to which the figure has names, and numbers


def write_report(found: "Accuracy", folder: Path, ending: str = "") -> list[Path]:
    """Write ``per-class.csv``, ``confusion.csv`` and ``confusion.png`` and return their paths."""
    files = [folder / f"{name.replace('.', f'{ending}.')}" for name in ("per-class.csv", "confusion.csv")]
    matrix, rows, columns = seen(found)
    names = found.unique_classes
    per_class = [(names[i], found.counts[i], found.hits[i], found.per_class[names[i]]) for i in range(len(names))]
    _write(files[0], [("class", "images", "right", "top1"), *per_class])
    counts = [[names[row], *matrix[row, columns].tolist()] for row in rows]
    _write(files[1], [["true class / taken for", *(names[column] for column in columns)], *counts])
    figure = folder / f"confusion{ending}.png"
    draw_confusion(found, figure)
    return [*files, figure]


def seen(found: "Accuracy") -> tuple[NDArray[np.int64], list[int], list[int]]:
    """The matrix of (true class, taken for), the classes that have images, and those and whatever was taken for one."""
    matrix = np.asarray(found.confusion, np.int64)
    rows = np.flatnonzero(matrix.sum(1))
    return matrix, rows.tolist(), np.flatnonzero(matrix.sum(0) + matrix.sum(1)).tolist()


def draw_confusion(found: "Accuracy", path: str | Path) -> None:
    """The share of every class that is taken for each, as a picture."""
    matrix, rows, columns = seen(found)
    part = matrix[np.ix_(rows, columns)]
    shares = part / part.sum(1, keepdims=True)
    side = min(14.0, 4.0 + 0.24 * len(columns))
    figure, axes = one_panel(side + 1, min(14.0, 3.2 + 0.24 * len(rows)))
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    figure.colorbar(image, ax=axes, label="share of the true class")
    for places, set_ticks, turn in ((columns, axes.set_xticks, 90), (rows, axes.set_yticks, 0)):
        labels = [_label(found.unique_classes[place]) for place in places] if len(places) <= NAMED else []
        set_ticks(range(len(labels)), labels, rotation=turn, fontsize=8, parse_math=False)
    if len(columns) <= COUNTED:
        for (row, column), count in np.ndenumerate(part):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    axes.set(xlabel="predicted class", ylabel="true class", title=f"{found.images:,} images, {found.top1:.1%} correct")
    write_atomically(Path(path), lambda aside: figure.savefig(aside, dpi=130))


def _label(name: str) -> str:
    text = shown(name)
    return text if len(text) <= 24 else f"{text[:23]}…"


def _write(path: Path, rows: list[Any]) -> None:
    def write(aside: Path) -> None:
        with open(aside, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            csv.writer(file).writerows(rows)

    write_atomically(path, write)
