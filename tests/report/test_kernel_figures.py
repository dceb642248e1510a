"""Figures and tables of the kernels, from files of the form that the benchmarks write."""

import importlib.util
import sys
from pathlib import Path

import pytest
from pages.kernel_figures import draw_kernels, intensity
from pages.kernel_tables import attention_table, linear_table, model_table
from PIL import Image

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """A script of benchmarks/ as a module; they import one another by their bare names."""
    monkeypatch.syspath_prepend(str(SCRIPTS))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    pytest.importorskip("triton")
    return load


def time(n, heads, width, rate):
    return {"ms": 4 * heads * n * n * width / rate / 1e9, "spread": 0.01, "tflops": rate, "beyond_bytes": 4 * heads * n}


def kernels(compared, bars):
    """A result of benchmarks/kernels.py whose rates are known."""
    rates = {"infsa": 600, "sdpa_flash": 300, "sdpa_cudnn": 480}
    shapes = ((16, 64, 4096, "pure"), (16, 64, 16384, "pure"), (8, 128, 16384, "pure"), (16, 64, 1024, "growth"))
    content = {
        "provenance": {"gpu": "Some GPU"},
        "ceilings": {"tflops": 750.0, "tb_per_s": 4.0},
        "pure": [],
        "growth": [],
    }
    for heads, width, n, part in shapes:
        times = {name: time(n, heads, width, rate) for name, rate in rates.items()}
        times["plain"] = {"failed": "OutOfMemoryError"}
        row = {"heads": heads, "width": width, "n": n, "passes": "forward", "times": times}
        content[part].append(row | compared(times, bars.get((heads, width, n, "forward"), {})))
    content["growth"][0]["times"]["infsa"]["call_ms"] = 0.5
    return content


def models(bars):
    rows = {}
    for name, slope in (("linear", 1e-4), ("pure", 1e-3), ("vit", 1.5e-3)):
        for pixels in (1024, 4096, 9216):
            n = (pixels // 16) ** 2 + 1
            row = {"pixels": pixels, "ms": slope * n, "spread": 0.0, "floor_ms": 0.8e-4 * n}
            rows[f"{name} fast infer {pixels}"] = row | {"peak_bytes": 2**28 + 2048 * n, "held_bytes": 2**28}
    rows["vit fast infer 9216"] = {"failed": "not run: budget"}
    rows["linear fast train 4096"] = {"pixels": 4096, "ms": 30.0, "spread": 0.1, "peak_bytes": 7 * 2**30}
    rows["vit fast train 4096"] = {"pixels": 4096, "ms": 600.0, "spread": 0.1}
    return {"rows": rows, "bars": bars(rows), "provenance": {"gpu": "Some GPU"}}


def test_figures_and_tables(script, tmp_path):
    benchmark = script("kernels")
    content, whole = kernels(benchmark.compared, benchmark.BARS), models(script("models").bars)
    files = draw_kernels(content, tmp_path, whole)
    assert [path.name for path in files] == ["roofline.png", "growth.png"]
    first = [path.read_bytes() for path in files]
    assert first == [path.read_bytes() for path in draw_kernels(content, tmp_path, whole)], "the same bytes again"
    assert Image.open(files[1]).width > Image.open(files[0]).width
    draw_kernels(content, tmp_path)
    later = {"heads": 8, "width": 128, "n": 16384, "passes": "both", "is_causal": True}
    table = attention_table(content, {"attention": [later | {"infsa_ms": [1.0, 2.0, 9.0], "cudnn_ms": [3.0] * 3}]})
    assert "| 16 × 64, 16384 | 1.833 | 2.291 | 1.25 | – | – | – |" in table
    assert "| 8 × 128, 16384, causal † | – | – | – | 2.000 | 3.000 | 1.50 |" in table
    row = {"what": "layer", "n": 4096, "dtype": "float32"}
    rows = [row | {"impl": "fused", "forward_ms": 0.3, "both_ms": 1.0}, row | {"impl": "chunked", "failed": "x"}]
    assert "| float32 | 4096 | 0.30 / 1.00 | – / – |" in linear_table({"rows": rows})
    assert "| training, 4096² | 7.00 | – | – |" in model_table(whole)


def test_every_bar_of_whole_models_is_judged(script):
    benchmark = script("models")
    bars = models(benchmark.bars)["bars"]
    assert {name for name, bar in bars.items() if not bar["met"]} == set()
    assert not any(bar["met"] for bar in benchmark.bars({}).values())
    grown = models(benchmark.bars)["rows"]
    grown["pure fast infer 9216"]["peak_bytes"] *= 4
    assert not benchmark.bars(grown)["Pure: memory linear in N, 4096² to 9216²"]["met"]


def test_bars_and_memory_of_the_kernels(script):
    benchmark = script("kernels")
    content = kernels(benchmark.compared, benchmark.BARS)
    assert all(bar["met"] for row in content["pure"] for bar in row["bars"].values())
    assert content["pure"][0]["memory"] == {"sdpa_flash": 1.0, "sdpa_cudnn": 1.0}
    rows = content["pure"] + content["growth"]
    assert benchmark.linear_memory(rows)["forward"]["linear"]
    rows[1]["times"]["infsa"]["beyond_bytes"] = 16384**2
    assert not benchmark.linear_memory(rows)["forward"]["linear"]
    failed = benchmark.compared({"infsa": {"failed": "x"}, "sdpa_cudnn": {"ms": 1.0}}, {"sdpa_cudnn": 1.0})
    assert not failed["bars"]["sdpa_cudnn"]["met"]


def test_a_yardstick_that_is_no_number_allows_nothing(script):
    import torch

    judge, one = script("kernel_checks").judge, [torch.ones(3)]
    wrong = [torch.full((3,), 1.5)]
    nan = [torch.full((3,), float("nan"))]
    assert judge(("z",), [one, one], one, one, torch.float32)["holds"]
    assert not judge(("z",), [wrong, wrong], nan, one, torch.float32)["holds"]
    assert not judge(("z",), [nan, nan], one, one, torch.float32)["holds"]
    assert judge(("z",), [nan, nan], nan, one, torch.float32)["errors"]["z"] == {"ours": None, "plain": None}


def test_a_file_without_speeds_is_named():
    with pytest.raises(ValueError, match="was a check red"):
        draw_kernels({"checks": [], "pure": []}, ".")
    assert intensity(16, 64, 4096) == 2048
