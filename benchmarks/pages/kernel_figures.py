"""Figures of the GPU kernels, from the files of ``benchmarks/kernels.py`` and ``benchmarks/models.py``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from infsa.report.bench_figures import save
from infsa.report.figures import BLUE, GREY, INK, ORANGE, RED
from infsa.report.quality_figures import GREEN
from infsa.report.training import tidy

Content = dict[str, Any]
NAMES = {
    "infsa": "Pure InfSA, Triton",
    "sdpa_cudnn": "softmax, cuDNN",
    "sdpa_flash": "softmax, flash",
    "flex_relu": "Pure InfSA, FlexAttention",
    "plain": "Pure InfSA, plain PyTorch",
}
COLOURS = {"infsa": RED, "sdpa_cudnn": INK, "sdpa_flash": GREY, "flex_relu": GREEN, "plain": ORANGE}
MODELS = {"linear": ("Linear InfViT-4L", BLUE), "pure": ("Pure InfViT-4L", RED), "vit": ("ViT-4L, fused softmax", INK)}
HALF_BYTES = 2


def draw_kernels(kernels: Content, folder: str | Path, models: Content | None = None) -> list[Path]:
    """The roofline and the growth with N; with whole models beside it where they were measured."""
    if not kernels.get("pure"):
        raise ValueError("the result of benchmarks/kernels.py holds no speed: was a check red?")
    folder = Path(folder)
    drawn = [save(roofline(kernels), folder / "roofline.png")]
    return [*drawn, save(growth(kernels, models), folder / "growth.png")]


def intensity(heads: int, width: int, n: int) -> float:
    """Floating-point operations of a forward pass per byte of q, k, v and the output in half precision."""
    return 4 * heads * n * n * width / (4 * heads * n * width * HALF_BYTES)


def roofline(kernels: Content) -> Figure:
    """Roofline of the forward passes; triangles, dots and squares are heads of width 16, 64 and 128."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    peak, stream = kernels["ceilings"]["tflops"], kernels["ceilings"]["tb_per_s"]
    edges = [64.0, peak / stream, 1e5]
    axes.plot(edges, [min(peak, x * stream) for x in edges], color=GREY, linewidth=1.5, zorder=1)
    axes.annotate(f"matrix product, {peak:.0f} TFLOP/s", (edges[1], peak), ha="left", va="bottom", color=INK)
    for name, label in NAMES.items():
        rows = [row for row in forward_rows(kernels) if "tflops" in row["times"].get(name, {})]
        for place, row in enumerate(rows):
            x, y = intensity(row["heads"], row["width"], row["n"]), row["times"][name]["tflops"]
            mark = {16: "^", 64: "o", 128: "s"}.get(row["width"], "d")
            axes.plot([x], [y], mark, color=COLOURS[name], label=None if place else label, markersize=5)
    axes.set(xscale="log", yscale="log", xlabel="FLOPs per byte of inputs and output", ylabel="TFLOP/s")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    _finish(axes, f"Attention forward, bfloat16, {kernels['provenance'].get('gpu', '')}")
    return figure


def growth(kernels: Content, models: Content | None = None) -> Figure:
    """Time over the number of tokens: attention at 16 heads of width 64, and whole models."""
    figure = Figure(figsize=(11 if models else 6, 4.2), layout="constrained")
    left, *right = figure.subplots(1, 2 if models else 1, squeeze=False)[0]
    rows = [row for row in forward_rows(kernels) if (row["heads"], row["width"]) == (16, 64)]
    for name, label in NAMES.items():
        _line(left, ((r["n"], r["times"].get(name, {})) for r in rows), COLOURS[name], label)
    _axes_of_time(left, "Attention forward, 16 heads of width 64")
    for axes in right:
        assert models is not None
        for name, (label, colour) in MODELS.items():
            found = (r for key, r in models["rows"].items() if key.startswith(f"{name} fast infer "))
            _line(axes, (((r["pixels"] // 16) ** 2 + 1, r) for r in found if "pixels" in r), colour, label)
        _axes_of_time(axes, "Whole models, inference")
    return figure


def forward_rows(kernels: Content) -> list[dict[str, Any]]:
    """The forward rows of every part of the file."""
    rows = [row for part in ("pure", "growth", "flex") for row in kernels.get(part, [])]
    return [row for row in rows if row["passes"] == "forward"]


def _line(axes: Axes, points: Iterable[tuple[int, dict[str, Any]]], colour: str, label: str) -> None:
    known = sorted({n: t for n, t in points if "ms" in t}.items())
    if not known:
        return
    spreads = [t["spread"] / 2 for _, t in known]
    axes.errorbar(
        [n for n, _ in known], [t["ms"] for _, t in known], spreads, color=colour, label=label, marker="o", markersize=4
    )


def _axes_of_time(axes: Axes, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="ms")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    _finish(axes, title)


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10.5, color=INK)
    tidy(axes)
