"""Without a GPU the kernels still compile for one: every default fits the shared memory of its generation."""

import pytest
import torch

import infsa
from infsa.ops.dispatch import HAS_TRITON, INTERPRETED

from .helpers import backward, forward

if HAS_TRITON:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    from infsa.models import embedding, token_kernels, tokenwise
    from infsa.models import fp8 as fp8_products
    from infsa.ops.linear import fused, plan
    from infsa.ops.pure import triton_backward as pure_backward
    from infsa.ops.pure import triton_forward as pure_forward
    from infsa.ops.triton import channel_norm, configs

KIB = {80: 163, 89: 99, 90: 227, 100: 227}  # shared memory that one program may take
KERNELS = {"pure_rows", "pure_keys", "pure_queries"}
SIDES = {True: "pure_keys", False: "pure_queries"}  # of one kernel, by its constant
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


def compile_only(monkeypatch, generation, wanted=None):
    """What launches compile to on a generation, by the kernel's name: those ``wanted``, or all; nothing is launched."""
    found, run = {}, JITFunction.run

    def compiled(self, *args, grid, warmup=False, **options):
        name = SIDES.get(options.get("KEYS"), self.__name__)
        if wanted is None or name in wanted:
            found[name] = run(self, *args, grid=grid, warmup=True, **options)

    monkeypatch.setattr(JITFunction, "run", compiled)
    monkeypatch.setattr(configs, "generation", lambda index: generation)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(generation))
    return found


@pytest.fixture
def compiled(request, monkeypatch):
    without_plans(monkeypatch)
    return compile_only(monkeypatch, request.param, TIGHT[request.param])


def without_plans(monkeypatch):
    """Plans would outlive the generation they were made for."""
    monkeypatch.setattr(pure_forward, "forward_plan", pure_forward.Forward)
    monkeypatch.setattr(pure_backward, "_backward_plan", pure_backward.Backward)


@pytest.mark.parametrize("compiled", KIB, indirect=True)
def test_the_widest_heads_fit(compiled):
    """Of the widths, 128 takes the most memory."""
    generation = configs.generation(None)
    q, k, v, g = (torch.zeros(1, 512, 2, 128, dtype=torch.bfloat16).transpose(1, 2) for _ in range(4))
    call, options = (q, k, v, 0.7, None), ("relu", False, 1e-6)
    backward(g, call, forward(call, *options), *options)
    assert set(compiled) == TIGHT[generation]
    for name, kernel in compiled.items():
        assert kernel.metadata.shared <= 1024 * KIB[generation], name
        assert ".target sm_" + str(generation) in kernel.asm["ptx"]
        uses_copy_engine = "cp.async.bulk.tensor" in kernel.asm["ptx"]
        assert not uses_copy_engine or generation >= 90


PASSES = {"pure_rows", "pure_scale", "pure_row_dots", "pure_keys", "pure_queries"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by_row", [False, True], ids=["prefix", "row"])
def test_every_kind_of_norm_compiles(dtype, by_row, monkeypatch):
    """Causal, with a γ per head: what makes the compiler take another branch than the widest heads."""
    found = compile_only(monkeypatch, 90)
    without_plans(monkeypatch)
    q = torch.zeros(1, 2, 100, 64, dtype=dtype)
    seen = torch.ones(1, 100, dtype=torch.float64) if by_row else None
    call, options = (q, q, q, torch.ones(2), seen), ("gelu", True, 1e-6)
    backward(q, call, forward(call, *options), *options)
    assert set(found) == PASSES | (set() if by_row or dtype == torch.float16 else {"pure_later_rows"})


FORWARD = {"span_kernel", "central_kernel", "edge_kernel", "value_kernel"}
BACKWARD = {"row_kernel", "edge_gradient_kernel", "central_gradient_kernel", "query_gradient_kernel", "weight_kernel"}
LAYERS = {  # images, heads, activation, masked, tied, bias, learned γ: what makes the compiler take another branch
    "one image": (1, 64, "relu", False, True, True, False),
    "many images": (64, 16, "gelu", True, False, False, True),
}


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [("one image", torch.bfloat16), ("many images", torch.float16), ("one image", torch.float32)],
    ids=str,
)
def test_the_way_from_tokens_to_values_and_back(layer, dtype, monkeypatch):
    """The interpreter accepts what the compiler refuses, a name that changes its shape for instance."""
    images, heads, activation, masked, tied, bias, learned = LAYERS[layer]
    found = compile_only(monkeypatch, 90)
    monkeypatch.setattr(plan, "plan_of", plan.Plan)
    monkeypatch.setattr(plan, "generation", lambda index: 90)
    weights = [torch.zeros(1024, 1024, dtype=dtype, requires_grad=True) for _ in range(3)]
    pairs = [(w, torch.zeros(1024, dtype=w.dtype, requires_grad=True) if bias else None) for w in weights]
    x = torch.zeros(images, 20, 1024, dtype=dtype, requires_grad=True)
    gamma = torch.full((heads,), 0.7, requires_grad=True) if learned else 0.7
    mask = torch.ones(images, 20, dtype=torch.bool) if masked else None
    key = None if tied else pairs[1]
    values = fused.fused_values(x, heads, pairs[0], key, pairs[2], gamma, mask, activation, 1e-6)
    assert set(found) == FORWARD
    values.sum().backward()
    assert set(found) == FORWARD | BACKWARD
    for name, kernel in found.items():
        assert kernel.metadata.shared <= 1024 * min(KIB.values()), name  # the sizes are those of every generation


@pytest.mark.parametrize("channels", [24, 1024])
def test_the_norm_of_the_stem(channels, monkeypatch):
    found = compile_only(monkeypatch, 90)
    x = torch.zeros(1, 5, 5, channels, dtype=torch.bfloat16, requires_grad=True)
    channel_norm.ChannelNorm.apply(x, torch.ones(channels), torch.zeros(channels), 1e-6).sum().backward()
    assert set(found) == {"_forward", "_backward"}


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 0), 80), ((8, 6), 89), ((8, 9), 89), ((9, 0), 90), ((10, 3), 100), ((12, 0), 89)]
)
def test_generations(capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    configs.generation.cache_clear()
    assert configs.generation(0) == expected
    configs.generation.cache_clear()


@pytest.mark.parametrize("fp8", [False, True])
@torch.no_grad()
def test_the_kernels_of_a_fast_model(fp8, monkeypatch):
    """Compiled once for all numbers of tokens and sizes of images."""
    found, counted = compile_only(monkeypatch, 90), []
    token_kernels._launcher.cache_clear()
    for module in (tokenwise, embedding, fp8_products):
        monkeypatch.setattr(module, "kernels_run", lambda x: True)
    model = infsa.create_model("infvit_linear_4l64h_patch16_224", depth=2, num_classes=3, attention="mean")
    quick = infsa.models.fast(model.to(torch.bfloat16).eval(), fp8=fp8, chunk=64, compile=False)
    for size in ((1, 64, 48), (2, 128, 160), (1, 80, 96), (3, 64, 64)):
        quick(torch.zeros(size[0], 3, *size[1:], dtype=torch.bfloat16))
        counted.append(token_kernels._launcher.cache_info().currsize)
    assert counted[1] == counted[3]  # known after one image and two
    assert set(found) == {"norm_kernel", "unfold_kernel", "position_kernel"} | ({"round_kernel"} if fp8 else set())
    for name, kernel in found.items():
        assert kernel.metadata.shared <= 1024 * min(KIB.values()), name
