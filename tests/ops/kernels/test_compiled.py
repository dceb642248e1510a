"""Without a GPU the kernels still compile for one: every default fits the shared memory of its generation."""

import pytest
import torch

from infsa.ops.validate import HAS_TRITON, INTERPRETED

if HAS_TRITON:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    from infsa.ops.triton import configs, pure_backward, pure_forward

KIB = {80: 163, 89: 99, 90: 227, 100: 227}  # shared memory that one program may take
KERNELS = {"pure_rows", "pure_keys", "pure_queries"}
TIGHT = {80: KERNELS, 89: KERNELS, 90: {"pure_rows"}, 100: {"pure_rows"}}  # those that come near the limit


def has_assembler():
    try:
        return HAS_TRITON and bool(triton.knobs.nvidia.ptxas.path)
    except RuntimeError:
        return False


pytestmark = pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available() or not has_assembler(),
    reason="needs Triton's assembler, and no GPU: there the kernels run",
)


class Driver:
    """As much of a GPU as the compiler asks for."""

    def __init__(self, generation):
        self.generation = generation

    def get_current_target(self):
        return GPUTarget("cuda", self.generation, 32)

    def get_current_device(self):
        return self.generation  # Triton keeps what it compiled per device

    def get_current_stream(self, device=None):
        return 0


@pytest.fixture
def compiled(request, monkeypatch):
    """What the launches of a generation compile to, by name of the kernel; nothing is launched."""
    found, run = {}, JITFunction.run

    def compile_only(self, *args, grid, warmup=False, **options):
        if self.__name__ in TIGHT[request.param]:
            found[self.__name__] = run(self, *args, grid=grid, warmup=True, **options)

    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(configs, "generation", lambda index: request.param)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(request.param))
    return found


@pytest.mark.parametrize("compiled", KIB, indirect=True)
def test_the_widest_heads_fit(compiled):
    """Of the widths, 128 takes the most memory."""
    generation = configs.generation(None)
    q, k, v, g = (torch.zeros(1, 512, 2, 128, dtype=torch.bfloat16).transpose(1, 2) for _ in range(4))
    gamma = torch.full((1, 1, 1), 0.7)
    z, norm = pure_forward.forward(q, k, v, gamma, "relu", False, 1e-6)
    pure_backward.backward(g, q, k, v, gamma, z, norm, "relu", False, 1e-6)
    assert set(compiled) == TIGHT[generation]
    for name, kernel in compiled.items():
        assert kernel.metadata.shared <= 1024 * KIB[generation], name
        assert ".target sm_" + str(generation) in kernel.asm["ptx"]
        uses_copy_engine = "cp.async.bulk.tensor" in kernel.asm["ptx"]
        assert not uses_copy_engine or generation >= 90


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), 80), ((8, 6), 89), ((8, 9), 89), ((9, 0), 90), ((10, 3), 100), ((12, 0), 89)]
)
def test_generations(capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    configs.generation.cache_clear()
    assert configs.generation(0) == expected
    configs.generation.cache_clear()
