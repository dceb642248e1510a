"""Products in 8 bits: e4m3 numbers with one scale per row of the tokens and one per row of the weight."""

import torch
from torch import Tensor, nn

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
FP8_CAPABILITY = (8, 9)


def check_fp8(model: nn.Module) -> None:
    """Refuse a model or a GPU for which 8-bit products do not exist."""
    weight = next(model.parameters())
    if weight.dtype != torch.bfloat16:
        raise ValueError(f"fp8=True needs a bfloat16 model, got {weight.dtype}")
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device) < FP8_CAPABILITY:
        raise ValueError("fp8=True needs a GPU of compute capability 8.9 or newer")


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (n, D) as e4m3 numbers and their scales (n, 1), the largest of each row at the end of the range."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp_min(1e-12) / LARGEST
    return (x.float() / scale).to(FP8), scale


class Fp8Linear(nn.Module):
    """A linear layer whose product is computed from 8-bit numbers; weights are rounded once."""

    weight: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight, scale = round_rows(layer.weight.detach())
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D_in) -> (..., D_out), in the type of x; without a GPU the same numbers are multiplied in float32."""
        rows, scale = round_rows(x.reshape(-1, x.shape[-1]))
        if x.is_cuda:
            out = torch._scaled_mm(
                rows, self.weight.t(), scale, self.scale.t(), bias=self.bias, out_dtype=x.dtype, use_fast_accum=True
            )
        else:
            out = ((rows.float() @ self.weight.float().t()) * scale * self.scale.t()).to(x.dtype)
            out = out if self.bias is None else out + self.bias
        return out.unflatten(0, x.shape[:-1])
