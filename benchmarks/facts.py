"""Fill in the measured facts of README.md and the pages, and draw the idea: python benchmarks/facts.py"""

import statistics
from pathlib import Path

from pages.kernel_tables import attention_table, linear_table, model_table
from pages.marks import write_tables

from infsa.bench.cases import Case
from infsa.bench.presets import FOUR
from infsa.bench.results import read_results
from infsa.files import read_json
from infsa.report.bench_tables import latency, number
from infsa.report.quality_tables import cell
from infsa.report.table import Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NAMES = {"softmax": "softmax", "infsa_pure": "Pure InfSA", "infsa_linear": "Linear-InfSA"}
FAST = {
    "inference, 1024²": "infer 1024",
    "inference, 4096²": "infer 4096",
    "inference, 9216²": "infer 9216",
    "training step, 4096²": "train 4096",
}
BENCH = {"softmax": "softmax-cudnn", "infsa_pure": "infsa_pure", "infsa_linear": "infsa_linear"}


def facts_table() -> str:
    """The README's table: three mechanisms, measured."""
    quality, alignment = (read_json(RESULTS / f"{name}.json")["groups"] for name in ("attention-quality", "alignment"))
    rows = [[f"top-1, shard {shard}, %", *(accuracy(shard, name) for name in NAMES)] for shard in "ab"]
    removal = [quality[name]["removal"]["mean"]["methods"]["last"] for name in NAMES]
    boxes = [quality[name]["boxes"]["rules"]["centre"]["methods"]["last"] for name in NAMES]
    rows.append(["MoRF-AOC of the map, %", *(cell(found["aoc"], images=False) for found in removal)])
    rows.append(
        [
            "the same, less that of a random order, %",
            *(cell(found["aoc_over_random"], images=False) for found in removal),
        ]
    )
    rows.append(["ROC-AUC of the map against boxes, %", *(cell(found["roc"], images=False) for found in boxes)])
    cosines = [cell(alignment[name]["all_layers"]["cosine"]["a"], 1, 3, images=False) for name in NAMES]
    rows.append(["cosine of the ranking a with the Perron vector", *cosines])
    return Table(["measured, mean ± deviation over runs", *NAMES.values()], rows).markdown()


def accuracy(shard: str, name: str) -> str:
    values = [100 * run["top1"] for run in read_json(RESULTS / f"tiny-imagenet-{shard}.json")[name]]
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def speed_table() -> str:
    """Times on a GPU: as the models come, softmax fused (``infsa bench``), and by ``infsa.models.fast``."""
    content, quick = read_results(RESULTS / "bench-h200.json"), read_json(RESULTS / "models-h200.json")
    gpu, rows = content["machines"][-1]["gpu"], []
    assert quick["provenance"]["gpu"] == gpu
    for label, side, mode in (("inference, 1024²", 1024, "infer"), ("training step, 512²", 512, "train")):
        found = [content["rows"][Case(name, size=(side, side), mode=mode, **FOUR).key] for name in BENCH.values()]
        rows.append([f"{label}, as it comes, 64 heads", *map(latency, found)])
    for label, case in FAST.items():
        times = [quick["rows"].get(f"{name} fast {case}", {}).get("ms") for name in ("vit", "pure", "linear")]
        rows.append([f"{label}, `fast`, 16 / 16 / 64 heads", *map(number, times)])
    return Table([f"{gpu}, milliseconds", "softmax, fused", "Pure InfSA", "Linear-InfSA"], rows).markdown()


def verdicts_table() -> str:
    """How the paper's claims fared, in one line."""
    counts = read_json(RESULTS / "ledger.json")["counts"]
    return Table(list(counts), [[str(count) for count in counts.values()]]).markdown()


def cost_table() -> str:
    """FLOPs and parameters of the paper's Linear model: printed and counted."""
    targets = read_json(RESULTS / "ledger.json")["targets"]
    rows = {row["claim"]: row for name in ("training-cost", "table1") for row in targets[name]["rows"]}
    wanted = {
        "forward pass at 224²": "forward pass at 224², GFLOPs",
        "InfViT Linear 4L-64H, parameters": "parameters, M",
    }
    lines = [[label, f"{rows[claim]['paper']:g}", f"{rows[claim]['ours']:.2f}"] for claim, label in wanted.items()]
    return Table(["Linear InfViT-4L-64H", "paper", "counted"], lines).markdown()


def candidates_table() -> str:
    """Who is near the Perron vector in trained Linear models."""
    found = read_json(RESULTS / "alignment.json")["groups"]["infsa_linear"]["all_layers"]
    lines = [
        [name, cell(found["cosine"][name], 1, 3, images=False), cell(found["spearman"][name], 1, 3, images=False)]
        for name in ("a", "a, 3 rounds", "power, 1 step", "energy", "uniform")
    ]
    return Table(["candidate", "cosine", "Spearman"], lines).markdown()


def control_table() -> str:
    """Accuracy with and without a mechanism that looks at all."""
    names = {**NAMES, "mean": "mean pooling"}
    lines = [[label, *(accuracy(shard, name) for shard in "ab")] for name, label in names.items()]
    return Table(["attention", "top-1, shard a, %", "top-1, shard b, %"], lines).markdown()


def measured(name: str) -> dict[str, object]:
    """A result file."""
    return read_json(RESULTS / f"{name}.json")


TABLES = {
    "README.md": {"facts": facts_table, "speed": speed_table, "verdicts": verdicts_table},
    "docs/index.md": {"facts": facts_table, "speed": speed_table, "verdicts": verdicts_table},
    "docs/idea.md": {"candidates": candidates_table},
    "docs/faq.md": {"control": control_table, "cost": cost_table, "candidates": candidates_table},
    "docs/choosing.md": {"facts": facts_table, "speed": speed_table},
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
