"""Products in 8 bits: e4m3 numbers with one scale per row of the tokens and one per row of the weight.

Nothing is kept: weights are rounded in every call, which takes as long as reading them, so that they are always the
model's own.
"""

from typing import TYPE_CHECKING, Any

import torch
from timm.layers import Mlp
from torch import Tensor, nn

from .kernels import kernels_run

if TYPE_CHECKING:
    from .infvit import InfViT

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
FP8_CAPABILITY = (8, 9)
STEP = 16  # numbers that 8-bit products take at a time
Rounded = tuple[Tensor, Tensor]  # numbers (n, D) and scales (n, 1)


def check_fp8(model: "InfViT") -> None:
    """Refuse a model or a GPU for which 8-bit products do not exist."""
    weight = next(model.parameters())
    if weight.dtype != torch.bfloat16:
        raise ValueError(f"fp8=True needs a bfloat16 model, got {weight.dtype}")
    if model.readout != "last":
        raise ValueError(f"fp8=True takes readout='last', got {model.readout!r}")
    for mlp in (block.get_submodule("mlp") for block in model.blocks):
        if type(mlp) is not Mlp:
            raise ValueError(f"fp8=True takes MLPs of timm's class Mlp, got {type(mlp).__name__}")
        for layer in (mlp.fc1, mlp.fc2):
            if not isinstance(layer, nn.Linear):
                raise ValueError(f"fp8=True takes MLPs of two nn.Linear, got {type(layer).__name__}")
            if layer.in_features % STEP or layer.out_features % STEP:
                sides = (layer.in_features, layer.out_features)
                raise ValueError(f"fp8=True takes widths that are multiples of {STEP}, got {sides}")
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device) < FP8_CAPABILITY:
        raise ValueError("fp8=True needs a GPU of compute capability 8.9 or newer")


def round_rows(x: Tensor, gelu: bool = False) -> Rounded:
    """x (n, D), or its GELU in the tanh form, as e4m3 numbers and scales, the largest of a row at the range's end."""
    if kernels_run(x):
        from .token_kernels import launcher, padded, round_kernel

        x, (count, width) = x.contiguous(), x.shape
        eight, scale = torch.empty_like(x, dtype=FP8), x.new_empty(count, 1, dtype=torch.float32)
        sizes = {"DIM": width, "BLOCK": padded(width), "GELU": gelu, "num_warps": 4}
        launcher(round_kernel, x, **sizes)((count, 1, 1), (x, eight, scale), count)
        return eight, scale
    wide = nn.functional.gelu(x.float(), approximate="tanh") if gelu else x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / LARGEST
    return (wide / scale).to(FP8), scale


def rounded_product(
    rows: Rounded, weight: Rounded, bias: Tensor | None, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """Rows (n, D) times a weight (E, D) transposed: (n, E); without a GPU the same numbers multiply in float32."""
    (x, scale), (w, per_output) = rows, weight
    if x.is_cuda:
        options: dict[str, Any] = {"bias": bias, "out_dtype": dtype, "use_fast_accum": True, "out": out}
        return torch._scaled_mm(x, w.t(), scale, per_output.t(), **options)
    found = ((x.float() @ w.float().t()) * scale * per_output.t()).to(dtype)
    found = found if bias is None else found + bias
    return found if out is None else out.copy_(found)
