"""Multiply-adds: counted operation by operation, and as closed formulas.

One multiply-add (MAC) is two FLOPs. Matrix products and convolutions count; what is done once per element (softmax,
norms, activations, interpolation of tables) does not. Counting runs on tensors without content, on the path of plain
matrix products. Fused kernels do the same products, and more where they recompute: fused softmax and Pure InfSA form
the scores again in the backward pass, and Linear-InfSA on a GPU takes its scores from x, H N D instead of N D.
"""

import functools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from ..models.stem import stage_widths
from .build import CLASSES, build_module, make_call
from .cases import BASE, Case


class Count(NamedTuple):
    """Multiply-adds per image: of everything, and of all attention layers with their projections."""

    macs: int
    attention_macs: int

    @property
    def flops(self) -> int:
        """Two per multiply-add."""
        return 2 * self.macs


def count(case: Case) -> Count:
    """Count a case's multiply-adds per image, backward pass included where it trains.

    All blocks are alike, so models of one and two blocks tell those of any depth.

    Example:
        >>> count(Case("softmax", depth=4, heads=16, size=(224, 224))).macs
        10388422656
    """
    mechanism = case.mechanism.partition("-")[0]  # however it is computed
    plain = replace(case, batch=1, energy=False, compile="none", mechanism=mechanism)
    layer = _counted(replace(plain, part="attention", depth=1, stem="patch"))
    if case.part == "attention":
        return Count(layer, layer)
    one, two = (_counted(replace(plain, depth=depth)) for depth in (1, 2))
    return Count(one + (case.depth - 1) * (two - one), case.depth * layer)


@functools.cache
def _counted(case: Case) -> int:
    name = case.variant.attention
    options = {"fused": False} if name == "softmax" else {"impl": "reference"} if name.startswith("infsa") else {}
    module = build_module(case, "meta", options)
    mapping = {torch.ops.aten.convolution_backward: _convolution_backward}
    with FakeTensorMode(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        empty = {name: torch.empty(x.shape, dtype=x.dtype, requires_grad=x.requires_grad) for name, x in state.items()}
        make_call(case, lambda *inputs: functional_call(module, empty, inputs), module, torch.device("cpu"))()
    return counter.get_total_flops() // 2


def _convolution_backward(grad_shape: Any, x_shape: Any, w_shape: Any, *rest: Any, **_: Any) -> int:
    """As much for each gradient as for the forward pass; torch's own count takes no note of groups."""
    wanted = rest[-1]  # gradients of input, weight, bias
    return 2 * math.prod(grad_shape) * math.prod(w_shape[1:]) * (bool(wanted[0]) + bool(wanted[1]))


def attention_formula(case: Case) -> int:
    """Multiply-adds of one attention layer's forward pass, projections included, from its equations.

    N tokens, P patches, width D, H heads of width d.
    """
    n, width, heads = case.tokens, case.width, case.heads
    d, patches = width // heads, case.grid[0] * case.grid[1]
    square = width * width
    name = case.variant.attention
    if name in ("softmax", "infsa_pure"):  # q, k, v and output projections; q kᵀ and its product with v
        return 4 * n * square + 2 * n * n * width
    if name == "infsa_linear":  # q; Σ e q, q̄ · k and Σ S x for every head; two rows of projections
        return n * square + 2 * n * width + heads * n * width + 2 * square
    if name == "linformer":  # two compressions to 256 tokens, two products with them
        return 4 * n * square + 4 * n * 256 * width
    if name == "performer":  # features of q and k, their two products, the mass
        m = max(1, int(d * math.log(d)))
        return 4 * n * square + 4 * n * m * width + n * m * heads
    if name == "flatten":
        return 4 * n * square + 2 * n * width * d + n * width + 25 * patches * width
    if name == "mlla":  # v is the input: three projections
        return 3 * n * square + 2 * n * width * d + n * width + 9 * patches * width
    if name == "agent":  # 49 agents: pooled, then two products each way
        return 4 * n * square + _pool(case, (7, 7)) + 4 * n * 49 * width + 9 * patches * width
    if name == "soft":
        return _soft_formula(case, n, d, patches)
    if name in ("mean", "energy"):  # Σ a x for every head, two rows of projections; q for its norms
        return (name == "energy") * n * square + heads * n * width + 2 * square
    if name == "fastformer":  # q, k and the output; scores and sums twice
        return 3 * n * square + 2 * n * width * heads + 2 * n * width
    raise ValueError(f"no formula for {name!r}")


def _soft_formula(case: Case, n: int, d: int, patches: int) -> int:
    base = BASE // case.patch
    sides = min(7, base)
    stride = base // sides
    m, width, heads = sides * sides, case.width, case.heads
    landmarks = _pool(case, (sides * stride, sides * stride)) + m * width * d * stride * stride
    kernels = n * m * width + m * m * width
    newton = heads * m**3 * (2 * 20 + 2)
    products = 2 * n * m * width + m * m * width
    return 3 * n * width * width + landmarks + kernels + newton + products + 9 * patches * width


def _pool(case: Case, size: tuple[int, int]) -> int:
    """Adaptive pooling as two products, rows then columns; none where the grid has the size already."""
    h, w = case.grid
    return 0 if (h, w) == size else case.width * (size[0] * h * w + size[0] * w * size[1])


def formula(case: Case) -> int:
    """Multiply-adds of a forward pass per image: patches, blocks (attention and an MLP of 8 N D²), classifier.

    Example:
        >>> formula(Case("softmax", depth=24, heads=16, size=(224, 224))) / 1e9
        61.554712576
    """
    layer = attention_formula(case)
    if case.part == "attention":
        return layer
    block = layer + 8 * case.tokens * case.width**2
    return _stem_formula(case) + case.depth * block + case.width * CLASSES


def _stem_formula(case: Case) -> int:
    """The embedding of the patches: one product each, or convolutions of 3 × 3 that halve the sides."""
    (rows, columns), width = case.grid, case.width
    if case.stem == "patch":
        return rows * columns * 3 * case.patch**2 * width
    total, before = 0, 3
    for stage, after in enumerate(widths := stage_widths(width, case.patch.bit_length() - 1), start=1):
        left = len(widths) - stage
        total += 9 * before * after * (((rows + 1) << left) - 1) * (((columns + 1) << left) - 1)
        before = after
    return total + 9 * before * width * rows * columns  # the last one, on the grid


def flop_crossover(a: Case, b: Case, most: int = 2**15) -> int | None:
    """The smallest square side, in whole patches, from which ``a`` needs fewer multiply-adds than ``b``.

    None: not up to ``most`` pixels. The patch itself: at every resolution.

    Example:
        >>> flop_crossover(Case("infsa_linear"), Case("softmax"))
        16
    """
    step = math.lcm(a.patch, b.patch)
    cheaper = [formula(a.at(side)) < formula(b.at(side)) for side in range(step, most + 1, step)]
    if not cheaper[-1]:
        return None
    first = len(cheaper) - cheaper[::-1].index(False) if False in cheaper else 0
    return step * (first + 1)


def weights_bytes(module: torch.nn.Module) -> int:
    """Bytes of a module's parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
