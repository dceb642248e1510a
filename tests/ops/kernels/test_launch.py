"""A kernel called directly: compiled once per alignment, with the arguments Triton would have passed."""

import types

import pytest
import torch

from infsa.ops.checks import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

from infsa.ops.linear import fused
from infsa.ops.triton import launch


class Kernel:
    """A kernel that counts how often it is compiled, and keeps what it is run with."""

    arg_names = ("x_ptr", "y_ptr", "n", "DIM", "BLOCK")

    def __init__(self):
        self.compiled, self.runs = [], []

    def __getitem__(self, grid):
        def compiled(*arguments, **constants):
            self.compiled.append((grid, constants))
            run = lambda *arguments: self.runs.append(arguments)  # noqa: E731
            return types.SimpleNamespace(run=run, function="function", packed_metadata="metadata")

        return compiled


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: ("stream", index), raising=False)
    return Kernel()


def test_a_repeated_call_is_the_same_launch_without_triton(kernel):
    constants = {"BLOCK": 4, "DIM": 8, "num_warps": 2}
    call = launch.Launch(kernel, (3, 2), (5,), constants, torch.device("cuda", 1))
    x, y, z = (torch.zeros(64) for _ in range(3))
    call(x, y)
    assert kernel.compiled == [((3, 2, 1), constants)]
    assert not kernel.runs
    call(x, y)
    call(x, z)
    assert len(kernel.compiled) == 1
    grid, handle, hooks = (3, 2, 1), (("stream", 1), "function", "metadata"), (None, None, None)
    for found, last in zip(kernel.runs, (y, z), strict=True):
        assert found == (*grid, *handle, *hooks, x.data_ptr(), last.data_ptr(), 5, 8, 4)


def test_another_alignment_is_compiled_for_itself(kernel):
    call = launch.Launch(kernel, (1,), (5,), {"DIM": 8, "BLOCK": 4}, torch.device("cuda", 0))
    x, y = torch.zeros(64), torch.zeros(64)
    for expected, pair in enumerate([(x, y), (x[1:], y), (x, y[1:]), (x[1:], y[1:])], start=1):
        call(*pair)
        call(*pair)
        assert len(kernel.compiled) == expected
    call(x[2:], y)  # no multiple of 16 bytes either
    assert len(kernel.compiled) == 4


def test_somebody_who_watches_launches_sees_them(kernel, monkeypatch):
    call = launch.Launch(kernel, (1,), (5,), {"DIM": 8, "BLOCK": 4}, torch.device("cuda", 0))
    x = torch.zeros(64)
    call(x, x)
    monkeypatch.setattr(launch.triton.knobs.runtime, "launch_enter_hook", lambda *_: None)
    call(x, x)
    assert len(kernel.compiled) == 2
    assert not kernel.runs


def test_plans_are_shared_by_equal_calls_only_and_bounded():
    def plan(n=20, dtype=torch.bfloat16, heads=2, eps=1e-6, gamma=0.7):
        biased, device = (True, True), torch.device("cpu")
        return fused.plan_of(torch.Size((1, n, 32)), dtype, device, heads, 32, 32, biased, False, "relu", eps, gamma)

    changed = [plan(n=21), plan(dtype=torch.float32), plan(heads=4), plan(eps=1e-5), plan(gamma=0.5), plan(gamma=None)]
    assert plan() is plan()
    assert len({id(y) for y in (plan(), *changed)}) == 7
    assert fused.plan_of.cache_info().maxsize == fused.PLANS
