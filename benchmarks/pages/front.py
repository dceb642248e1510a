"""What the front page shows: a table of measurements, from the committed results."""

import statistics
from pathlib import Path

from infsa.files import read_json
from infsa.report.bench_tables import number
from infsa.report.table import Table

RESULTS = Path(__file__).parents[1] / "results"
NAMES = {"softmax": "softmax", "infsa_pure": "Pure InfSA", "infsa_linear": "Linear-InfSA"}
KINDS = ("vit", "pure", "linear")  # the same three in the files about speed
EAGER = {
    "24 layers, eager, 224², batch 64: training step, ms": ("24 224 64", "train"),
    "24 layers, eager, 1024², batch 4: training step, ms": ("24 1024 4", "train"),
}
QUESTIONS = ("majority", "max", "top", "multi")  # about the digits in a large image
FAST = {
    "4 layers, `fast`, 1024²: inference, ms": "infer 1024",
    "4 layers, `fast`, 4096²: inference, ms": "infer 4096",
    "4 layers, `fast`, 4096²: training step, ms": "train 4096",
}


def front_table() -> str:
    """Speed of whole models, accuracy on small images, accuracy and speed on large ones: three mechanisms."""
    files = [read_json(RESULTS / f"{name}-h200.json") for name in ("eager", "models")]
    (gpu,) = {content["provenance"]["gpu"] for content in files}
    eager, fast = (content["rows"] for content in files)
    rows = [
        [label, *(number(eager[size][kind][mode]["ms"]) for kind in KINDS)] for label, (size, mode) in EAGER.items()
    ]
    rows += [
        [label, *(number(fast.get(f"{kind} fast {case}", {}).get("ms")) for kind in KINDS)]
        for label, case in FAST.items()
    ]
    both = [" / ".join(accuracy(shard, name).split(" ")[0] for shard in "ab") for name in NAMES]
    rows.append(["Tiny-ImageNet, two sets of 50 classes: top-1, %", *both])
    return Table([f"measured on one {gpu}", *NAMES.values()], rows + large_images()).markdown()


def large_images() -> list[list[str]]:
    """Five digits in an image of 1500² pixels: right answers to four questions, and the time of a training step."""
    found = read_json(RESULTS / "high-resolution-h200.json")
    runs = [found["softmax"], None, found["linear"]]  # Pure InfSA was not trained on them
    right = [
        "–" if run is None else f"{100 * statistics.mean(run['test'][name] for name in QUESTIONS):.1f}" for run in runs
    ]
    steps = ["–" if run is None else number(run["stages"][-1]["ms_per_step"]) for run in runs]
    return [
        ["five digits in 1500² images: mean accuracy of four tasks, %", *right],
        ["the same: training step, ms", *steps],
    ]


def accuracy(shard: str, name: str) -> str:
    """Top-1 on a shard of Tiny-ImageNet in percent, mean ± deviation over seeds."""
    values = [100 * run["top1"] for run in read_json(RESULTS / f"tiny-imagenet-{shard}.json")[name]]
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
