"""Every number on the README and the pages comes from a committed result file, or is a constant that is named here.

Tables between marks are made again by the scripts that wrote them. Outside tables no measured number is typed: what
stands there is traced to what it is computed from, or named as a constant of the page.
"""

import importlib.util
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import torch
from pages.quality import page_tables

import infsa
from infsa.app.gigapixel import MAX_MEGAPIXELS
from infsa.data.decode import MAX_PIXELS
from infsa.files import read_json

from .test_speed_sentences import gibibytes, timm_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_TEST = {"reproduction.md": "tests/reproduce"}  # compared as a whole there
UNITS = r"%|ms\b|GiB|GB|J\b|×(?! \d)|points|images/s|seconds|s\b|W\b|M\b|megapixels|GFLOPs|percent"
NUMBER = re.compile(rf"(?<![\w.^·/-])(\d[\d,]*\.\d+|\d[\d,]*(?=\s?(?:{UNITS})))")
TABLE = r"<!-- table ([\w-]+) -->\n(.*?)<!-- end -->"
FED = r"<!-- feeding: .*?<!-- /feeding -->"  # tests/data/test_feeding.py
CONSTANTS = {  # page -> numbers that nobody measured
    "*": {"0.7": "γ", "3.11": "Python", "2.11": "PyTorch", "8.0": "compute capability of a GPU"},
    "README.md": {"13": "the paper's"},
    "index.md": {"13": "the paper's"},
    "faq.md": {"13": "the paper's"},
    "choosing.md": {"0.3": "γ of the ablation", "0.9": "γ of the ablation"},
    "attention-quality.md": {
        "0.1": "least probability",
        "0.5": "chance",
        "76.0": "the paper's",
        "42.6": "the paper's",
        "0.985": "the paper's",
    },
    "benchmarks.md": {
        "2": "settings",
        "3": "settings",
        "5": "settings",
        "13": "the paper's",
        "13.4": "the paper's",
        "2.05": "the paper's",
        "40": "the paper's gigabytes",
    },
    "cohort.md": {"4": "the default of --memory"},
    "licences.md": {"2.0": "the version of a licence"},
    "models.md": {
        "4": "MOST_BYTES of infsa.models.graphs",
        "4.8": "the tanh form of GELU, in tests/models/test_speed.py",
        "6": "asserted in tests/models/test_speed.py",
    },
    "scale.md": {"2": "the limit given to the command"},
    "streaming.md": {"30": "the default of --save-every", "0.2": "the default of --region-share"},
}


@cache
def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(name):
    return read_json(RESULTS / f"{name}.json")


FACTS = script(ROOT / "benchmarks" / "facts.py")


def written_by(name, function, monkeypatch):
    """What a script of benchmarks/ writes into documents, without its drawings: document -> table -> text."""
    found, module = {}, script(ROOT / "benchmarks" / f"{name}.py")
    monkeypatch.setattr(module, "write_tables", lambda page, tables: found.setdefault(page.name, {}).update(tables))
    for drawing in ("draw_bench", "draw_comparison", "draw_ablation", "accuracy_figure", "save"):
        if hasattr(module, drawing):
            monkeypatch.setattr(module, drawing, lambda *arguments: [])
    getattr(module, function)()
    return found


def made_again(page, monkeypatch):
    """The tables of a page, made from the result files now."""
    if name := next((name for name in FACTS.TABLES if Path(name).name == page), None):
        return {name: table() for name, table in FACTS.TABLES[name].items()}
    if page == "attention-quality.md":
        return page_tables(RESULTS)
    if page == "conversion.md":
        done = (RESULTS / "adaptation.json").exists()
        return written_by("adaptation", "document", monkeypatch)[page] if done else {"adaptation": "not yet measured\n"}
    name, function = {
        "training.md": ("tiny_imagenet", "document"),
        "high-resolution.md": ("high_resolution", "document"),
        "streaming.md": ("streaming", "draw"),
        "benchmarks.md": ("table1", "main"),
    }[page]
    return written_by(name, function, monkeypatch)[page]


WITH_TABLES = [page for page in PAGES if re.search(TABLE, page.read_text(encoding="utf-8"), re.S)]


@pytest.mark.parametrize("page", WITH_TABLES, ids=lambda path: path.name)
def test_tables_are_what_the_results_say(page, monkeypatch):
    made = made_again(page.name, monkeypatch)
    for name, found in re.findall(TABLE, page.read_text(encoding="utf-8"), re.S):
        if "![" not in found:  # figures, not numbers
            assert found == made[name], f"{page.name}, {name}: run the script that writes it"


def parameters():
    """The counts of docs/models.md, row by row."""
    for name, plain, extra in re.findall(
        r"\| `(\w+)` \|.*?\| ([\d.]+) M \| ([\d.]+) M \|", (ROOT / "docs" / "models.md").read_text()
    ):
        for shown, more in ((plain, False), (extra, True)):
            with torch.device("meta"):
                model = infsa.create_model(name, paper_params=more)
            assert shown == f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}", name
            yield shown


def unfused_speed_up(case="infer/1024x1024", digits=1):
    """How many times faster than softmax (unfused), eager, 4 layers of 64 heads: the paper's 13×, as measured."""
    rows = result("bench-h200")["rows"]
    times = [
        rows[f"model/4L-64H/{case}/b1/bfloat16/{name}"]["latency_ms"]["median"]
        for name in ("softmax-naive", "infsa_linear")
    ]
    return f"{times[0] / times[1]:.{digits}f}"


TRACED = {  # page -> its numbers outside tables, from what they are computed from
    "README.md": lambda: {unfused_speed_up()},
    "benchmarks.md": lambda: {unfused_speed_up(), unfused_speed_up("train/512x512", 2)},
    "faq.md": lambda: {*gibibytes(), *re.findall(r"\d\.\d\d", "".join(timm_rows()))},
    "models.md": lambda: set(parameters()),
    "app.md": lambda: {f"{MAX_PIXELS / 1e6:.0f}", f"{MAX_MEGAPIXELS:.0f}"},
}


def typed(text):
    """The numbers that a page shows outside generated tables, code and links."""
    text = re.sub(rf"{TABLE}|{FED}", "", text, flags=re.S)
    return NUMBER.findall(re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.S))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_number_is_typed(page):
    if page.name in OWN_TEST:
        pytest.skip(f"compared as a whole in {OWN_TEST[page.name]}")
    known = {*CONSTANTS["*"], *CONSTANTS.get(page.name, {}), *TRACED.get(page.name, set)()}
    unknown = [number for number in typed(page.read_text(encoding="utf-8")) if number not in known]
    assert not unknown, f"{page.name} has numbers that nothing is known to give: {unknown}"


def test_versions_are_those_that_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["requires-python"], project["dependencies"][0]) == (">=3.11", "torch>=2.11")
    for page in ("README.md", "docs/quick-start.md", "docs/faq.md"):
        words = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert "Python 3.11 or newer and PyTorch 2.11 or newer" in words, page


def test_a_smuggled_number_is_noticed():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for sentence in ("follows within 0.4 points", "is 13.4 × faster", "![84.7 % top-1](map.png)", "takes 5 ms, 12 GB"):
        assert set(typed(readme + sentence)) - set(typed(readme)), sentence
