"""The search finds the limit, and an artificial cap is one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infsa.bench.cases import Case
from infsa.bench.child import Child
from infsa.bench.flops import formula
from infsa.bench.memory import cap_memory, largest, next_side, resource_of

from .helpers import ALLOCATING, cases


@settings(max_examples=200, deadline=None)
@given(limit=st.integers(0, 3000), start=st.integers(1, 500), most=st.integers(1, 2000), tolerance=st.floats(0, 0.2))
def test_the_search_finds_the_limit(limit, start, most, tolerance):
    found = largest(lambda size: "memory" if size > limit else None, start, most, tolerance)
    best = min(limit, most)
    assert found.size <= best
    assert best - found.size <= max(1, tolerance * found.size) - (tolerance * found.size < 2)
    assert found.ran_out == (None if limit >= most else "memory")
    assert len({probe.size for probe in found.probes}) == len(found.probes)


@pytest.mark.parametrize(("mechanism", "at_1024"), [("softmax", 0.004), ("infsa_linear", 0.004), ("softmax", 2.0)])
def test_a_search_never_runs_far_beyond_its_time_limit(mechanism, at_1024):
    """Times that grow with the multiply-adds and a limit of 3 s: the next size is chosen by them, not by doubling."""
    case = Case(mechanism, size=(512, 512), limit=True)
    times = {}

    def try_size(side):
        times[side] = at_1024 * formula(case.at(16 * side)) / formula(case.at(1024))
        return "time" if times[side] > 3 else None

    found = largest(try_size, 32, 4096, 0.03, lambda side: next_side(case, 16 * side, times[side], 3.0) // 16)
    assert max(times.values()) < 3 * 1.5
    assert times[found.size] <= 3
    assert at_1024 * formula(case.at(round(16 * 1.05 * found.size) // 16 * 16)) / formula(case.at(1024)) > 3


def test_a_capped_process_ends_where_the_cap_is():
    """A probe of side² bytes under a cap of 8192² bytes, in a process that really runs out; within 2 % of the side."""
    case = cases("infsa_linear")[0]
    with Child("cpu", 8192**2, ALLOCATING) as child:
        found = largest(
            lambda side: child.ask({"job": "probe", "case": {**case.as_dict(), "size": [side, side]}}, 60).get(
                "ran_out"
            ),
            start=512,
            most=65536,
            tolerance=0.005,
        )
        assert child.starts == 1  # it ran out of memory several times and lived
    assert abs(found.size / 8192 - 1) < 0.02
    assert found.ran_out == "host memory"


def test_errors_name_their_resource():
    assert resource_of(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")) == "GPU memory"
    assert resource_of(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")) == "GPU memory"
    assert resource_of(MemoryError()) == "host memory"
    assert resource_of(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")) == "host memory"
    assert resource_of(RuntimeError("shapes cannot be multiplied")) is None


def test_a_cap_on_a_gpu_names_the_device_by_its_number(monkeypatch):
    """A device without one is refused by some versions of torch."""
    seen = []
    properties = type("Properties", (), {"total_memory": 100})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: seen.append((share, device))
    )
    cap_memory(torch.device("cuda"), 25)
    cap_memory(torch.device("cuda:1"), 500)
    assert seen == [(0.25, 3), (1.0, 1)]
