"""Redraw the figures of the documentation: python benchmarks/figures.py"""

from pathlib import Path

from pages.eager_figure import draw_eager
from pages.kernel_figures import draw_kernels

from infsa.files import read_json
from infsa.report import figures

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    figures.draw_five_tokens(IMAGES / "five-tokens.png")
    kernels, models = RESULTS / "kernels-growth-h200.json", RESULTS / "models-h200.json"
    if kernels.exists():
        draw_kernels(read_json(kernels), IMAGES / "kernels", read_json(models) if models.exists() else None)
    eager = RESULTS / "eager-h200.json"
    if eager.exists():
        draw_eager(read_json(eager), IMAGES / "kernels" / "eager.png")


if __name__ == "__main__":
    main()
