"""The eager model replayed as a CUDA graph: what a CPU can show of it, with a stand-in for torch.cuda."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from infsa.bench import build as builder
from infsa.bench.build import WARM_UPS, replayed
from infsa.bench.cases import NINE, Case, read_case
from infsa.bench.presets import PRESETS
from infsa.bench.results import read_results
from infsa.cli.app import main

from .helpers import cases, run


class FakeCuda:
    """What ``replayed`` uses of torch.cuda; a captured call runs once at capture and once per replay."""

    def __init__(self):
        self.events, self.captured = [], None
        self.CUDAGraph = lambda: SimpleNamespace(replay=lambda: self.events.append("replay"))

    def Stream(self):
        return SimpleNamespace(name="side", wait_stream=lambda other: self.events.append("side waits"))

    def current_stream(self):
        return SimpleNamespace(name="current", wait_stream=lambda other: self.events.append("current waits"))

    @contextmanager
    def stream(self, stream):
        self.events.append("enter side")
        yield
        self.events.append("leave side")

    @contextmanager
    def graph(self, graph):
        self.events.append("begin capture")
        yield
        self.events.append("end capture")


def test_warm_up_on_a_side_stream_then_one_capture_then_replays():
    cuda = FakeCuda()
    replay = replayed(lambda: cuda.events.append("call"), "cuda", cuda)
    replay()
    replay()
    expected = ["side waits", "enter side", *["call"] * WARM_UPS, "leave side", "current waits"]
    assert cuda.events == [*expected, "begin capture", "call", "end capture", "replay", "replay"]


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_the_captured_call_is_the_eager_one(mode, monkeypatch):
    """Same module, same call: nothing is compiled, and gradients are gone after every step."""
    seen = []
    monkeypatch.setattr(builder, "check_device", lambda device: None)
    monkeypatch.setattr(builder, "replayed", lambda call, device: seen.append(call) or call)
    monkeypatch.setattr(torch, "compile", lambda *a, **k: pytest.fail("a graph row must not be compiled"))
    case = cases("infsa_linear", mode=mode, compile="graph", dtype="float32")[0]
    built = builder.build(case, "cpu")
    assert seen == [built.call]
    built.call()
    assert all(p.grad is None for p in built.module.parameters())


def test_a_row_has_its_own_name_and_survives_the_file():
    case = Case("infsa_linear", compile="graph")
    assert case.key == "model/4L-64H/infer/1024x1024/b1/bfloat16/graph/infsa_linear"
    assert case.key != Case("infsa_linear").key
    assert read_case(case.as_dict()) == case


def test_a_file_keeps_graph_rows_beside_eager_rows(tmp_path):
    both = [*cases("infsa_linear"), *cases("infsa_linear", compile="graph")]
    run([both], tmp_path / "r.json")
    rows = read_results(tmp_path / "r.json")["rows"]
    assert [rows[case.key]["case"]["compile"] for case in both] == ["none", "graph"]
    assert all("latency_ms" in rows[case.key] for case in both)
    assert ",graph," in (tmp_path / "r.csv").read_text()


def test_without_cuda_it_is_refused_in_one_line(monkeypatch, capsys, tmp_path):
    with pytest.raises(ValueError, match="needs a CUDA device, got 'cpu'"):
        builder.build(cases("soft", compile="graph")[0], "cpu")
    arguments = ["bench", "--compile", "graph", "--device", "cpu", "--out", str(tmp_path / "r.json")]
    monkeypatch.setattr(sys, "argv", ["infsa", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert "compile='graph' replays a CUDA graph and needs a CUDA device, got 'cpu'" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "r.json").exists()


def test_the_preset_lists_what_the_ledger_needs():
    planned = {case.key: case for cases in PRESETS["graphs"]() for case in cases}
    names = {"softmax-naive", "infsa_pure-naive", *NINE} - {"softmax"}
    for config in ({"depth": 4, "heads": 64}, {"depth": 24, "heads": 16}):
        for name in names:
            for side, mode in ((1024, "infer"), (512, "train")):
                for compile in ("graph", "none"):
                    case = planned[Case(name, size=(side, side), mode=mode, compile=compile, **config).key]
                    assert case.energy
    for mode in ("infer", "train"):
        assert Case("infsa_linear", size=(224, 224), batch=64, mode=mode, compile="graph").key in planned
