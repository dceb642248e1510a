"""Draw the figures and fill in the tables of docs/benchmarks.md, from result files only.

infsa bench --preset table1 --preset resolution --preset compiled --out benchmarks/results/bench-h200.json
infsa bench --preset limits --memory-cap 40 --time-limit 3 --out benchmarks/results/bench-h200.json
python benchmarks/table1.py
"""

from pathlib import Path

from pages import paper_table
from pages.accuracy import accuracy_figure
from pages.marks import write_tables

from infsa.bench.cases import VARIANTS
from infsa.bench.results import read_results
from infsa.report import bench_tables
from infsa.report.bench_figures import draw_bench, save
from infsa.report.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images" / "bench"
GPU, CPU = RESULTS / "bench-h200.json", RESULTS / "bench-quick-cpu.json"
NOT_RUN = "Not run yet.\n"
LINEAR = VARIANTS["infsa_linear"].label
CAPTIONS = {
    "dashboard": "Inference at 1024², 4 layers of 64 heads: speed-up, throughput, energy",
    "tiers": "Throughput against energy, inference at 1024², 4 layers of 64 heads; colours are the claimed complexity",
    "depths": "4 layers of 64 heads against 24 of 16, inference at 1024², logarithmic; energy where both were measured",
    "latency": "Time against resolution, 4 layers of 64 heads: inference solid, training dotted",
    "memory": "Peak memory against resolution, 4 layers of 64 heads; fused softmax lies under Pure InfSA",
    "speed-up": "How many times as fast as the best fused softmax, by resolution",
    "growth": "One attention layer of 64 heads: time and memory against the number of tokens",
}


def main() -> None:
    """Every table and figure for which there is a result file; the others say that there is none."""
    tables = {"flop-crossover": bench_tables.flop_crossover_table().markdown()}
    save(accuracy_figure(), IMAGES / "accuracy.png")
    names = ("table1-4l", "table1-24l", "stress", "compiled", "crossover", "limits", "slopes", "checks", "machine",
             "claims", "claims-24l", "resolution")  # fmt: skip
    tables |= dict.fromkeys((*names, "figures"), NOT_RUN)
    if GPU.exists():
        content = read_results(GPU)
        tables |= {name: filled(table) for name, table in gpu_tables(content).items()}
        tables["machine"] = bench_tables.machine_line(content) + "\n"
        drawn = draw_bench(content, IMAGES)
        tables["figures"] = "".join(
            f"![{CAPTIONS[path.stem]}](images/bench/{path.name})\n\n*{CAPTIONS[path.stem]}*\n\n" for path in drawn
        )
    tables["quick"] = tables["quick-figure"] = NOT_RUN
    if CPU.exists():
        content = read_results(CPU)
        tables["quick"] = bench_tables.machine_line(content) + "\n\n" + slopes(content)
        paths = draw_bench(content, IMAGES / "quick")
        tables["quick-figure"] = "".join(f"![{path.stem}](images/bench/quick/{path.name})\n" for path in paths)
    write_tables(ROOT / "docs" / "benchmarks.md", tables)


def gpu_tables(content: dict) -> dict[str, Table | str]:
    """The tables of a run on a GPU, by their marks in the document."""
    return {
        "table1-4l": paper_table.table1(content, "4L-64H"),
        "table1-24l": paper_table.table1(content, "24L-16H"),
        "stress": paper_table.stress_table(content),
        "compiled": paper_table.compiled_table(content),
        "crossover": paper_table.crossover_table(content),
        "claims": paper_table.claim_table(content),
        "claims-24l": paper_table.claim_table(content, "24L-16H"),
        "resolution": paper_table.resolution_table(content),
        "limits": bench_tables.limit_table(content),
        "slopes": slopes(content),
        "checks": bench_tables.check_table(content),
    }


def filled(table: Table | str) -> str:
    """A table in Markdown, or the words that there is none."""
    if isinstance(table, Table):
        return table.markdown() if table.rows else NOT_RUN
    return table or NOT_RUN


def slopes(content: dict) -> str:
    """The slope tables that have Linear-InfSA, each under its name."""
    found = {name: table for name, table in bench_tables.slope_tables(content).items() if LINEAR in str(table.rows)}
    return "\n".join(f"{name}:\n\n{table.markdown()}" for name, table in found.items())


if __name__ == "__main__":
    main()
