"""Energy from the counters that a machine has: NVML on NVIDIA GPUs, RAPL on CPUs that show it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PAPER_WATTS = {"train": 300.0, "infer": 200.0}  # the paper's constants: energy = watts × time
WINDOW = 5.0  # seconds: counters move in steps of up to a tenth of a second
RAPL = Path("/sys/class/powercap")
THROTTLE = {  # bits of NVML's clock event reasons that slow a GPU down
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


class Meter:
    """A counter of joules and its name."""

    def __init__(self, source: str, joules: Callable[[], float]) -> None:
        self.source, self.joules = source, joules


def formula_joules(seconds: float, mode: str) -> float:
    """The paper's energy: 300 W in training, 200 W in inference, times the time."""
    return PAPER_WATTS[mode] * seconds


def find_meter(device: torch.device, gpu: "Gpu | None" = None) -> Meter | None:
    """The counter for a device, or None where there is none."""
    if device.type == "cuda":
        return None if gpu is None else gpu.meter()
    return rapl_meter() if device.type == "cpu" else None


def rapl_meter(root: Path = RAPL) -> Meter | None:
    """The sum over all processor packages; None where the kernel shows no counter, or not to this user.

    Counters of a package's parts, and that of the whole platform, would count the same joules again.
    """
    packages = [p for p in sorted(root.glob("intel-rapl:*")) if p.name.count(":") == 1]
    try:
        packages = [p for p in packages if (p / "name").read_text().startswith("package")]
        counters = [(p / "energy_uj", _number(p / "max_energy_range_uj")) for p in packages]
        last = [_number(path) for path, _ in counters]
    except (OSError, ValueError):
        return None
    if not counters:
        return None
    total = 0.0

    def joules() -> float:
        nonlocal total
        for index, (path, largest) in enumerate(counters):
            now = _number(path)
            total += (now - last[index]) % (largest + 1) / 1e6  # the counter starts again at 0
            last[index] = now
        return total

    return Meter("RAPL", joules)


def _number(path: Path) -> int:
    return int(path.read_text())


def open_gpu(device: torch.device) -> "Gpu | str":
    """NVML's view of a CUDA device, or in a few words why there is none."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        return Gpu(pynvml, _handle(pynvml, device))
    except pynvml.NVMLError as error:
        return f"NVML: {error}"


def _handle(nvml: Any, device: torch.device) -> Any:
    """By identity, since CUDA and NVML may number the GPUs differently."""
    identity = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByIndex(device.index or 0)


class Gpu:
    """Clocks, temperature, power and the energy counter of one GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle

    def meter(self) -> Meter | None:
        """The counter of everything used since the driver was loaded; None on a GPU that has none."""
        meter = Meter("NVML", lambda: self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1e3)
        try:
            meter.joules()
        except self.nvml.NVMLError:
            return None
        return meter

    def state(self) -> dict[str, Any]:
        """What may explain a change of speed; what NVML does not tell is left out."""
        nvml, handle = self.nvml, self.handle
        questions: dict[str, Callable[[], Any]] = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            "throttled": lambda: throttle_names(_event_reasons(nvml)(handle)),
        }
        found = {}
        for name, ask in questions.items():
            try:
                found[name] = ask()
            except (nvml.NVMLError, AttributeError):
                continue
        return found


def _event_reasons(nvml: Any) -> Callable[[Any], int]:
    """Its name changed between versions of NVML."""
    new = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return new or nvml.nvmlDeviceGetCurrentClocksThrottleReasons


def throttle_names(bits: int) -> list[str]:
    """The reasons among NVML's bits that slow a GPU down."""
    return [name for bit, name in THROTTLE.items() if bits & bit]
