"""What the pages say in words follows from the committed result files: trainings, maps, decays.

A sentence is found by its mark, ``<!-- holds: id -->`` behind it, so that its wording is free.
"""

import math
import re
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


def removal(name, key):
    return quality(name)["removal"]["mean"]["methods"]["last"][key]


def roc(name, method="last"):
    return quality(name)["boxes"]["rules"]["centre"]["methods"][method]["roc"]


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


SENTENCES = {
    "docs/conversion.md": {
        "logits-do-the-work": lambda: all(
            gained(way)["logits"] > 4 * gained(way)["layers"] and gained(way)["labels"] <= 0 for way in WAYS
        ),
        "adaptation-gaps": lambda: lost("pure") < 2 < lost("linear") < 4 < lost("linear, surgery"),
        "layers-hurt-linear": lambda: gained("linear")["layers"] < 0,
    },
    "docs/training.md": {
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
        ),
        "abpc-lead": lambda: (
            gap("infsa_linear", "softmax", "abpc")
            > 100 * max(removal(name, "abpc")["over_runs"] for name in ("infsa_linear", "softmax"))
        ),
        "boxes-order": lambda: (
            abs(roc("infsa_linear")["mean"] - roc("softmax")["mean"]) < 0.01
            and roc("infsa_pure")["mean"] < min(roc("infsa_linear")["mean"], roc("softmax")["mean"])
        ),
        "boxes-below-gaussian": lambda: all(roc(n, "centre")["mean"] > roc(n)["mean"] for n in THREE),
        "spread-over-runs": lambda: {round(min(spreads())), round(max(spreads()))} == {1, 7},
    },
    "README.md": {
        "softmax-classifies-best": lambda: all(
            top1(s, "softmax") > top1(s, n) for s in "ab" for n in ("infsa_pure", "infsa_linear", "mean")
        ),
        "linear-within-a-point": lambda: all(top1(s, "softmax") - top1(s, "infsa_linear") < 0.01 for s in "ab"),
        "removal-hurts-linear-more": lambda: ahead(
            (removal("infsa_linear", "aoc"), "infsa_linear"), (removal("softmax", "aoc"), "softmax")
        ),
        "boxes-not-ahead": lambda: not ahead((roc("infsa_linear"), "infsa_linear"), (roc("softmax"), "softmax")),
    },
    "docs/faq.md": {
        "softmax-classifies-best": lambda: all(top1(s, "softmax") > top1(s, n) for s in "ab" for n in THREE[1:]),
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
    return re.findall(r"<!-- holds: ([\w-]+) -->", (ROOT / document).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("document", "name"), [(d, s) for d, found in SENTENCES.items() for s in found])
def test_sentences_hold(document, name):
    assert name in marked(document)
    assert SENTENCES[document][name]()


def test_every_mark_has_its_check():
    from .test_speed_sentences import SENTENCES as SPEED

    checked = {**SENTENCES, "docs/benchmarks.md": SPEED}
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        document = path.relative_to(ROOT).as_posix()
        assert set(marked(document)) == set(checked.get(document, {})), document
