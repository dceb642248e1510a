"""Every number on the README and the pages comes from a committed result file, or is a constant that is named here.

Tables between marks are made again by the scripts that wrote them. Outside tables no measured number is typed: what
stands there is traced to what it is computed from, or named as a constant of the page.
"""

import importlib.util
import math
import re
import statistics
from functools import cache
from pathlib import Path

import pytest
import torch

import infsa
from infsa.app.gigapixel import MAX_MEGAPIXELS
from infsa.data.decode import MAX_PIXELS
from infsa.files import read_json
from infsa.graph import five_token_graph
from infsa.report import quality_tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OWN_TEST = {"reproduction.md": "tests/reproduce"}  # compared as a whole there
UNITS = r"%|ms\b|GiB|GB|J\b|×(?! \d)|points|images/s|seconds|s\b|W\b|M\b|megapixels|GFLOPs|percent"
NUMBER = re.compile(rf"(?<![\w.^·/-])(\d[\d,]*\.\d+|\d[\d,]*(?=\s?(?:{UNITS})))")
TABLE = r"<!-- table ([\w-]+) -->\n(.*?)<!-- end -->"
FED = r"<!-- feeding: .*?<!-- /feeding -->"  # tests/data/test_feeding.py
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
    "benchmarks.md": {
        "2": "settings",
        "3": "settings",
        "5": "settings",
        "200": "the paper's watts",
        "300": "the paper's watts",
        "59": "the paper's",
        "40": "the paper's gigabytes",
        "95": "confidence",
    },
    "kernels.md": {
        "8.0": "a GPU",
        "8.6": "a GPU",
        "3.6": "a version of Triton",
        "3.9": "a version of Triton",
        "165": "the authors' package, AUTHORS_MS of benchmarks/models.py",
    },
    "streaming.md": {"30": "the default of --save-every"},
}


@cache
def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(name):
    return read_json(RESULTS / f"{name}.json")


FACTS = script(ROOT / "docs" / "facts.py")


def written_by(name, function, monkeypatch):
    """What a script of benchmarks/ writes into documents, without its drawings: document -> table -> text."""
    found, module = {}, script(ROOT / "benchmarks" / f"{name}.py")
    monkeypatch.setattr(module, "write_tables", lambda page, tables: found.setdefault(page.name, {}).update(tables))
    for drawing in ("draw_bench", "draw_comparison", "draw_ablation", "accuracy_figure", "save"):
        if hasattr(module, drawing):
            monkeypatch.setattr(module, drawing, lambda *arguments: [])
    getattr(module, function)()
    return found


def quality_page():
    tables, study, rivals = quality_tables, result("attention-quality"), result("attention-quality-rivals")
    aligned, fills = result("alignment"), result("attention-quality-fills")
    made = {
        "removal": tables.removal_table(study, "mean"),
        "boxes": tables.box_table(study),
        "boxes-area": tables.box_table(study, "area"),
        "rivals": tables.removal_table(rivals, "mean"),
        "rivals-boxes": tables.box_table(rivals),
        "alignment": tables.alignment_table(aligned),
        "alignment-layers": tables.alignment_table(aligned, layers=True),
    }
    made |= {f"fill-{fill}": tables.removal_table(fills, fill) for fill in ("black", "blur", "road", "tokens")}
    return {name: tables.markdown(table) for name, table in made.items()}


def made_again(page, monkeypatch):
    """The tables of a page, made from the result files now."""
    if name := next((name for name in FACTS.TABLES if Path(name).name == page), None):
        return {name: table() for name, table in FACTS.TABLES[name].items()}
    if page == "attention-quality.md":
        return quality_page()
    if page == "scale.md":
        tables = {name: script(ROOT / "benchmarks" / f"{file}.py").table(result(file.replace("_", "-")))
                  for name, file in (("communication", "communication"), ("plan", "scale_plan"))}  # fmt: skip
        return tables | written_by("streaming", "draw", monkeypatch)[page]
    if page == "conversion.md":
        done = (RESULTS / "adaptation.json").exists()
        return written_by("adaptation", "document", monkeypatch)[page] if done else {"adaptation": "not yet measured\n"}
    name, function = {
        "training.md": ("tiny_imagenet", "document"),
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


def five_tokens():
    graph = five_token_graph()
    moves, weights = graph.transition(), graph.path_matrix(1)
    scaled = (weights / weights.sum(dim=1, keepdim=True)).sum(dim=0)
    made = (weights, graph.absorption(), weights.sum(0), scaled, (moves @ moves).sum(0), graph.katz_in())
    return {f"{value:.3f}" for found in made for value in found.flatten().tolist()}


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


TRACED = {  # page -> its numbers outside tables, from what they are computed from
    "five-tokens.md": five_tokens,
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


def test_a_smuggled_number_is_noticed():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for sentence in ("follows within 0.4 points", "is 13.4 × faster", "![84.7 % top-1](map.png)", "takes 5 ms, 12 GB"):
        assert set(typed(readme + sentence)) - set(typed(readme)), sentence


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


PEERS = ("linformer", "performer", "soft", "flatten", "agent", "mlla")
QUADRATIC = ("softmax-naive", "softmax-flash", "softmax-cudnn")


@cache
def bench():
    return result("bench-h200")["rows"]


def timed(name, side, mode="infer", config="4L-64H", compiled=""):
    row = bench()[f"model/{config}/{mode}/{side}x{side}/b1/bfloat16{compiled}/{name}"]
    return row["latency_ms"]["median"]


def joule(name, config="4L-64H"):
    return bench()[f"model/{config}/infer/1024x1024/b1/bfloat16/{name}"]["energy"]["joules_per_image"]


def graph(name, config="4L-64H"):
    return timed(name, 1024, config=config, compiled="/reduce-overhead")


def peak(name, side):
    return bench()[f"model/4L-64H/infer/{side}x{side}/b1/bfloat16/{name}"].get("peak_bytes", math.inf) / 2**30


def attention(heads, method):
    rows = [r for r in result("kernels-h200")["pure"] if r["n"] == 4096 and r["heads"] == heads]
    return next(r for r in rows if r["passes"] == "forward")["times"][method]["ms"]


SPEED_SENTENCES = {
    "a third of the rows here": lambda: (
        0.3 < statistics.mean(r["latency_ms"]["drift"] for r in bench().values() if "latency_ms" in r) < 0.37
    ),
    "the factor holds in energy. In time it is smaller": lambda: (
        joule("softmax-naive") / joule("infsa_linear") > 13 > timed("softmax-naive", 1024) / timed("infsa_linear", 1024)
    ),
    "nothing is left of it in time at this size": lambda: (
        timed("infsa_linear", 1024) > min(timed(name, 1024) for name in QUADRATIC)
    ),
    "Linear-InfSA leads, by much less than 13. In energy it leads even as the models come": lambda: (
        1.5 < graph("softmax") / graph("infsa_linear") < 6 and joule("infsa_linear") < joule("softmax-flash")
    ),
    "is the fastest of all here as it comes": lambda: (
        timed("infsa_pure", 1024) < min(timed(name, 1024) for name in (*PEERS, *QUADRATIC, "infsa_linear"))
    ),
    "those with d² in their formula are faster than those with d": lambda: all(
        max(map(time, ("performer", "flatten", "mlla"))) < min(map(time, ("linformer", "soft", "agent")))
        for time in (graph, lambda name: timed(name, 1024), joule)
    ),
    "its attention takes less than a third of the time": lambda: all(
        attention(16, method) < attention(64, method) / 3 for method in ("sdpa_flash", "sdpa_cudnn")
    ),
    "fused softmax is ahead of all others in time": lambda: (
        max(timed(name, 1024, config="24L-16H") for name in QUADRATIC[1:])
        < min(timed(name, 1024, config="24L-16H") for name in (*PEERS, "infsa_pure", "infsa_linear"))
    ),
    "Linear-InfSA leads by about two. In energy it is level": lambda: (
        1.7 < graph("softmax", "24L-16H") / graph("infsa_linear", "24L-16H") < 2.3
        and abs(joule("softmax-flash", "24L-16H") / joule("infsa_linear", "24L-16H") - 1) < 0.1
    ),
    "all linear mechanisms are slower than softmax in any form": lambda: all(
        timed(name, 512, "train", config) > max(timed(other, 512, "train", config) for other in QUADRATIC)
        for name in (*PEERS, "infsa_linear")
        for config in ("4L-64H", "24L-16H")
    ),
    "about three to five times as fast as the peers": lambda: all(
        2.7 < timed(name, side) / timed("infsa_linear", side) < 5 for name in PEERS for side in (4096, 9216)
    ),
    "then Pure InfSA and fused softmax": lambda: all(
        max(timed(name, side) for name in PEERS) < timed("infsa_pure", side) < timed("softmax-cudnn", side)
        for side in (4096, 9216)
    ),
    "Agent falls out of its tier and behind Pure InfSA": lambda: (
        timed("agent", 4096, "train")
        > timed("infsa_pure", 4096, "train")
        > max(timed(name, 4096, "train") for name in PEERS if name != "agent")
    ),
    "In inference only unfused softmax does, soon after": lambda: all(
        (peak(name, 2048) > 40) == (name == "softmax-naive") for name in (*PEERS, *QUADRATIC, "infsa_pure")
    ),
    "Linformer is the only other one, of those measured, to need more": lambda: all(
        (peak(name, 9216) > 40) == (name in ("linformer", "softmax-naive"))
        for name in (*PEERS, "softmax-cudnn", "softmax-naive", "infsa_pure", "infsa_linear")
    ),
}


SENTENCES = {
    "docs/benchmarks.md": SPEED_SENTENCES,
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
