"""Linear layers for a handful of rows, such as what all tokens of an image share."""

from torch import Tensor, nn

from .dispatch import few_rows_kernel_runs, plain_layers, sums_pay
from .dtypes import accumulation_dtype


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """``layer(x)``; one kernel for few rows without gradients, where the layer is plain and has no hooks."""
    if type(layer) is nn.Linear and plain_layers(layer):
        if sums_pay(x, layer.weight):
            return linear_by_sums(x, layer.weight, layer.bias)
        if few_rows_kernel_runs(x, layer.weight, layer.bias):
            from .triton.few_rows import few_rows  # needs Triton

            return few_rows(x, layer.weight, layer.bias)
    return layer(x)


def linear_by_sums(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, summed in the accumulation dtype: (..., D) -> (..., E); the weight may have leading dimensions
    like x.
    """
    dtype = accumulation_dtype(x.dtype)
    wide = (x.to(dtype).unsqueeze(-2) * weight.to(dtype)).sum(-1)
    return (wide if bias is None else wide + bias.to(dtype)).to(x.dtype)
