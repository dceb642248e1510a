"""Speaks the worker's language without torch: some mechanisms crash, hang, fail or run out of memory."""

import json
import os
import sys
import time

LARGEST = {"softmax-naive": 1000, "infsa_linear": 100_000}  # sides that fit


def prepare(job):
    name = job["case"]["mechanism"]
    if name == "soft":
        os.abort()
    if name == "agent":
        time.sleep(60)
    if name == "mlla":
        return {"failed": "ValueError: no", "ran_out": None}
    if name == "softmax-naive":
        return {"failed": "OutOfMemoryError: CUDA out of memory", "ran_out": "GPU memory"}
    return {"parameters": 7, "first_s": 0.1, "once_ms": 2.0, "peak_bytes": 300, "weights_bytes": 100}


def sample(job):
    if job["key"].endswith("flatten"):
        os.kill(os.getpid(), 9)
    return {"times": [2.0, 2.0, 3.0], "state": {"sm_mhz": 1980, "throttled": []}}


def energy(job):
    return {"source": "NVML", "joules": 500.0, "seconds": 5.0, "calls": 100, "times": [2.0], "state": None}


def probe(job):
    side, name = job["case"]["size"][0], job["case"]["mechanism"]
    if name == "mlla":
        return {"failed": "ValueError: no", "ran_out": None}
    if name == "agent" and side > 600:
        time.sleep(60)
    if side > LARGEST.get(name, 2000):
        return {"failed": "OutOfMemoryError", "ran_out": "GPU memory"}
    with open(os.environ.get("FAKE_LOG", os.devnull), "a") as log:
        log.write(f"{side}\n")
    return {"seconds": 99.0 if side > 5000 else 0.001, "peak_bytes": 1}


JOBS = {
    "facts": lambda job: {"gpu": os.environ.get("FAKE_GPU", "fake"), "torch": "0"},
    "idle": lambda job: {"watts": 50.0},
    "gemm": lambda job: {"harness_ms": 1.0, "direct_ms": 1.0, "ratio": 1.0, "tflops": 1.0},
    "release": lambda job: {},
    "prepare": prepare,
    "sample": sample,
    "energy": energy,
    "probe": probe,
}


def die_once(kind):
    """Killed at the first job of the kind that FAKE_DIES names, with a file that remembers it."""
    name, _, path = os.environ.get("FAKE_DIES", "").partition(":")
    if name == kind and not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), 9)


sys.stdin.readline()
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    job = json.loads(line)
    die_once(job["job"])
    print(json.dumps(JOBS[job["job"]](job)), flush=True)
