"""What the pages say in words follows from the committed result files: trainings, maps, decays."""

import math
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


def decays():
    return [row for row in read_json(RESULTS / "ablation.json")["rows"] if row["point"]["activation"] == "relu"]


def error(cell, name):
    return cell["over_runs"] / math.sqrt(quality(name)["runs"])


def ahead(a, b):
    """Beyond two standard errors."""
    (first, first_name), (second, second_name) = a, b
    return first["mean"] - second["mean"] > 2 * math.hypot(error(first, first_name), error(second, second_name))


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
    "docs/training.md": {
        "it is about half a point below it on both shards": lambda: all(0.25 < x < 0.75 for x in below("infsa_linear")),
        "Pure InfSA is more than a point below softmax on both": lambda: all(x > 1 for x in below("infsa_pure")),
        "only two to three points below softmax": lambda: all(1.5 < x < 3.5 for x in below("mean")),
    },
    "docs/attention-quality.md": {
        "by about five points, not by 33": lambda: round(gap("infsa_linear", "softmax", "aoc")) == 5,
        "More than half of that is brittleness": lambda: order_gap() > gap("infsa_linear", "softmax", "aoc") / 2,
        "is about two points, twice its standard error": lambda: [round(x) for x in left_over()] == [2, 2],
        "about two points for Linear and three for Pure": lambda: (
            [round(gap(name, "softmax", "lerf_auc")) for name in ("infsa_linear", "infsa_pure")] == [2, 3]
        ),
        "by more than the deviation of either": lambda: (
            gap("infsa_linear", "softmax", "abpc")
            > 100 * max(removal(name, "abpc")["over_runs"] for name in ("infsa_linear", "softmax"))
        ),
        "Linear-InfSA and softmax agree within a point, and Pure is behind both": lambda: (
            abs(roc("infsa_linear")["mean"] - roc("softmax")["mean"]) < 0.01
            and roc("infsa_pure")["mean"] < min(roc("infsa_linear")["mean"], roc("softmax")["mean"])
        ),
        "All of them stay below a Gaussian": lambda: all(roc(n, "centre")["mean"] > roc(n)["mean"] for n in THREE),
        "differ by one to seven points": lambda: {round(min(spreads())), round(max(spreads()))} == {1, 7},
    },
    "README.md": {
        "Softmax classifies best here": lambda: all(
            top1(s, "softmax") > top1(s, n) for s in "ab" for n in ("infsa_pure", "infsa_linear", "mean")
        ),
        "Linear-InfSA follows within a point": lambda: all(
            top1(s, "softmax") - top1(s, "infsa_linear") < 0.01 for s in "ab"
        ),
        "hurts it more": lambda: ahead(
            (removal("infsa_linear", "aoc"), "infsa_linear"), (removal("softmax", "aoc"), "softmax")
        ),
        "against boxes it is not ahead of softmax": lambda: (
            not ahead((roc("infsa_linear"), "infsa_linear"), (roc("softmax"), "softmax"))
        ),
    },
    "docs/faq.md": {
        "softmax is ahead": lambda: all(top1(s, "softmax") > top1(s, n) for s in "ab" for n in THREE[1:]),
        "any removal does": lambda: (
            quality("infsa_linear")["removal"]["mean"]["random"]["aoc"]["mean"]
            > quality("softmax")["removal"]["mean"]["random"]["aoc"]["mean"]
        ),
        "the lead shrinks to about two points, little more than its noise": lambda: (
            round(left_over()[0]) == 2 and 2 < left_over()[1] < 3
        ),
        "no InfSA variant is ahead of softmax beyond the noise": lambda: (
            not any(ahead((roc(n), n), (roc("softmax"), "softmax")) for n in THREE[1:])
        ),
        "a Gaussian in the middle of the image beats all three": lambda: all(
            roc(n, "centre")["mean"] > roc(n)["mean"] for n in THREE
        ),
    },
    "docs/choosing.md": {
        "shows no effect beyond the noise on accuracy": lambda: (
            not any(
                a["mean"]["top1"] - b["mean"]["top1"]
                > 2 * math.hypot(*(x["deviation"]["top1"] / 3**0.5 for x in (a, b)))
                for a in decays()
                for b in decays()
            )
        ),
        "it classified best in our trainings": lambda: all(
            top1(s, "softmax") >= max(top1(s, n) for n in THREE) for s in "ab"
        ),
    },
}


@pytest.mark.parametrize(("document", "sentence"), [(d, s) for d, found in SENTENCES.items() for s in found])
def test_sentences_hold(document, sentence):
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    assert sentence in text
    assert SENTENCES[document][sentence]()
