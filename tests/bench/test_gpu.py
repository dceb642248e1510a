"""What only a GPU can show: its counters, its memory, its kernels."""

import pytest
import torch

from infsa.bench.child import Child
from infsa.bench.memory import largest
from infsa.bench.presets import group
from infsa.bench.settings import Settings
from infsa.bench.suite import run_plan

from .helpers import ALLOCATING, cases, rows_by_name

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_rows_on_a_gpu(tmp_path):
    names = ("infsa_linear", "softmax-naive", "softmax-flash", "performer")
    plan = [group(names, 224, depth=1, heads=4, width=256, energy=("infsa_linear",))]
    content = run_plan(plan, tmp_path / "r.json", "cuda", Settings(seconds=0.05, window=1.0))
    rows = rows_by_name(content)
    assert {row["status"] for row in rows.values()} == {"done"}
    assert all(row["peak_bytes"] > row["weights_bytes"] for row in rows.values())
    if content["machines"][0]["energy"] == "NVML":
        assert rows["infsa_linear"]["energy"]["watts"] > 0
        assert rows["infsa_linear"]["gpu"]["states"]


def test_a_capped_gpu_ends_where_the_cap_is():
    """A probe of side² bytes under a cap of 32768² bytes; libraries hold a few percent of it."""
    fields = cases("infsa_linear")[0].as_dict()
    with Child("cuda", 32768**2, ALLOCATING) as child:
        found = largest(
            lambda side: child.ask({"job": "probe", "case": {**fields, "size": [side, side]}}, 60).get("ran_out"),
            start=512,
            most=2**18,
            tolerance=0.01,
        )
    assert 0.9 < found.size / 32768 <= 1
    assert found.ran_out == "GPU memory"


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_an_eager_model_is_replayed_as_a_graph(tmp_path, mode):
    names = ("infsa_linear", "softmax-naive", "infsa_pure-naive")
    plan = [group(names, 224, depth=1, heads=4, width=256, mode=mode, compile="graph")]
    rows = rows_by_name(run_plan(plan, tmp_path / "r.json", "cuda", Settings(seconds=0.05)))
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(names, "done")
