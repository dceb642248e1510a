"""Every number on the README and the pages comes from a committed result file, or is a constant that is named here."""

import importlib.util
import math
import re
from pathlib import Path

import pytest

from infsa.files import read_json
from infsa.graph import five_token_graph

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_TEST = {"reproduction.md"}  # compared as a whole in tests/reproduce
UNITS = r"%|ms\b|GiB|GB|J\b|×(?! \d)|points|images/s|seconds|s\b|W\b"
NUMBER = re.compile(rf"(?<![\w.^·/-])(\d[\d,]*\.\d+|\d[\d,]*(?=\s?(?:{UNITS})))")
CONSTANTS = {  # page -> numbers that nobody measured
    "*": {"0.7": "γ", "3.11": "Python"},
    "choosing.md": {"0.3": "γ of the ablation", "0.9": "γ of the ablation"},
    "attention-quality.md": {
        "0.1": "least probability",
        "0.5": "chance",
        "35": "from the formula beside it",
        "31": "from the formula beside it",
        "76.0": "the paper's",
        "42.6": "the paper's",
        "0.985": "the paper's",
    },
    "benchmarks.md": {"5": "settings", "200": "the paper's watts", "300": "the paper's watts", "95": "confidence"},
}


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FACTS = script(ROOT / "docs" / "facts.py")


@pytest.mark.parametrize("document", FACTS.TABLES)
def test_tables_are_what_the_results_say(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    for name, table in FACTS.TABLES[document].items():
        (found,) = re.findall(rf"<!-- table {name} -->\n(.*?)<!-- end -->", text, re.S)
        assert found == table(), f"run `python docs/facts.py`: {document}, {name}"


def leaves(content):
    """All numbers in plain data, those inside words too."""
    if isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            yield from leaves(value)
    elif isinstance(content, str):
        yield from (float(number) for number in re.findall(r"\d+\.\d+", content))
    elif isinstance(content, int | float):
        yield float(content)


@pytest.fixture(scope="module")
def measured():
    """Mantissas of all committed numbers, by their number of significant digits."""
    values = {abs(value) for path in RESULTS.glob("*.json") for value in leaves(read_json(path))}
    sent = script(ROOT / "benchmarks" / "communication.py").table(read_json(RESULTS / "communication.json"))
    values |= set(leaves(sent.replace(",", "")))  # sums of what the file has
    graph = five_token_graph()
    moves = graph.transition()
    for found in (moves, moves / 0.7, moves @ moves, graph.absorption(), graph.absorption_times(), graph.degree("in"),
                  (moves @ moves).sum(0), graph.katz_in(), graph.katz_out()):  # fmt: skip
        values |= {abs(value) for value in found.flatten().tolist()}
    return {digits: {mantissa(value, digits) for value in values if math.isfinite(value)} for digits in range(1, 9)}


def mantissa(value, digits):
    return f"{value:.{digits - 1}e}".partition("e")[0] if value else "0"


def is_measured(text, measured):
    """Whether a result file has the number at the printed precision, in any power of ten."""
    plain = text.replace(",", "")
    digits = max(1, len(plain.replace(".", "").lstrip("0")))
    return mantissa(float(plain), digits) in measured[digits] or float(plain) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_numbers_are_measured(page, measured):
    if page.name in OWN_TEST:
        pytest.skip("compared as a whole in tests/reproduce")
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.S)
    constants = CONSTANTS["*"] | CONSTANTS.get(page.name, {})
    unknown = [
        number for number in NUMBER.findall(text) if number not in constants and not is_measured(number, measured)
    ]
    assert not unknown, f"{page.name} has numbers that no result file has: {unknown}"


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
SENTENCES = {
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
        "over their own random orders the two are hardly apart": lambda: (
            abs(removal("infsa_linear", "aoc_over_random")["mean"] - removal("softmax", "aoc_over_random")["mean"])
            < 0.03
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


def test_the_search_would_notice(measured):
    assert is_measured("53.45", measured)
    assert not is_measured("53.4561", measured)
