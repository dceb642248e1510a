"""Targets, sources, and the committed ledger."""

import copy
import itertools
import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from pages.paper_table import PAPER

import infsa
from infsa.bench.cases import NINE, Case
from infsa.bench.presets import DEEP, FOUR
from infsa.cli.app import main
from infsa.files import read_json, write_json
from infsa.reproduce import TARGETS, VERDICTS, Sources, check_ledger, make_ledger, paper, sources
from infsa.reproduce.beyond import over_fused
from infsa.reproduce.claims import LAUNCH_BOUND
from infsa.reproduce.document import judged, page
from infsa.reproduce.headline import topic_table
from infsa.reproduce.topics import TOPICS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
REPRODUCED, LARGER, _, NOT, INCONCLUSIVE, SUPPORTED, DIFFERS, UNTESTABLE = VERDICTS
NAMED = [
    "table1",
    "fig-dashboard",
    "fig-tiers",
    "fig-depth",
    "fig-latency",
    "fig-quality",
    "fig-morf-roc",
    "fig-lerf-pr",
    "fig-accuracy-params",
    "fig-markov",
    "table-alignment",
    "table-ablation",
    "table-classification",
    "fig-maps",
    "fig-comparison",
    "fig-method",
    "supplement-theory",
    "training-cost",
    "extreme",
]
SPEED = ["table1", "fig-dashboard", "fig-tiers", "fig-depth", "fig-latency", "extreme"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(cache):
    return make_ledger(TARGETS, Sources(RESULTS, cache))


def rows(ledger, *names):
    return [row for name in names or ledger["targets"] for row in ledger["targets"][name]["rows"]]


def test_every_table_and_figure_is_a_target():
    assert set(TARGETS) == set(NAMED)


def test_the_committed_ledger_is_what_the_results_say(made):
    differences = check_ledger(read_json(RESULTS / "ledger.json"), made)
    assert not differences, f"run `infsa reproduce --document`: {differences[:5]}"


def test_the_page_is_the_committed_ledger():
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert text == page(read_json(RESULTS / "ledger.json"))


def test_a_verdict_has_its_reason(made):
    for row in rows(made):
        assert row["verdict"] in VERDICTS
        assert row["why"]
        assert row["ours"] is not None or (row["verdict"] == UNTESTABLE and row["why"].startswith("needs "))
    assert sum(made["counts"].values()) == sum(not any(row["same_as"]) for row in rows(made))
    for verdict in VERDICTS:
        assert made["counts"][verdict] == sum(found[verdict] for found in made["counts_by_topic"].values())


def test_examples_of_our_own_are_small_scale(made):
    found = {row["claim"]: row["verdict"] for row in rows(made, "supplement-theory")}
    smoothing = [verdict for claim, verdict in found.items() if "oversmoothing" in claim]
    assert smoothing == [DIFFERS, SUPPORTED]


def test_a_lead_says_what_it_was_not_compared_with(made):
    leads = [row for row in rows(made, "table-ablation") if "ReLU" in row["claim"] or "|x|" in row["claim"]]
    assert [row["note"] for row in leads] == ["", *["without gelu"] * 3]


def test_no_number_counts_twice(made, cache):
    found = {name: {row["claim"]: row for row in rows(made, name)} for name in made["targets"]}
    for row in rows(made):
        if any(row["same_as"]):
            target, claim = row["same_as"]
            assert found[target][claim]["same_as"] == ["", ""]
            assert found[target][claim]["verdict"] == row["verdict"], row["claim"]
    counted = [
        (row["kind"], row["paper"], row["ours"], row["setting"], row["detail"])
        for row in rows(made)
        if row["kind"] != "statement" and row["ours"] and not any(row["same_as"])
    ]
    alone = make_ledger(["fig-dashboard"], Sources(RESULTS, cache))
    assert sum(alone["counts"].values()) == len(rows(alone))  # nothing else is there that it could be counted with
    twice = {number for number in counted if counted.count(number) > 1}
    assert {number[1] for number in twice} <= {330.6, 57.7}  # softmax and Pure have the same parameters


def test_small_scale_is_not_called_a_refutation(made):
    for row in rows(made):
        if row["measured"] != "the paper's conditions":
            assert row["verdict"] in (SUPPORTED, DIFFERS, INCONCLUSIVE, UNTESTABLE), row["claim"]
        else:
            assert row["verdict"] not in (SUPPORTED, DIFFERS), row["claim"]


def test_the_headline_is_short_and_says_what_the_rows_say(made):
    table = topic_table(made)
    assert table.count("\n| ") == len(TOPICS) + 1
    assert "14.5×, paper 13.4×, **inconclusive (launch-bound)**" in table
    assert "CUDA-graph rows that would decide have not been measured yet" in table
    assert all(row["topic"] in TOPICS for row in rows(made))
    decided = copy.deepcopy(made)
    for row in rows(decided):
        row["why"] = row["why"].replace(LAUNCH_BOUND, "")
    assert "not been measured yet" not in topic_table(decided)


def test_our_own_checks_have_no_verdict_and_are_not_counted(made):
    assert len(made["beyond"]) >= 5
    assert not any("verdict" in row for row in made["beyond"])
    assert not {row["claim"] for row in made["beyond"]} & {row["claim"] for row in rows(made)}


def test_the_page_is_short():
    assert len((ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").split()) <= 2400


def graph_rows(path, times):
    """Add graph rows of the 4-layer models in inference at 1024² to a benchmark, and smaller images as slow."""
    content = read_json(path)
    for name, time in times.items():
        for side, mode in ((512, "none"), (1024, "graph")):
            case = Case(name, size=(side, side), compile=mode, **FOUR)
            old = content["rows"][Case(name, size=(1024, 1024), **FOUR).key]
            found = {**old, "case": case.as_dict(), "macs": side**2}
            if mode == "graph":
                found["latency_ms"] = {**old["latency_ms"], "median": time}
            content["rows"][case.key] = found
        content["rows"][Case(name, size=(1024, 1024), **FOUR).key]["macs"] = 1024**2
    write_json(content, path)


def test_launch_bound_ratios_are_judged_on_graph_rows(tmp_path, cache):
    path = tmp_path / "bench-h200.json"
    bench_file(path, 2.0)
    graph_rows(path, {"infsa_linear": 0.1, "softmax-naive": 1.34})
    content = read_json(path)
    row = rows(make_ledger(["fig-dashboard"], Sources(tmp_path, cache)))[0]
    assert row["verdict"] == REPRODUCED
    assert row["ours"] == pytest.approx(13.4)
    assert "eager 2" in row["detail"]
    del content["rows"][Case("softmax-naive", compile="graph", **FOUR).key]
    write_json(content, path)
    row = rows(make_ledger(["fig-dashboard"], Sources(tmp_path, cache)))[0]
    assert (row["verdict"], row["launch_bound"]) == (INCONCLUSIVE, True)
    assert row["why"] == "launch-bound in eager mode; needs CUDA graph rows"


def test_a_check_on_graph_rows_keeps_times_and_ratios_apart(tmp_path, cache):
    path = tmp_path / "bench-h200.json"
    bench_file(path, 2.0)
    graph_rows(path, {"infsa_linear": 0.1, "softmax-flash": 0.3, "softmax-cudnn": 0.3})
    found = over_fused(FOUR, Sources(tmp_path, cache))
    assert found.detail == "PyTorch's flash, ms: 0.3 against 0.1 as CUDA graphs; eager 2×"


def test_the_page_shows_shares_as_numbers(made):
    row = {"kind": "ratio", "verdict": LARGER, "why": "123% of the paper's logarithm", "note": ""}
    assert judged(row) == f"**{LARGER}**, 123%"
    assert "Percentages beside verdicts" in page(made)


def test_conditions_come_from_the_files(tmp_path, cache):
    for file in RESULTS.glob("*.json"):
        shutil.copy(file, tmp_path)
    content = read_json(tmp_path / "ablation.json")
    content["recipe"] |= {"optimizer": "adamw", "epochs": 7, "mixup": 0.0, "crop_min": 1.0, "jitter": [0.0, 0.0]}
    write_json(content, tmp_path / "ablation.json")
    setting = rows(make_ledger(["table-ablation"], Sources(tmp_path, cache)))[0]["setting"]
    assert "adamw" in setting
    assert "7 epochs" in setting
    assert not any(word in setting for word in ("mixup", "crop", "jitter"))
    assert "flip, cutmix" in setting


def test_flops_are_those_of_the_model_as_the_paper_writes_it(cache):
    found = {row["claim"]: row for row in rows(make_ledger(["training-cost"], Sources(RESULTS, cache)))}
    tokens, width = 197, 1024
    layer = 12 * tokens * width**2 + 3 * tokens * width  # q, v, output, extra layer, MLP; q̄, scores, weighted sum
    macs = 4 * layer + 196 * 768 * width + width**2 + 1000 * width  # patches, the layer before the classifier
    assert found["forward pass at 224²"]["ours"] == pytest.approx(2e-9 * macs, rel=1e-5)
    pure = macs + 4 * (tokens * width**2 - 3 * tokens * width + 2 * tokens**2 * width)  # keys; scores, weighted sums
    assert found["Pure 4L, forward pass at 224²"]["ours"] == pytest.approx(2e-9 * pure, rel=1e-5)
    assert f"{macs / 1e9:.1f} against 17.6" in found[next(name for name in found if "ViT-B/16" in name)]["detail"]


def test_the_ceiling_of_fused_softmax(tmp_path, cache):
    path, claim = tmp_path / "bench-h200.json", "softmax (fused) stops at about 50,000 tokens"
    for peak, verdict in ((2**42, REPRODUCED), (2**30, NOT)):
        bench_file(path, 2.0)
        content = read_json(path)
        for row in content["rows"].values():
            row["peak_bytes"] = peak
        write_json(content, path)
        found = {row["claim"]: row["verdict"] for row in rows(make_ledger(["fig-latency"], Sources(tmp_path, cache)))}
        assert found[claim] == verdict


def test_the_paper_is_stored_once_and_the_same():
    for config, mechanisms in PAPER.items():
        for name, printed in mechanisms.items():
            row = paper()["table1"]["rows"][config][name.removesuffix("-naive")]
            assert (row["train_ms"], row["infer_ms"], row["infer_joules"]) == printed
    for mechanisms in paper()["table1"]["rows"].values():  # its own columns agree to their rounding
        for row in mechanisms.values():
            assert row["infer_images_per_s"] == pytest.approx(1000 / row["infer_ms"], rel=2e-3)
            assert row["infer_joules"] == pytest.approx(0.2 * row["infer_ms"], abs=6e-3)


def test_without_files_only_computed_claims_are_judged(tmp_path, cache):
    ledger = make_ledger(TARGETS, Sources(tmp_path, cache))
    assert ledger["files"] == []
    for row in rows(ledger):
        assert row["verdict"] == UNTESTABLE or not row["file"]
    assert {row["verdict"] for row in rows(ledger, "fig-quality", "extreme")} == {UNTESTABLE}
    assert all("infsa quality" in row["why"] for row in rows(ledger, "fig-quality"))


def bench_file(path, linear_speed, gpu="a GPU"):
    """A benchmark in which Linear-InfSA takes 1 ms per 1024² image at any depth, and all others ``linear_speed``."""
    names = ("softmax-naive", "softmax-flash", "softmax-cudnn", *NINE)
    sizes = [(side, mode) for side in (512, 1024, 2048, 4096, 9216) for mode in ("infer", "train")]
    found = {}
    cases = [Case(n, size=(s, s), mode=m, **f) for n, (s, m), f in itertools.product(names, sizes, (FOUR, DEEP))]
    cases += [Case(n, size=(s, s), depth=1, heads=64, part="attention") for n in names for s in (1024, 2048, 4096)]
    for case in cases:
        linear = case.mechanism == "infsa_linear"
        time = case.tokens / 4097 * (1 if linear else linear_speed * case.tokens / 4097)
        found[case.key] = {
            "case": case.as_dict(), "status": "done", "tokens": case.tokens, "tier": case.variant.tier,
            "latency_ms": {"median": time, "p25": time, "p75": time, "drift": False}, "weights_bytes": 0,
            "peak_bytes": 2**30 if linear else 2**42, "energy": {"source": "NVML", "joules_per_image": time},
        }  # fmt: skip
    write_json({"format": 1, "machines": [{"gpu": gpu, "cpu": "a CPU"}], "checks": [], "rows": found}, path)


def test_speed_gets_verdicts_once_the_benchmark_exists(tmp_path, cache):
    bench_file(tmp_path / "bench-h200.json", 14.0)
    ledger = make_ledger(SPEED, Sources(tmp_path, cache))
    found = {row["claim"]: row for row in rows(ledger, *SPEED)}
    assert found["speed-up over softmax (unfused)"]["verdict"] == REPRODUCED
    assert found["speed-up over softmax (unfused)"]["ours"] == pytest.approx(14)
    assert found["Linear scales near-linearly (exponent within 0.1 of 1)"]["verdict"] == REPRODUCED
    assert found["exponent of softmax (fused, cuDNN) above that of Linear"]["ours"] == pytest.approx(1)
    assert found["all but Linear run out of 40 GB above 1024²"]["verdict"] == REPRODUCED
    assert found["Linear 4L, infer 1024²"]["verdict"] == UNTESTABLE  # another GPU
    energy = found["Linear 24L, lowest energy: lead over the next"]
    assert (energy["paper"], energy["ours"]) == (1.42, pytest.approx(14))
    assert all(row["ours"] is not None for row in found.values())
    bench_file(tmp_path / "bench-h200.json", 0.5)
    slower = {row["claim"]: row for row in rows(make_ledger(SPEED, Sources(tmp_path, cache)), *SPEED)}
    assert slower["speed-up over softmax (unfused)"]["verdict"] == NOT


def test_a_run_of_this_machine_takes_the_place_of_the_committed_one(tmp_path, cache):
    bench_file(tmp_path / "bench.json", 20.0)
    ledger = make_ledger(["fig-dashboard"], Sources(RESULTS, cache, bench=tmp_path / "bench.json"))
    assert ledger["files"] == ["bench.json"]
    assert rows(ledger, "fig-dashboard")[0]["ours"] == pytest.approx(20)
    with pytest.raises(ValueError, match="not a result"):
        Sources(RESULTS, cache, bench=RESULTS / "ledger.json")


def test_only_the_papers_gpu_judges_times_by_themselves(tmp_path, cache):
    for gpu, verdict in (("NVIDIA A100-SXM4-40GB", NOT), ("NVIDIA A100-SXM4-80GB", UNTESTABLE)):
        bench_file(tmp_path / "bench-h200.json", 20.0, gpu)
        found = rows(make_ledger(["extreme"], Sources(tmp_path, cache)))
        assert {row["verdict"] for row in found if row["kind"] == "value"} == {verdict}


def test_rounds_that_differ_are_noise(tmp_path, cache):
    bench_file(tmp_path / "bench-h200.json", 1.2)
    claim = "Linear has the highest throughput: lead over the next"
    for rounds, verdict in (((1.0, 1.0, 1.0), REPRODUCED), ((0.7, 1.0, 1.4), INCONCLUSIVE)):
        content = read_json(tmp_path / "bench-h200.json")
        for row in content["rows"].values():
            row["latency_ms"]["rounds"] = [share * row["latency_ms"]["median"] for share in rounds]
        write_json(content, tmp_path / "bench-h200.json")
        found = {row["claim"]: row for row in rows(make_ledger(["fig-tiers"], Sources(tmp_path, cache)))}
        assert found[claim]["verdict"] == verdict


def test_another_result_is_another_ledger(tmp_path, cache):
    content = read_json(RESULTS / "alignment.json")
    for run in content["runs"].values():
        run["all_layers"]["cosine"]["a"]["mean"] = 0.9
    write_json(content, tmp_path / "alignment.json")
    for shard in "ab":
        shutil.copy(RESULTS / f"tiny-imagenet-{shard}.json", tmp_path)
    made = [make_ledger(["table-alignment"], Sources(folder, cache)) for folder in (RESULTS, tmp_path)]
    assert len(check_ledger(*made)) == 1  # the cosine
    (tmp_path / "alignment.json").write_text('{"groups": ')
    with pytest.raises(ValueError, match=r"alignment\.json is damaged"):
        make_ledger(["table-alignment"], Sources(tmp_path, cache))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config": 1}', '{"numbers": {"value": 5}}'])
def test_a_damaged_number_is_computed_again(tmp_path, text):
    sources = Sources(tmp_path, tmp_path)
    sources.computed("thing", {}, lambda: {"value": 1})
    (file,) = tmp_path.glob("thing-*.json")
    file.write_text(text)
    assert sources.computed("thing", {}, lambda: {"value": 2}) == {"value": 2}
    assert sources.computed("thing", {}, lambda: {"value": 3}) == {"value": 2}


def test_computed_numbers_are_kept_by_configuration(tmp_path):
    calls = []
    sources = Sources(tmp_path, tmp_path)
    for config in ({"side": 1}, {"side": 1}, {"side": 2}):
        sources.computed("thing", config, lambda: {"value": calls.append(1) or len(calls)})
    assert len(calls) == 2
    assert len(list(tmp_path.glob("thing-*.json"))) == 2


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["infsa", "reproduce", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, *capsys.readouterr()


def test_the_command_writes_the_document(monkeypatch, capsys, tmp_path, cache):
    (tmp_path / "docs").mkdir()
    results = tmp_path / "benchmarks" / "results"
    shutil.copytree(RESULTS, results)
    code, out, _ = run(monkeypatch, capsys, "--document", "--results", str(results), "--out", str(cache), "--json")
    assert code == 0
    saved = read_json(results / "ledger.json")
    assert json.loads(out)["counts"] == saved["counts"]
    assert (tmp_path / "docs" / "reproduction.md").read_text(encoding="utf-8") == page(saved)


def test_the_ledger_does_not_depend_on_the_folder(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, "table-alignment", "--json")
    assert (code, err) == (0, "")
    made = json.loads(out)
    assert made["files"] == ["alignment.json", "tiny-imagenet-a.json", "tiny-imagenet-b.json"]
    saved = {"targets": {"table-alignment": read_json(RESULTS / "ledger.json")["targets"]["table-alignment"]}}
    assert not check_ledger(saved, made)


def test_without_committed_results_the_command_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sources, "PLACES", (tmp_path / "nothing",))
    code, out, err = run(monkeypatch, capsys, "table-alignment", "--json", "--out", str(tmp_path))
    assert code == 0
    assert json.loads(out)["counts"][UNTESTABLE] == sum(json.loads(out)["counts"].values())
    assert err == "note: no stored results found: only what can be computed here is judged\n"


def test_the_wheel_carries_what_claims_are_judged_by():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    place = sources.PLACES[0].relative_to(Path(infsa.__file__).parents[1])
    assert wheel["force-include"] == {f"benchmarks/results/{name}": f"{place}/{name}" for name in sources.MADE_BY}
    assert all((RESULTS / name).is_file() for name in sources.MADE_BY)


def test_the_command_prints(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run(monkeypatch, capsys, "fig-markov", "--out", str(tmp_path))
    assert code == 0
    assert "token 4 is first by all hops" in out
    assert (tmp_path / "ledger.json").exists()
    code, out, _ = run(monkeypatch, capsys, "--list", "--json")
    assert [row["target"] for row in json.loads(out)] == list(TARGETS)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["table9"], 2, "'table9'"),
        (["--scale", "huge"], 2, "'huge'"),
        (["--document", "table1"], 2, "--document"),
        (["fig-markov", "--results", "/nowhere"], 2, "--results /nowhere is not a folder"),
        (["fig-markov", "--results", str(ROOT / "docs")], 2, "holds none of the result files"),
        (["fig-markov", "--results", str(RESULTS / "alignment.json")], 2, "is not a folder"),
        (["--document", "--results", "/nowhere/at/all"], 1, "needs a checkout"),
        (["--document", "--results", "/nowhere"], 1, "needs a checkout"),
        (["--scale", "full", "table1", "--device", "cpu"], 1, "needs a CUDA GPU"),
        (["--scale", "full", "fig-quality"], 1, "fig-quality: full scale needs ImageNet-1K"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, code, message, monkeypatch, capsys, tmp_path):
    found, _, err = run(monkeypatch, capsys, *arguments, "--out", str(tmp_path))
    assert found == code
    assert message in err
    assert err.count("\n") == 1
