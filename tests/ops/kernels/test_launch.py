"""A kernel called directly: compiled once per alignment, with the arguments Triton would have passed."""

import types

import pytest
import torch

from infsa.ops.dispatch import HAS_TRITON

if not HAS_TRITON:
    pytest.skip("needs Triton", allow_module_level=True)

from triton.runtime import _allocation

from infsa.models import token_kernels
from infsa.ops.linear import plan as plans
from infsa.ops.triton import launch


class Kernel:
    """A kernel that counts how often it is compiled, and keeps what it is run with."""

    arg_names = ("x_ptr", "y_ptr", "n", "DIM", "BLOCK")

    def __init__(self):
        self.compiled, self.runs = [], []

    def __getitem__(self, grid):
        def compiled(*arguments, **constants):
            hook = launch.RUNTIME.jit_cache_hook
            if hook is not None:
                hook(key="Triton asks before it compiles")
            self.allocator = _allocation._allocator.get()
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


def test_numbers_of_a_call_come_before_the_fixed_ones(kernel):
    call = launch.Launch(kernel, (1,), (5,), {"DIM": 8, "BLOCK": 4}, torch.device("cuda", 0))
    x = torch.zeros(64)
    for number in (0.5, 0.6):
        call(x, numbers=(number,))
    assert kernel.runs[0][-5:] == (x.data_ptr(), 0.6, 5, 8, 4)
    assert len(kernel.compiled) == 1


@pytest.mark.parametrize("of", ["operators", "fast models"])
def test_a_first_call_inside_a_capture_is_refused_in_one_line(kernel, monkeypatch, of):
    monkeypatch.setattr(token_kernels, "INTERPRETED", False)
    constants, x = {"DIM": 8, "BLOCK": 4}, torch.zeros(64)
    if of == "operators":
        call = launch.Launch(kernel, (1,), (5,), constants, torch.device("cuda", 0))
    else:
        launcher = token_kernels.Launcher(kernel, 0, constants)
        call = lambda *tensors: launcher((1, 1, 1), tensors, 5)  # noqa: E731
    monkeypatch.setattr(launch, "capturing", lambda: True)
    before = launch.RUNTIME.jit_cache_hook
    with pytest.raises(RuntimeError, match=r"^a first call inside a CUDA graph capture .+ call once [^\n]+ before$"):
        call(x, x)
    assert launch.RUNTIME.jit_cache_hook is before
    monkeypatch.setattr(launch, "capturing", lambda: False)
    call(x, x)
    monkeypatch.setattr(launch, "capturing", lambda: True)
    call(x, x)
    assert len(kernel.runs) == 1


def test_memory_for_descriptors_is_the_current_devices_and_a_users_allocator_returns(kernel, monkeypatch):
    def mine(size, alignment, stream):
        raise AssertionError("not asked")

    call = launch.Launch(kernel, (1,), (5,), {"DIM": 8, "BLOCK": 4}, torch.device("cuda", 0), descriptors=True)
    token = _allocation._allocator.set(mine)
    call(torch.zeros(64), torch.zeros(64))
    assert _allocation._allocator.get() is mine
    _allocation._allocator.reset(token)
    asked = []
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: asked.append((size, dtype, device)))
    kernel.allocator(48, 16, None)
    assert asked == [(48, torch.int8, "cuda")]  # no index: that of the moment


def test_plans_are_shared_by_equal_calls_only_and_bounded():
    kind = plans.Kind(
        torch.Size((1, 20, 32)), torch.bfloat16, torch.device("cpu"), 2, 32, 32, True, True, False, "relu", 1e-6, 0.7
    )
    changes = [
        {"shape": torch.Size((1, 21, 32))},
        {"dtype": torch.float32},
        {"heads": 4},
        {"eps": 1e-5},
        {"gamma": 0.5},
        {"gamma": None},
    ]
    assert plans.plan_of(kind) is plans.plan_of(kind._replace(heads=2))
    assert len({id(plans.plan_of(kind._replace(**change))) for change in ({}, *changes)}) == 7
    assert plans.plan_of.cache_info().maxsize == plans.PLANS
