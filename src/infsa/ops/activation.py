"""The activations φ that turn scores into edge weights, each with its derivative.

Every φ here has φ(0) = 0. Masking relies on it: a token whose query and key are zero has no edges.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Activation(NamedTuple):
    """φ and φ', both elementwise; ``slope`` takes the scores S, not φ(S)."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def _relu_slope(scores: Tensor) -> Tensor:
    return (scores > 0).to(scores.dtype)


def _gelu_slope(scores: Tensor) -> Tensor:
    normal_cdf = 0.5 * (1 + torch.erf(scores * math.sqrt(0.5)))
    normal_pdf = torch.exp(-0.5 * scores.square()) / math.sqrt(2 * math.pi)
    return normal_cdf + scores * normal_pdf


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(torch.relu, _relu_slope),
    "gelu": Activation(torch.nn.functional.gelu, _gelu_slope),
    "abs": Activation(torch.abs, torch.sign),
}
