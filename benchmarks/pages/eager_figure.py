"""The figure of eager models, from the file of ``benchmarks/eager.py``."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from infsa.report.bench_figures import save
from infsa.report.figures import BLUE, GREY, INK, RED
from infsa.report.quality_figures import GREEN
from infsa.report.training import tidy

KINDS = {
    "linear": ("Linear-InfSA", BLUE),
    "pure": ("Pure InfSA", RED),
    "timm": ("timm's ViT", GREY),
    "written": ("Linear-InfSA as its equations stand", GREEN),
}
MODES = {"train": "Training step", "infer": "Inference"}
CASES = ("4 224 64", "4 512 1", "24 224 64", "24 384 32", "24 512 1", "24 1024 4")


def draw_eager(content: dict[str, Any], path: Path) -> Path:
    """Time over that of our ViT, of whole models by size."""
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    rows, (left, right) = content["rows"], figure.subplots(1, 2)
    for (mode, title), axes in zip(MODES.items(), (left, right), strict=True):
        kinds = [kind for kind in KINDS if any(mode in rows[case].get(kind, {}) for case in CASES)]
        width = 0.8 / len(kinds)
        for place, kind in enumerate(kinds):
            label, colour = KINDS[kind]
            times = [rows[case].get(kind, {}).get(mode) for case in CASES]
            pairs = zip(times, (rows[case]["vit"][mode] for case in CASES), strict=True)
            ratios = [ours["ms"] / vit["ms"] if ours else 0 for ours, vit in pairs]
            axes.bar(
                [x + (place - (len(kinds) - 1) / 2) * width for x in range(len(CASES))],
                ratios,
                width,
                color=colour,
                label=label,
            )
        axes.axhline(1, color=INK, linewidth=1)
        axes.set(title=title, ylabel="time / ViT with fused softmax")
        axes.set_xticks(range(len(CASES)), [_name(case) for case in CASES], fontsize=8)
        tidy(axes)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=len(KINDS), frameon=False)
    return save(figure, path)


def _name(case: str) -> str:
    layers, side, batch = case.split()
    return f"{layers} layers\n{side}²\nbatch {batch}"
