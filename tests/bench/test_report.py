"""Tables and figures come from a result file alone, and always the same."""

import copy
import json
from pathlib import Path

import pytest
from pages import paper_table
from pages.accuracy import accuracy_figure

from infsa.bench.cases import NINE, Case
from infsa.bench.presets import DEEP, FOUR, group
from infsa.bench.results import about, measured, read_results
from infsa.bench.scaling import slopes
from infsa.report import bench_tables
from infsa.report.bench_figures import FIGURES, draw_bench, save
from infsa.report.published import published

NAMES = ("softmax-naive", "softmax-flash", *NINE)


def synthetic():
    """Rows of softmax growing with N² and all others with N, made up, in the form of measured ones."""
    layer = {"part": "attention", "depth": 1, "heads": 64}
    plan = group(NAMES, 1024, energy=NAMES, **FOUR) + group(NAMES, 1024, **DEEP)
    for side in (224, 512, 2048):
        plan += group(NAMES, side, **FOUR) + group(NAMES, side, mode="train", **FOUR) + group(NAMES, side, **layer)
    rows = {}
    for index, case in enumerate(plan):
        exponent = 2 if case.variant.tier == "N² d" else 1
        base = 1e-3 * (1 + index % len(NAMES)) * case.depth * case.tokens
        time = base * (case.tokens / 1000) ** (exponent - 1)
        prepared = {"parameters": 5e7, "first_s": 1.0, "peak_bytes": 1e6 * time + 1e8, "weights_bytes": 1e8}
        window = {"source": "NVML", "joules": time, "seconds": 5.0, "calls": 10} if case.energy else None
        numbers = measured(case, prepared, [[time, 1.01 * time]], [], window, 1.0)
        rows[case.key] = {"case": case.as_dict(), **about(case), "status": "done", "macs": 10**9, **numbers}
    failed = Case("soft", size=(9216, 9216), **FOUR)
    reason = {"status": "failed", "reason": "OutOfMemoryError: no", "ran_out": "GPU memory"}
    rows[failed.key] = {"case": failed.as_dict(), **about(failed), **reason}
    limit = Case("softmax-naive", size=(512, 512), limit=True, **FOUR)
    found = {
        "side": 1504,
        "tokens": 8837,
        "ran_out": "GPU memory",
        "cap_bytes": 2**30,
        "limit_seconds": 3.0,
        "probes": [],
    }
    rows[limit.key] = {"case": limit.as_dict(), **about(limit), "status": "done", "limit": found}
    check = {"when": "start", "after_s": 5.0, "harness_ms": 1.0, "direct_ms": 1.01, "ratio": 0.99, "tflops": 700.0}
    return {"format": 1, "machines": [], "settings": {}, "checks": [check], "rows": rows}


@pytest.fixture(scope="module")
def content():
    return synthetic()


def test_figures_are_the_same_to_the_byte(content, tmp_path):
    first, second = (draw_bench(content, tmp_path / name) for name in "ab")
    assert [path.name for path in first] == [f"{name}.png" for name in FIGURES]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert draw_bench({**content, "rows": {}}, tmp_path) == []
    assert draw_bench(content, tmp_path / "c", ("memory",)) == [tmp_path / "c" / "memory.png"]


def test_published_figures_have_sources_and_are_drawn(tmp_path):
    rows = published()["rows"]
    assert len(rows) == 24
    assert all(row["source"] and 80 < row["imagenet_1k"] < 90 for row in rows)
    ours = [{"method": "Linear", "parameters_m": 48.2, "imagenet_1k": 80.0, "imagenet_v2": None}]
    paths = [save(accuracy_figure(ours), tmp_path / f"{name}.png") for name in "ab"]
    assert paths[0].read_bytes() == Path(paths[1]).read_bytes()


def test_large_images_have_a_row_for_each_mechanism(content):
    table = paper_table.large_table(content)
    assert [row[0] for row in table.rows] == list(paper_table.ROWS)
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert cells["softmax (unfused)"]["largest image"] == "1504² (memory)"
    assert cells["softmax (unfused)"]["train 512², ms"] != "–"
    assert cells["softmax (unfused)"]["train 4096², ms"] == "–"


def test_the_best_of_several_kernels_counts(content):
    content = copy.deepcopy(content)
    flash, plain = (content["rows"][Case(name, size=(2048, 2048), **FOUR).key] for name in ("softmax-flash", "softmax"))
    flash["latency_ms"] |= {"median": 1.0, "drift": True}
    plain["latency_ms"]["median"] = 2.0
    assert paper_table.time_cell([plain, flash]) == "~1.00"
    assert paper_table.best([plain, flash, {}], paper_table.milliseconds) == 1.0
    assert paper_table.time_cell([]) == "–"


def test_the_papers_energy_is_its_constant_times_its_latency():
    for rows in paper_table.PAPER.values():
        for _, infer, joules in rows.values():
            assert joules == pytest.approx(0.2 * infer, abs=0.006)


def test_slopes_are_those_of_the_rows(content):
    (table,) = (t for name, t in bench_tables.slope_tables(content).items() if name.startswith("attention"))
    cells = {row[0]: row for row in table.rows}
    assert cells["Linear-InfSA"][1:4] == ["O(N): 1", "1.00 [1.00, 1.00]", "1.00 [1.00, 1.00]"]
    assert cells["softmax (unfused)"][1:4] == ["O(N² d): 2", "2.00 [2.00, 2.00]", "2.00 [2.00, 2.00]"]


def test_the_largest_sizes_show_growth_that_fixed_costs_hide():
    rows = [
        {"case": {"mechanism": "mlla"}, "tokens": n, "latency_ms": {"median": max(1.0, n / 64)}}
        for n in (4, 16, 64, 256, 1024)
    ]
    assert slopes(rows)["mlla"].value < 0.8
    assert slopes(rows, 3)["mlla"].value == pytest.approx(1)
    assert slopes(rows, 3)["mlla"].points == 3


def test_the_measured_crossover_lies_where_the_times_do(content):
    table = paper_table.crossover_table(content)
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["softmax (unfused)"][0] != "–"
    assert cells["softmax (unfused)"][1] == "–"
    assert list(cells) == ["softmax (unfused)", "softmax (fused)", "Pure InfSA"]


def test_what_is_claimed_is_the_ratio_of_two_rows(content):
    rows = content["rows"]
    ours, naive = (rows[Case(name, size=(1024, 1024), **FOUR).key] for name in ("infsa_linear", "softmax-naive"))
    table = paper_table.claim_table(content)
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}["softmax (unfused)"]
    assert cells["4L time"] == f"{naive['latency_ms']['median'] / ours['latency_ms']['median']:.2f}"
    assert cells["4L energy"] == f"{naive['energy']['joules_per_image'] / ours['energy']['joules_per_image']:.2f}"
    assert (cells["4L time (paper)"], cells["24L time (paper)"]) == ("13.4", "4.5")
    assert (cells["4L time, compiled"], cells["24L energy"]) == ("–", "–")


def test_resolutions_are_sorted_by_the_largest(content):
    """Rows without a time at the largest sizes come last."""
    content = copy.deepcopy(content)
    del content["rows"][Case("soft", size=(2048, 2048), **FOUR).key]["latency_ms"]
    table = paper_table.resolution_table(content)
    assert table.columns[-1] == "9216²"
    names = [row[0] for row in table.rows]
    assert names.index("Linear-InfSA") < names.index("softmax (unfused)") < names.index("SOFT")


def test_failures_are_words_in_the_tables(content):
    assert any("out of memory" in row for row in paper_table.resolution_table(content).rows)
    assert bench_tables.reason(content["rows"][Case("soft", size=(9216, 9216), **FOUR).key]) == "out of GPU memory"
    assert bench_tables.limit_table(content).rows == [
        ["softmax (unfused)", "4L-64H", "infer", "1504²", "8,837", "GPU memory", "1.00", "3.0"]
    ]


def test_unfinished_rows_say_so(content):
    (row,) = (row for row in content["rows"].values() if row["case"]["limit"])
    partial = {**content, "rows": {"a": {**row, "status": "partial", "reason": "budget"}}}
    assert bench_tables.limit_table(partial).rows[0][3:6] == ["at least 1504²", "8,837", "partial: budget"]
    (row, *_) = content["rows"].values()
    assert bench_tables.latency({**row, "status": "partial"}).endswith(", partial")


def test_files_are_compared_row_by_row(content):
    slower = copy.deepcopy(content)
    key, other, *_, failed, limit = content["rows"]
    slower["rows"][key]["latency_ms"]["median"] *= 2
    slower["rows"][limit]["limit"]["side"] = 3008
    slower["machines"] = [{"gpu": "B", "torch": "1", "energy": "NVML"}]
    del slower["rows"][other]
    found = {row["row"]: row for row in bench_tables.compare_rows(content, slower)}
    assert found[key]["ms_ratio"] == pytest.approx(2)
    assert (found[limit]["first"], found[limit]["second"], found[limit]["side_ratio"]) == (1504, 3008, 2)
    assert failed not in found
    assert len(found) == len(content["rows"]) - 2
    assert len(bench_tables.compare_table(content, slower).rows) == len(found)
    note = bench_tables.compare_note(content, slower)
    assert "First: an unknown machine. Second: B; torch 1; energy: NVML." in note
    assert note.endswith("only one file has: 1 and 0.")
    assert bench_tables.compare_rows({"rows": {}}, content) == []


def test_throttling_is_named():
    content = {"rows": {"a": {"gpu": {"throttled": ["power cap"]}}, "b": {"gpu": {"throttled": []}}, "c": {}},
               "machines": [{"gpu": "H", "torch": "2", "energy": "NVML"}], "idle_watts": 70.4}  # fmt: skip
    assert bench_tables.machine_line(content) == (
        "H; torch 2; energy: NVML, idle 70 W; reduced clock in 1 of 3 rows (power cap)."
    )


def test_rows_of_another_version_are_drawn(content, tmp_path):
    """With what it adds, without what this version added, and under another version's name."""
    other = copy.deepcopy(content)
    other["machines"] = [{"infsa": "99", "torch": "0", "new": 1}]
    for row in other["rows"].values():
        row["new"] = {"a": 1}
        del row["case"]["limit"]
    (tmp_path / "r.json").write_text(json.dumps({"format": 1, **other}))
    contents = content, read_results(tmp_path / "r.json")
    first, second = (save(FIGURES["latency"](found), tmp_path / f"{i}.png") for i, found in enumerate(contents))
    assert first.read_bytes() == second.read_bytes()
    assert bench_tables.limit_table(contents[1]).rows == []


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0, "0"), (0.0123456, "0.0123"), (1234.5, "1,234"), (99.99, "100.0")]
)
def test_numbers_keep_three_digits(value, text):
    assert bench_tables.number(value) == text
