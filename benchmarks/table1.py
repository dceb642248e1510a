"""Draw the figures and fill in the tables of docs/benchmarks.md, from the result file only.

infsa bench --preset table1 --preset resolution --preset compiled --out benchmarks/results/bench-h200.json
infsa bench --preset limits --memory-cap 40GiB --time-limit 3 --out benchmarks/results/bench-h200.json
python benchmarks/table1.py
"""

from pathlib import Path

from pages import paper_table
from pages.accuracy import accuracy_figure
from pages.marks import write_tables

from infsa.bench.results import read_results
from infsa.report.bench_figures import draw_bench, save
from infsa.report.bench_tables import machine_line

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images" / "bench"
FIGURES = ("dashboard", "tiers", "depths", "latency", "memory", "growth")  # those that the page shows


def main() -> None:
    """Every table and figure of the page."""
    content = read_results(ROOT / "benchmarks" / "results" / "bench-h200.json")
    draw_bench(content, IMAGES, FIGURES)
    save(accuracy_figure(), IMAGES / "accuracy.png")
    tables = {
        "claims": paper_table.claim_table(content).markdown(),
        "resolution": paper_table.resolution_table(content).markdown(),
        "large": paper_table.large_table(content).markdown(),
        "crossover": paper_table.crossover_table(content).markdown(),
        "machine": machine_line(content) + "\n",
    }
    write_tables(ROOT / "docs" / "benchmarks.md", tables)


if __name__ == "__main__":
    main()
