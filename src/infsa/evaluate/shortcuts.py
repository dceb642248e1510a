"""The same logits with less work: sequences without the removed tokens, a last layer for the class token alone."""

from typing import TypeGuard

import torch
from torch import Tensor, nn

from ..models import InfViT
from ..models.block import Block

POSITION_FREE = ("softmax", "infsa_pure", "infsa_linear", "mean", "energy")  # see a set of tokens, not a grid


def is_plain(model: nn.Module) -> TypeGuard[InfViT]:
    """Whether :func:`token_logits` gives a model's logits: an InfViT that classifies its last layer."""
    return isinstance(model, InfViT) and model.readout == "last" and isinstance(model.blocks[-1], Block)


def can_shorten(model: nn.Module) -> TypeGuard[InfViT]:
    """Whether tokens can be left out of a model's sequence; otherwise its ``patch_mask`` hides them."""
    return is_plain(model) and model.attention in POSITION_FREE


def token_logits(model: InfViT, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Logits of embedded tokens x (B, N, D); where the class token decides, the last MLP sees it alone."""
    prefix = model.num_prefix_tokens
    for block in model.blocks[:-1]:
        x = block(x, grid, prefix)
    last = model.blocks[-1]
    assert isinstance(last, Block)
    attended = last.attend(x, grid, prefix)
    if model.global_pool == "token":
        x, attended = x[:, :1], attended[:, :1]
    return model.forward_head(model.norm(last.add(x, attended)))


def logits_without(model: InfViT, tokens: Tensor, kept: Tensor) -> Tensor:
    """Logits (R, classes) of sequences that hold the prefix tokens and the patches ``kept`` (R, n) only, n ≥ 1.

    ``tokens`` (R, N, D) comes from ``model.embed``: patches keep the positions of the whole image.
    """
    prefix = model.num_prefix_tokens
    first = torch.arange(prefix, device=kept.device).expand(len(kept), -1)
    places = torch.cat([first, kept + prefix], 1)
    x = tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[-1]))
    return token_logits(model, x, (1, kept.shape[1]))
