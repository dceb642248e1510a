"""Stochastic depth and the classifier's dropout, which draw per image: every rank must drop what rank 0 drops."""

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from ..ops.dtypes import accumulation_dtype
from .ranks import Ranks


class SharedDropPath(DropPath):
    """timm's DropPath with the random numbers of rank 0; made by :func:`infsa.parallel.shard_model`."""

    ranks: Ranks

    def forward(self, x: Tensor) -> Tensor:
        """Keep or drop the branch of each image, x (B, ...)."""
        if not self.training or not self.drop_prob:
            return x
        ones = torch.ones(x.shape[0], *(1,) * (x.dim() - 1), dtype=accumulation_dtype(x.dtype), device=x.device)
        return x * self.ranks.first(super().forward(ones)).to(x.dtype)


class SharedDropout(nn.Dropout):
    """Dropout with the random numbers of rank 0, for vectors that all ranks hold alike."""

    ranks: Ranks

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries of x."""
        if not self.training or not self.p:
            return x
        ones = torch.ones_like(x, dtype=accumulation_dtype(x.dtype))
        return x * self.ranks.first(super().forward(ones)).to(x.dtype)


def share_dropping(model: nn.Module, head_drop: nn.Module, ranks: Ranks) -> None:
    """Let every DropPath of a model, and the dropout before its head, follow rank 0; in place."""
    for module in model.modules():
        if type(module) is DropPath:
            module.ranks = ranks  # type: ignore[assignment]
            module.__class__ = SharedDropPath
    head_drop.ranks = ranks  # type: ignore[assignment]
    head_drop.__class__ = SharedDropout
