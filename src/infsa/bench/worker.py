"""The process that touches the device: it reads one job per line, answers with one line, and may die.

    python -m infsa.bench.worker < jobs > answers

Built cases stay alive between jobs, so that several can be timed in turns.
"""

import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import torch

from ..provenance import provenance
from .build import Built, build
from .cases import BASE, Case, read_case
from .energy import Gpu, Meter, find_meter, open_gpu
from .flops import weights_bytes
from .memory import cap_memory, explain, peak, reset_peak, resource_of, settle, used
from .timing import LONG, calls_for, check_gemm, synchronize, time_calls

Answer = dict[str, Any]
WARM_UP = 0.1  # share of a round's time that an untimed call before it may take
WARM_UP_GPU = 1000.0  # milliseconds that it may take on a GPU, where it claims memory that other rows had
PARENT_DEATH_SIGNAL = 1  # of Linux's prctl


class Worker:
    """One device and the cases that are alive on it."""

    def __init__(self, device: str, cap: int | None = None) -> None:
        self.device = torch.device(device)
        self.alive: dict[str, tuple[Built, float]] = {}  # by key: the case and the time of one call in ms
        self.probed: set[str] = set()  # cases whose kernels are compiled
        self.gpu: Gpu | None = None
        self.why_no_gpu: str | None = None
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # sums that the mechanisms keep in float32 may use TF32
            found = open_gpu(self.device)
            self.gpu, self.why_no_gpu = (found, None) if isinstance(found, Gpu) else (None, found)
        self.meter: Meter | None = find_meter(self.device, self.gpu)
        if cap is not None:
            build(Case("softmax", 1, 1, (224, 224), "train", dtype="float32", width=64), self.device).call()
            settle(self.device)
            cap_memory(self.device, cap)  # now that libraries and threads have what they need

    def do(self, job: dict[str, Any]) -> Answer:
        """Do one job; an error of the job becomes part of the answer."""
        jobs: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "facts": self.facts, "gemm": self.gemm, "idle": self.idle, "prepare": self.prepare, "sample": self.sample,
            "energy": self.energy, "release": self.release, "probe": self.probe,
        }  # fmt: skip
        try:
            return jobs[job["job"]](job)
        except Exception as error:
            self.alive.pop(job.get("key", ""), None)
            answer: Answer = {"failed": explain(error), "ran_out": resource_of(error)}
        try:
            settle(self.device)
            synchronize(self.device)
        except RuntimeError:  # a kernel left its bounds: nothing runs in this process any more
            answer["broken"] = True
        return answer

    def facts(self, job: dict[str, Any]) -> Answer:
        """Versions and machine."""
        found = provenance(self.device)
        if self.device.type == "cuda":
            found["gpu_bytes"] = torch.cuda.get_device_properties(self.device).total_memory
            found["cuda"] = torch.version.cuda
            found["float32_matmul"] = torch.get_float32_matmul_precision()
        found["energy"] = self.meter.source if self.meter else (self.why_no_gpu or "no counter")
        return found

    def gemm(self, job: dict[str, Any]) -> Answer:
        """The known matrix product, and the state of the GPU right after it."""
        return {**check_gemm(self.device), "state": self.state()}

    def idle(self, job: dict[str, Any]) -> Answer:
        """Watts while nothing runs, the process alive."""
        if self.meter is None:
            return {"watts": None}
        begin, joules = time.perf_counter(), self.meter.joules()
        time.sleep(job["seconds"])
        return {"watts": (self.meter.joules() - joules) / (time.perf_counter() - begin)}

    def state(self) -> Answer | None:
        """Clocks and temperature, where the GPU tells them."""
        return None if self.gpu is None else self.gpu.state()

    def prepare(self, job: dict[str, Any]) -> Answer:
        """Build a case, warm it up, and measure its memory.

        With reduce-overhead the first call compiles, the second records, and only later ones replay. A graph allocates
        while it is built, so that its peak is that of building it.
        """
        case = read_case(job["case"])
        settle(self.device)
        before = used(self.device)
        reset_peak(self.device)
        built = build(case, self.device)
        first = self._wait_for(built)
        if self.device.type == "cuda" and case.compile != "graph":  # the first call compiles, and tries algorithms
            reset_peak(self.device)
        once = self._wait_for(built)
        if once < LONG:
            once = min(self._wait_for(built) for _ in range(2))
        most = peak(self.device)
        self.alive[job["key"]] = (built, 1e3 * once)
        return {
            "parameters": built.parameters,
            "first_s": first,
            "once_ms": 1e3 * once,
            "peak_bytes": None if most is None or before is None else most - before,
            "weights_bytes": weights_bytes(built.module),
        }

    def _wait_for(self, built: Built) -> float:
        begin = time.perf_counter()
        built.call()
        synchronize(self.device)
        return time.perf_counter() - begin

    def sample(self, job: dict[str, Any]) -> Answer:
        """One round of timed calls, after one that takes its memory back from the rows before."""
        built, once = self.alive[job["key"]]
        affordable = 1e3 * WARM_UP * job["seconds"]
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            affordable = WARM_UP_GPU
        if once < affordable:
            built.call()
        times = time_calls(built.call, self.device, calls_for(job["seconds"], once))
        return {"times": times, "state": self.state()}

    def energy(self, job: dict[str, Any]) -> Answer:
        """Calls for at least so many seconds, timed too, between two readings of the counter."""
        if self.meter is None:
            return {"source": None}
        built, once = self.alive[job["key"]]
        times: list[float] = []
        synchronize(self.device)
        begin, joules = time.perf_counter(), self.meter.joules()
        while (seconds := time.perf_counter() - begin) < job["seconds"]:
            times += time_calls(built.call, self.device, calls_for(0.25, once))
        used_joules = self.meter.joules() - joules
        if used_joules <= 0:
            return {"source": None, "why": f"the counter of {self.meter.source} stood still"}
        return {
            "source": self.meter.source,
            "joules": used_joules,
            "seconds": seconds,
            "calls": len(times),
            "times": [statistics.median(times)],
            "state": self.state(),
        }

    def release(self, job: dict[str, Any]) -> Answer:
        """Let all cases go, and what the compiler keeps of them."""
        self.alive.clear()
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        settle(self.device)
        return {}

    def probe(self, job: dict[str, Any]) -> Answer:
        """Run a case once: does it fit, and in so many seconds? Compiling its kernels does not count."""
        case, limit = read_case(job["case"]), job["seconds"]
        small = case.at(max(1, BASE // case.patch) * case.patch)
        if small.key not in self.probed:
            build(small, self.device).call()
            self.probed.add(small.key)
        settle(self.device)
        reset_peak(self.device)
        built = build(case, self.device)
        seconds = self._wait_for(built)
        if limit < seconds < 2 * limit:  # near the limit: without what only a first call does
            seconds = self._wait_for(built)
        return {"seconds": seconds, "peak_bytes": peak(self.device)}


def answer_jobs(jobs: TextIO, answers: TextIO, make: Callable[..., Worker] = Worker) -> None:
    """Answer jobs until there are no more. The first line says on which device, with which memory cap."""

    def tell(answer: Answer) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    worker = make(**json.loads(jobs.readline()))
    tell({"ready": True})
    for line in jobs:
        answer = worker.do(json.loads(line))
        tell(answer)
        if answer.get("broken"):
            return


def serve(make: Callable[..., Worker] = Worker) -> None:
    """Answer on what was standard output; whatever else prints goes to standard error. Ends with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answer_jobs(sys.stdin, answers, make)


if __name__ == "__main__":
    serve()
