"""Fill in the measured facts of README.md and the pages, and draw the idea: python benchmarks/facts.py"""

from pathlib import Path

from pages.front import front_table
from pages.kernel_tables import attention_table, linear_table, model_table
from pages.marks import write_tables
from pages.scale import TABLES as SCALE

from infsa.files import read_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def measured(name: str) -> dict[str, object]:
    """A result file."""
    return read_json(RESULTS / f"{name}.json")


TABLES = {
    "README.md": {"front": front_table},
    "docs/scale.md": SCALE,
    "docs/kernels.md": {
        "attention": lambda: attention_table(measured("kernels-h200"), measured("pure-h200")),
        "linear": lambda: linear_table(measured("linear-choice-h200")),
        "models": lambda: model_table(measured("models-h200")),
    },
}


def draw() -> None:
    """The pictures of docs/idea.md, from the demonstration."""
    from pages.gallery import draw_gallery

    from infsa.report.demo import look_at, run_demo
    from infsa.report.demo_page import draw_demo
    from infsa.report.photographs import example_images

    folder = ROOT / "docs" / "images" / "idea"
    for path in draw_demo(run_demo(), folder):
        if path.stem == "five-tokens":  # the page has it already
            path.unlink()
    free = {name: image for name, image in example_images().items() if name in ("cat", "rocket", "portrait")}
    found = look_at(free)
    draw_gallery(list(free.values()), list(found.explanations.values()), folder / "maps.png", list(free))


def main() -> None:
    for document, tables in TABLES.items():
        write_tables(ROOT / document, {name: table() for name, table in tables.items()})
    draw()


if __name__ == "__main__":
    main()
