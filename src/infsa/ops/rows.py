"""Linear layers for a handful of rows, such as what all tokens of an image share."""

from torch import Tensor, nn

from .dispatch import plain_layers, sums_pay
from .dtypes import accumulation_dtype


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    """``layer(x)``; compiled, one kernel for few rows and a plain layer without hooks."""
    if type(layer) is nn.Linear and sums_pay(x, layer.weight) and plain_layers(layer):
        return linear_by_sums(x, layer.weight, layer.bias)
    return layer(x)


def linear_by_sums(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, summed in the accumulation dtype: (..., D) -> (..., E); the weight may have leading dimensions
    like x.
    """
    dtype = accumulation_dtype(x.dtype)
    wide = (x.to(dtype).unsqueeze(-2) * weight.to(dtype)).sum(-1)
    return (wide if bias is None else wide + bias.to(dtype)).to(x.dtype)
