"""What the measuring process does with a case, on a clock that only calls move, with errors like those of a GPU."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from infsa.bench.worker import Worker

from .helpers import cases

KEY, FIELDS = cases("soft")[0].key, cases("soft")[0].as_dict()


@pytest.fixture
def played(monkeypatch):
    """A worker whose built cases take the times (in seconds) of a list, then of its last entry."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    calls = []

    def play(*times):
        def call():
            clock.now += times[min(len(calls), len(times) - 1)]
            calls.append(clock.now)

        built = SimpleNamespace(call=call, parameters=7, module=torch.nn.Linear(2, 3))
        monkeypatch.setattr("infsa.bench.worker.build", lambda case, device: built)
        return Worker("cpu"), calls

    for module in ("worker", "timing"):
        monkeypatch.setattr(f"infsa.bench.{module}.time", clock)
    return play


def prepare(worker):
    return worker.do({"job": "prepare", "case": FIELDS, "key": KEY})


def test_compiling_and_recording_do_not_count(played):
    """As with CUDA graphs: the first call compiles, the second records, the third and fourth replay."""
    worker, calls = played(30.0, 2.0, 0.01)
    answer = prepare(worker)
    assert len(calls) == 4
    assert answer["first_s"] == 30.0
    assert answer["once_ms"] == pytest.approx(10)
    assert answer["weights_bytes"] == 36


def test_a_call_of_many_seconds_is_made_twice_only(played):
    worker, calls = played(16.0, 15.0)
    assert prepare(worker)["once_ms"] == pytest.approx(15_000)
    assert len(calls) == 2


def test_a_round_fills_its_time_after_a_call_that_does_not_count(played):
    worker, calls = played(0.01)
    prepare(worker)
    before = len(calls)
    answer = worker.do({"job": "sample", "key": KEY, "seconds": 0.25})
    assert answer["times"] == pytest.approx([10.0] * 25, abs=1e-6)
    assert len(calls) - before == 26


def test_a_probe_near_the_limit_gets_a_second_call_and_others_do_not(played):
    for times, seconds, made in (((0.1, 2.0), 2.0, 2), ((9.0, 3.5, 2.9), 2.9, 3), ((9.0, 7.0), 7.0, 2)):
        worker, calls = played(*times)  # the first call is at 224 pixels and compiles
        calls.clear()
        answer = worker.do({"job": "probe", "case": FIELDS, "seconds": 3.0})
        assert answer["seconds"] == pytest.approx(seconds)
        assert len(calls) == made


def failing(error, held):
    def build(case, device):
        tensor = torch.zeros(8)
        held.append(weakref.ref(tensor))
        raise type(error)(*error.args)

    return build


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 550.00 GiB"), "GPU memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "GPU memory"),
        (RuntimeError("backend='inductor' raised:\nNoTritonConfigsError: no valid configs"), None),
    ],
)
def test_what_a_failed_case_held_is_free_and_the_answer_says_why(error, ran_out, monkeypatch):
    held = []
    monkeypatch.setattr("infsa.bench.worker.build", failing(error, held))
    answer = prepare(Worker("cpu"))
    gc.collect()
    assert answer["ran_out"] == ran_out
    assert answer["failed"].startswith(type(error).__name__)
    assert "\n" not in answer["failed"]
    assert held[0]() is None


def test_a_gpu_that_is_lost_is_reported(monkeypatch):
    def lost(device):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("infsa.bench.worker.build", failing(RuntimeError("CUDA error: illegal"), []))
    monkeypatch.setattr("infsa.bench.worker.synchronize", lost)
    assert prepare(Worker("cpu"))["broken"]
