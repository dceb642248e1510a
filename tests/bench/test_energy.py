"""Joules from counters that look like the real ones."""

from types import SimpleNamespace

import pytest

from infsa.bench.energy import WINDOW, Gpu, Meter, find_meter, formula_joules, rapl_meter, throttle_names
from infsa.bench.results import energy_row
from infsa.bench.worker import Worker


def package(root, name, joules, largest=262143328850, kind="package-0"):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{kind}\n")
    (folder / "energy_uj").write_text(f"{int(joules * 1e6)}\n")
    (folder / "max_energy_range_uj").write_text(f"{largest}\n")


def test_rapl_adds_packages_and_leaves_their_parts_out(tmp_path):
    package(tmp_path, "intel-rapl:0", 10)
    package(tmp_path, "intel-rapl:1", 20)
    package(tmp_path, "intel-rapl:0:0", 5, kind="core")  # of package 0: already in it
    package(tmp_path, "intel-rapl:2", 40, kind="psys")  # the whole platform: both packages are in it
    meter = rapl_meter(tmp_path)
    begin = meter.joules()
    package(tmp_path, "intel-rapl:0", 13)
    package(tmp_path, "intel-rapl:1", 24)
    package(tmp_path, "intel-rapl:0:0", 7, kind="core")
    package(tmp_path, "intel-rapl:2", 50, kind="psys")
    assert meter.joules() - begin == pytest.approx(7)
    assert meter.source == "RAPL"


def test_rapl_counters_start_again(tmp_path):
    package(tmp_path, "intel-rapl:0", 99, largest=100_000_000 - 1)
    meter = rapl_meter(tmp_path)
    package(tmp_path, "intel-rapl:0", 2, largest=100_000_000 - 1)
    assert meter.joules() == pytest.approx(3)


@pytest.mark.parametrize("text", [None, "", "secret"])
def test_counters_that_cannot_be_read_are_none(tmp_path, text):
    package(tmp_path, "intel-rapl:0", 10)
    counter = tmp_path / "intel-rapl:0" / "energy_uj"
    counter.unlink() if text is None else counter.write_text(text)
    assert rapl_meter(tmp_path) is None


def test_no_counter_no_meter(tmp_path):
    assert rapl_meter(tmp_path) is None
    assert find_meter(SimpleNamespace(type="mps")) is None
    assert energy_row({"source": None}, 1, 0.0) == {"source": None}


def test_the_papers_formula():
    assert formula_joules(0.05816, "infer") == pytest.approx(11.63, abs=0.005)  # its Table 1, ViT-4L
    assert formula_joules(0.00941, "train") == pytest.approx(2.82, abs=0.005)


class FakeNvml:
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return 12_500

    def nvmlDeviceGetClockInfo(self, handle, which):
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetPowerUsage(self, handle):
        raise self.NVMLError("not supported")

    def nvmlDeviceGetTemperature(self, handle, which):
        return 41

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 0x20 | 0x01


def test_nvml_counts_millijoules_and_leaves_out_what_it_does_not_know():
    gpu = Gpu(FakeNvml(), None)
    assert gpu.meter().joules() == 12.5
    assert gpu.state() == {"sm_mhz": 1980, "memory_mhz": 3201, "celsius": 41, "throttled": ["software thermal"]}
    assert throttle_names(0x01) == []  # idle is no throttling


def test_a_gpu_without_a_counter_still_tells_its_clocks():
    class NoCounter(FakeNvml):
        def nvmlDeviceGetTotalEnergyConsumption(self, handle):
            raise self.NVMLError("not supported")

    gpu = Gpu(NoCounter(), None)
    assert gpu.meter() is None
    assert gpu.state()["sm_mhz"] == 1980


class Clock:
    """Time that passes only in calls and sleep."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def timed_worker(monkeypatch):
    """A worker on a clock of its own, with one case whose call takes 300 ms, and a meter of 40 W idle, 100 W busy."""
    clock, busy = Clock(), []
    for module in ("worker", "timing"):
        monkeypatch.setattr(f"infsa.bench.{module}.time", clock)

    def call():
        clock.now += 0.3
        busy.append(0.3)

    worker = Worker("cpu")
    worker.meter = Meter("fake", lambda: 40 * clock.now + 60 * sum(busy))
    worker.alive["case"] = (SimpleNamespace(call=call), 300.0)
    return worker


def test_a_window_is_at_least_as_long_as_asked_and_counts_every_call(timed_worker):
    answer = timed_worker.do({"job": "energy", "key": "case", "seconds": WINDOW})
    assert WINDOW == 5.0
    assert answer["seconds"] >= 5
    assert answer["calls"] == round(answer["seconds"] / 0.3)
    assert answer["joules"] == pytest.approx(100 * answer["seconds"])
    row = energy_row(answer, batch=2, idle=timed_worker.do({"job": "idle", "seconds": 2.0})["watts"])
    assert row["joules_per_image"] == pytest.approx(100 * 0.3 / 2)
    assert row["joules_above_idle"] == pytest.approx(60 * 0.3 / 2)


@pytest.mark.parametrize("step", [0.0, -5.0])
def test_a_counter_that_stands_still_or_falls_is_no_measurement(timed_worker, step):
    readings = iter([7.0, 7.0 + step])
    timed_worker.meter = Meter("fake", lambda: next(readings))
    answer = timed_worker.do({"job": "energy", "key": "case", "seconds": 5.0})
    assert energy_row(answer, 1, 0.0) == {"source": None, "why": "the counter of fake stood still"}
