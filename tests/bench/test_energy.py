"""Joules from counters that look like the real ones."""

from types import SimpleNamespace

import pytest

from infsa.bench.energy import Gpu, find_meter, formula_joules, rapl_meter, throttle_names
from infsa.bench.results import energy_row


def package(root, name, joules, largest=262143328850):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{int(joules * 1e6)}\n")
    (folder / "max_energy_range_uj").write_text(f"{largest}\n")


def test_rapl_adds_packages_and_leaves_their_parts_out(tmp_path):
    package(tmp_path, "intel-rapl:0", 10)
    package(tmp_path, "intel-rapl:1", 20)
    package(tmp_path, "intel-rapl:0:0", 5)  # cores of package 0: already in it
    meter = rapl_meter(tmp_path)
    begin = meter.joules()
    package(tmp_path, "intel-rapl:0", 13)
    package(tmp_path, "intel-rapl:1", 24)
    package(tmp_path, "intel-rapl:0:0", 7)
    assert meter.joules() - begin == pytest.approx(7)
    assert meter.source == "RAPL"


def test_rapl_counters_start_again(tmp_path):
    package(tmp_path, "intel-rapl:0", 99, largest=100_000_000 - 1)
    meter = rapl_meter(tmp_path)
    package(tmp_path, "intel-rapl:0", 2, largest=100_000_000 - 1)
    assert meter.joules() == pytest.approx(3)


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
