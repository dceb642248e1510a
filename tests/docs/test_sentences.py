"""What the pages say in words follows from the committed result files: trainings, maps, decays.

A sentence is found by its mark, ``<!--holds:id-->`` behind it, so that its wording is free.
"""

import math
import re
import statistics
from pathlib import Path

import pytest

from infsa.files import read_json

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def quality(name):
    return read_json(RESULTS / "attention-quality.json")["groups"][name]


def top1(shard, name):
    runs = read_json(RESULTS / f"tiny-imagenet-{shard}.json")[name]
    return sum(run["top1"] for run in runs) / len(runs)


def softmax_first():
    return all(top1(s, "softmax") > top1(s, n) for s in "ab" for n in ("infsa_pure", "infsa_linear", "mean"))


def optimizers():
    """Of all trainings whose accuracy the pages compare: their sentences name it."""
    files = [read_json(RESULTS / f"tiny-imagenet-{shard}.json") for shard in "ab"]
    return {run["recipe"]["optimizer"] for file in files for runs in file.values() for run in runs}


def removal(name, key):
    return quality(name)["removal"]["mean"]["methods"]["last"][key]


def roc(name, method="last", rule="centre"):
    return quality(name)["boxes"]["rules"][rule]["methods"][method]["roc"]


METHODS = ("last", "rollout", "tokenrank", "katz", "degree")


def aoc_over_random(name, method):
    group = read_json(RESULTS / "attention-quality-rivals.json")["groups"][name]
    return group["removal"]["mean"]["methods"][method]["aoc_over_random"]["mean"]


def rival_boxes(name, method):
    group = read_json(RESULTS / "attention-quality-rivals.json")["groups"][name]
    return group["boxes"]["rules"]["centre"]["methods"][method]["roc"]["mean"]


def fill_cells():
    """For every fill but the mean, MoRF-AOC minus random of the three mechanisms."""
    groups = read_json(RESULTS / "attention-quality-fills.json")["groups"]
    for fill in ("black", "blur", "road", "tokens"):
        yield [groups[name]["removal"][fill]["methods"]["last"]["aoc_over_random"] for name in THREE]


def cosine(candidate):
    """With the Perron vector, in trained Linear models."""
    return read_json(RESULTS / "alignment.json")["groups"]["infsa_linear"]["all_layers"]["cosine"][candidate]["mean"]


def points():
    return read_json(RESULTS / "ablation.json")["rows"]


def decays():
    return [row for row in points() if row["point"]["activation"] == "relu"]


def better(a, b):
    """Whether a point of the ablation has the higher top-1, beyond two standard errors over three seeds."""
    error = math.hypot(*(row["deviation"]["top1"] / 3**0.5 for row in (a, b)))
    return a["mean"]["top1"] - b["mean"]["top1"] > 2 * error


def error(cell, name):
    return cell["over_runs"] / math.sqrt(quality(name)["runs"])


def ahead(a, b):
    """Beyond two standard errors."""
    (first, first_name), (second, second_name) = a, b
    return first["mean"] - second["mean"] > 2 * math.hypot(error(first, first_name), error(second, second_name))


def speed(name, *keys):
    """A row of a result file about whole models."""
    found = read_json(RESULTS / f"{name}-h200.json")["rows"]
    for key in keys:
        found = found[key]
    return found["ms"]


def right_answers(name):
    """Right answers to the four questions about digits in large images, on average."""
    found = digits(name)["test"]
    return sum(found[question] for question in ("majority", "max", "top", "multi")) / 4


def small_share(name):
    """The share of the training time that a run spent on images smaller than the last."""
    *small, last = [stage["seconds"] for stage in digits(name)["stages"]]
    return sum(small) / (sum(small) + last)


def adapted(way):
    """Top-1 of a converted model after every stage of its adaptation, in percent."""
    return {row["stage"]: 100 * row["top1"] for row in read_json(RESULTS / "adaptation.json")[way]["history"]}


def lost(way):
    """Points of top-1 that a converted model lacks after adaptation."""
    return adapted(way)["original"] - adapted(way)["labels"]


def gained(way):
    """Points of top-1 that each stage of an adaptation added."""
    stages = ("converted", "layers", "logits", "labels")
    found = [adapted(way)[stage] for stage in stages]
    return {stage: after - before for stage, before, after in zip(stages[1:], found, found[1:], strict=False)}


WAYS = ("pure", "linear", "linear, surgery")
THREE = ("softmax", "infsa_pure", "infsa_linear")


def gap(first, second, key):
    return 100 * (removal(first, key)["mean"] - removal(second, key)["mean"])


def leads(name, key):
    """Whether a mechanism is ahead of softmax beyond the noise."""
    return ahead((removal(name, key), name), (removal("softmax", key), "softmax"))


def sharper(kind):
    """The verdict of the ledger on the claim that maps are sharper than those of softmax."""
    rows = read_json(RESULTS / "ledger.json")["targets"]["fig-comparison"]["rows"]
    return next(row["verdict"] for row in rows if row["claim"].startswith(kind))


def order_gap():
    """How much faster Linear falls than softmax when patches go at random."""
    found = [quality(name)["removal"]["mean"]["random"]["aoc"]["mean"] for name in ("infsa_linear", "softmax")]
    return 100 * (found[0] - found[1])


def below(name):
    return [100 * (top1(shard, "softmax") - top1(shard, name)) for shard in "ab"]


def left_over():
    """Linear's lead over softmax in AOC over random, in points and in standard errors."""
    cells = [(removal(name, "aoc_over_random"), name) for name in ("infsa_linear", "softmax")]
    lead = cells[0][0]["mean"] - cells[1][0]["mean"]
    return 100 * lead, lead / math.hypot(*(error(*cell) for cell in cells))


def spreads():
    """Deviations over runs of every column of the two main tables, in points."""
    for name in THREE:
        boxes = quality(name)["boxes"]["rules"]["centre"]["methods"]["last"]
        cells = [removal(name, key) for key in ("aoc", "aoc_over_random", "lerf_auc", "abpc")]
        cells += [boxes[key] for key in ("roc", "ap", "pooled_roc", "pooled_ap", "pointing")]
        yield from (100 * cell["over_runs"] for cell in cells)


def digits(name):
    return read_json(RESULTS / "high-resolution-h200.json")[name]


def digits_gap(first, second):
    """Points of accuracy by which one run is ahead of another, by task."""
    one, other = digits(first)["test"], digits(second)["test"]
    return {task: 100 * (one[task] - other[task]) for task in ("majority", "max", "top", "multi")}


def before_last(name):
    """Mean accuracy on the test images when the last stage began, over the four tasks, in points."""
    run = digits(name)
    found = next(row["test"] for row in run["history"][::-1] if row["stage"] < len(run["stages"]) - 1 and row["test"])
    return 25 * sum(found[task] for task in ("majority", "max", "top", "multi"))


def last_stage(first, second, key):
    """The ratio of two runs in their last stage."""
    return digits(first)["stages"][-1][key] / digits(second)["stages"][-1][key]


def streamed(dtype):
    """Seconds per megapixel on the GPU: in memory, by recompute, by spill to its memory and to the host's."""
    rows = read_json(RESULTS / "streaming-gpu.json")["gpu"]["rows"]
    return [row["seconds_per_megapixel"] for row in rows if row["dtype"] == f"torch.{dtype}"]


def spilled_on_cpu():
    """Seconds per megapixel of the tiny model on two cores, tokens kept: more than 0.6 is a minute per hundred."""
    found = read_json(RESULTS / "streaming.json")
    assert {part["provenance"]["cores"] for part in (found["image"], found["strategies"])} == {2}
    rows = [found["image"], *found["strategies"]["rows"]]
    return [row["seconds_per_megapixel"] for row in rows if row["strategy"] == "spill"]


def projected():
    """Seconds for a slide of ten gigapixels streamed on one GPU in bfloat16, by every strategy."""
    rows = read_json(RESULTS / "scale-plan.json")["large"]
    assert {(row["side"], row["device"]) for row in rows if row["dtype"] == "bfloat16"} == {(100_000, "NVIDIA H200")}
    rows = [row for row in rows if (row["dtype"], row["team"]) == ("bfloat16", 1)]
    return [row["seconds"] for row in rows if row["strategy"] != "in memory"]


def file_costs():
    """Times of files over those of decoding them alone: JPEG, TIFFs."""
    rows = read_json(RESULTS / "streaming-gpu.json")["files"]["rows"]
    return [[row["ratio"] for row in rows if ("TIFF" in row["image"]) is tiled] for tiled in (False, True)]


def file_decoding(image):
    rows = read_json(RESULTS / "streaming-gpu.json")["files"]["rows"]
    return next(row["decoding_alone"] for row in rows if row["image"] == image)


def traffic():
    """The bytes of a layer of Linear-InfSA, by what may change them: layer and ranks."""
    found = {}
    for row in read_json(RESULTS / "communication.json")["rows"]:
        if row["attention"] == "infsa_linear":
            key = row["dim"], row["ranks"]
            found.setdefault(key, set()).add((row["forward_all_reduce_bytes"], row["forward_send_bytes"]))
    return found


def embed_ratios():
    """Seconds of the loop over those of the command: the median of the rounds, by kind of images."""
    for row in read_json(RESULTS / "cohort.json")["rows"]:
        yield statistics.median(r["loop"]["seconds"] / r["table"]["seconds"] for r in row["rounds"])


def worker_rates():
    return [r["steady_images_per_second"] for r in read_json(RESULTS / "cohort.json")["workers"][0]["rounds"]]


def fed():
    """The rate of training with two workers over that on a batch in memory."""
    found = read_json(RESULTS / "feeding.json")
    for row in found["rows"]:
        if row["workers"] == 2:
            yield statistics.median(row["fed"]) / statistics.median(found["step"])


def ledger_totals():
    """The verdicts that the README counts, in its order."""
    counts = read_json(RESULTS / "ledger.json")["counts"]
    order = ("reproduced", "larger than claimed", "not reproduced", "inconclusive", "supported at small scale")
    order += ("differs at small scale", "not testable here")
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("[The ledger]")[2].partition("<!--holds")[0]
    total, *said = map(int, re.findall(r"\b\d+\b", text.partition("each of")[2]))
    return said == [counts[verdict] for verdict in order] and total == sum(said) == sum(counts.values())


def by_topic(verdict):
    """How many claims of every topic have a verdict, of those that have some."""
    counts = read_json(RESULTS / "ledger.json")["counts_by_topic"]
    return {topic: found[verdict] for topic, found in counts.items() if found[verdict]}


def gains_in_accuracy():
    """The verdicts on the paper's gains in accuracy over softmax."""
    rows = read_json(RESULTS / "ledger.json")["targets"]["table-classification"]["rows"]
    return {row["verdict"] for row in rows if "above softmax in the same recipe" in row["claim"]}


SENTENCES = {
    "docs/conversion.md": {
        "logits-do-the-work": lambda: all(
            gained(way)["logits"] > 4 * gained(way)["layers"] and gained(way)["labels"] <= 0 for way in WAYS
        ),
        "adaptation-gaps": lambda: lost("pure") < 2 < lost("linear") < 4 < lost("linear, surgery"),
        "layers-hurt-linear": lambda: gained("linear")["layers"] < 0,
    },
    "docs/training.md": {
        "train-recorded": lambda: (
            0.6
            < speed("eager-busy", "trainer", "linear", "train") / speed("eager-busy", "trainer, off", "linear", "train")
            < 0.7
        ),
        "one-recipe": lambda: optimizers() == {"nmuon"} and softmax_first(),
        "linear-half-a-point-below": lambda: all(0.25 < x < 0.75 for x in below("infsa_linear")),
        "pure-a-point-below": lambda: all(x > 1 for x in below("infsa_pure")),
        "mean-two-to-three-points-below": lambda: all(1.5 < x < 3.5 for x in below("mean")),
        "gamma-activation-no-effect": lambda: not any(better(a, b) for a in points() for b in points()),
    },
    "docs/attention-quality.md": {
        "linear-aoc-lead-five": lambda: round(gap("infsa_linear", "softmax", "aoc")) == 5,
        "aoc-lead-mostly-brittleness": lambda: order_gap() > gap("infsa_linear", "softmax", "aoc") / 2,
        "aoc-over-random-lead-two": lambda: [round(x) for x in left_over()] == [2, 2],
        "lerf-leads": lambda: (
            [round(gap(name, "softmax", "lerf_auc")) for name in ("infsa_linear", "infsa_pure")] == [2, 3]
            and [leads(name, "lerf_auc") for name in ("infsa_linear", "infsa_pure")] == [False, True]
        ),
        "abpc-lead": lambda: leads("infsa_linear", "abpc"),
        "sharper-pure-only": lambda: (
            sharper("Pure").startswith("supported") and sharper("Linear").startswith("differs")
        ),
        "boxes-order": lambda: (
            abs(roc("infsa_linear")["mean"] - roc("softmax")["mean"]) < 0.01
            and roc("infsa_pure")["mean"] < min(roc("infsa_linear")["mean"], roc("softmax")["mean"])
        ),
        "boxes-below-gaussian": lambda: all(roc(n, "centre")["mean"] > roc(n)["mean"] for n in THREE),
        "gradient-far-ahead": lambda: all(
            aoc_over_random(name, "gradient") > 2 * max(aoc_over_random(name, method) for method in METHODS)
            for name in THREE
        ),
        "gradient-no-better-on-boxes": lambda: all(
            rival_boxes(name, "gradient") < max(rival_boxes(name, method) for method in METHODS) for name in THREE
        ),
        "fills-within-noise": lambda: all(
            max(x["mean"] for x in cells) - min(x["mean"] for x in cells) < min(x["over_runs"] for x in cells)
            for cells in fill_cells()
        ),
        "box-rule": lambda: all(abs(roc(n)["mean"] - roc(n, rule="area")["mean"]) < 0.01 for n in THREE),
        "perron-cosine": lambda: (
            cosine("a") > 0.985
            and cosine("a") - cosine("uniform") > 0.3
            and abs(cosine("power, 3 steps") - cosine("a")) < 0.01
        ),
        "spread-over-runs": lambda: {round(min(spreads())), round(max(spreads()))} == {1, 7},
    },
    "docs/high-resolution.md": {
        "equal-accuracy": lambda: max(map(abs, digits_gap("linear", "softmax").values())) < 1.5,
        "softmax-ready-earlier": lambda: (
            100 * right_answers("softmax") - before_last("softmax") < 1.5
            and 18 < before_last("softmax") - before_last("linear") < 23
        ),
        "step-five-times": lambda: round(last_stage("softmax", "linear", "ms_per_step"), 1) == 5,
        "twelve-times-steps": lambda: (
            last_stage("linear-3000", "softmax-3000", "steps") == 12
            and last_stage("linear-3000", "softmax-3000", "seconds") < 1
        ),
        "better-at-three": lambda: (
            [x > 0 for x in digits_gap("linear-3000", "softmax-3000").values()] == [True, True, False, True]
        ),
        "half-mass-on-digits": lambda: round(digits("linear")["maps"]["layer 4"]["mass"], 2) == 0.5,
    },
    "docs/data.md": {"loading-keeps-up": lambda: min(fed()) > 0.98},
    "docs/streaming.md": {
        "stream-minute-on-cpu": lambda: all(0.6 < seconds < 1.2 for seconds in spilled_on_cpu()),
        "stream-slide-on-gpu": lambda: 5 < min(projected()) < max(projected()) < 30,
    },
    "docs/scale.md": {
        "stream-below-limit": lambda: read_json(RESULTS / "streaming.json")["image"]["resident_peak"] < 2 * 2**30,
        "stream-cost": lambda: all(
            low < x / streamed("bfloat16")[0] < high
            for x, (low, high) in zip(streamed("bfloat16")[1:], [(3, 4), (1.1, 1.2), (1.8, 2.1)], strict=True)
        ),
        "file-cost": lambda: (
            max(file_costs()[0]) < 1.5
            and (round(min(file_costs()[1])), round(max(file_costs()[1]))) == (3, 6)
            and round(file_decoding("JPEG") / file_decoding("tiled TIFF")) == 9
        ),
        "constant-traffic": lambda: all(len(sizes) == 1 for sizes in traffic().values()),
        "embed-over-loop": lambda: min(embed_ratios()) >= 1,
        "busy-rounds": lambda: max(worker_rates()) > 2 * min(worker_rates()),
    },
    "README.md": {
        "softmax-classifies-best": lambda: optimizers() == {"nmuon"} and softmax_first(),
        "linear-within-a-point": lambda: all(top1(s, "softmax") - top1(s, "infsa_linear") < 0.01 for s in "ab"),
        "linear-faster-on-large-images": lambda: (
            all(
                speed("models", f"linear fast {case}") < speed("models", f"vit fast {case}") / 2
                for case in ("infer 1024", "infer 4096", "train 4096")
            )
            and speed("eager", "24 1024 4", "linear", "train") < speed("eager", "24 1024 4", "vit", "train")
        ),
        "linear-eager-by-size": lambda: (
            all(
                speed("eager", case, "linear", "train") < speed("eager", case, "vit", "train")
                for case in ("24 224 64", "24 1024 4")
            )
            and speed("eager-busy", "24 512 1", "linear", "train") > speed("eager-busy", "24 512 1", "vit", "train")
        ),
        "ledger-totals": ledger_totals,
        "ledger-not-reproduced": lambda: by_topic("not reproduced") == {"FLOPs": 4, "largest images": 3, "theory": 5},
        "ledger-accuracy-differs": lambda: gains_in_accuracy() == {"differs at small scale"},
        "digits-equal": lambda: (
            abs(right_answers("linear") - right_answers("softmax")) < 0.005
            and all(small_share(name) > 0.5 for name in ("linear", "softmax"))
        ),
    },
    "docs/faq.md": {
        "softmax-classifies-best": lambda: optimizers() == {"nmuon"} and softmax_first(),
        "linear-beats-mean": lambda: all(1.5 < 100 * (top1(s, "infsa_linear") - top1(s, "mean")) < 2.5 for s in "ab"),
        "any-removal-hurts-linear-more": lambda: (
            quality("infsa_linear")["removal"]["mean"]["random"]["aoc"]["mean"]
            > quality("softmax")["removal"]["mean"]["random"]["aoc"]["mean"]
        ),
        "aoc-over-random-lead-two": lambda: round(left_over()[0]) == 2 and 2 < left_over()[1] < 3,
        "boxes-no-variant-ahead": lambda: not any(ahead((roc(n), n), (roc("softmax"), "softmax")) for n in THREE[1:]),
        "boxes-below-gaussian": lambda: all(roc(n, "centre")["mean"] > roc(n)["mean"] for n in THREE),
    },
    "docs/choosing.md": {
        "gamma-no-effect-on-accuracy": lambda: not any(better(a, b) for a in decays() for b in decays()),
        "softmax-classifies-best": lambda: all(top1(s, "softmax") >= max(top1(s, n) for n in THREE) for s in "ab"),
    },
}


def marked(document):
    """The ids of the sentences of a document that a test here holds against result files."""
    return re.findall(r"<!--holds:([\w-]+)-->", (ROOT / document).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("document", "name"), [(d, s) for d, found in SENTENCES.items() for s in found])
def test_sentences_hold(document, name):
    assert name in marked(document)
    assert SENTENCES[document][name]()


def test_every_mark_has_its_check():
    from .test_speed_sentences import PAGES as SPEED

    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        document = path.relative_to(ROOT).as_posix()
        checked = {*SENTENCES.get(document, ()), *SPEED.get(document, ())}
        assert set(marked(document)) == checked, document


def test_marks_leave_no_trace_on_the_page():
    """A space before a mark shows before the full stop, and a mark that begins a line ends its paragraph."""
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert not re.findall(r".*\s<!--holds:.*", path.read_text(encoding="utf-8")), path
