"""InfViT on an image that no rank holds whole."""

import math
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..models.infvit import InfViT
from ..models.stem import margin
from ..nn.peers.infsa import LinearInfSAAttention, PureInfSAAttention
from ..ops.dtypes import accumulation_dtype
from .dropping import share_dropping
from .layers import shard_each
from .ranks import Group, Ranks
from .strips import Strips, check_heights


class ShardedInfViT(InfViT):
    """:class:`infsa.models.InfViT` on this rank's strip of an image; made by :func:`shard_model`.

    Every rank calls it with its own strip (B, C, height, W), in rank order from the top, and receives the logits of
    the whole image. Class and register tokens are on rank 0.
    """

    ranks: Ranks

    def embed(self, images: Tensor) -> tuple[Tensor, Strips]:  # type: ignore[override]
        """This rank's strip to tokens with positions, and the split."""
        strips = self.split(images)
        kept = slice(self._own_prefix)  # an empty part still gives every parameter a gradient
        tokens = [token for token in (self.cls_token, self.reg_token) if token is not None]
        prefix = [token.expand(images.shape[0], -1, -1) for token in tokens]
        x = torch.cat([*(token[:, kept] for token in prefix), self._patches(images, strips)], 1)
        positions = self.join_positions(self.patch_positions(strips.grid, strips.own), self._own_prefix)
        return (x if positions is None else x + positions), strips

    def split(self, images: Tensor) -> Strips:
        """How the image is split, checked: ranks tell each other their shapes, so all raise the same error."""
        facts = [images.dim(), *(images.shape if images.dim() == 4 else (0,) * 4)]
        everyone = self.ranks.exchange(facts)
        shapes = [tuple(facts[1:]) for facts in everyone]
        if any(facts[0] != 4 for facts in everyone) or any(shape[1] != self.in_chans for shape in shapes):
            raise ValueError(f"strips must be (B, {self.in_chans}, H, W), got {shapes} on ranks 0, 1, ...")
        if len({(batch, width) for batch, _, _, width in shapes}) > 1:
            raise ValueError(f"strips must share batch size and width, got {shapes} on ranks 0, 1, ...")
        heights, width, across = [shape[2] for shape in shapes], shapes[0][3], self.patch_embed.patch_size[1]
        pads = self.patch_embed.dynamic_img_pad
        size = (sum(heights), width)
        if not self.dynamic_img_size and size != tuple(self.patch_embed.img_size):
            raise ValueError(
                f"strips must make up {tuple(self.patch_embed.img_size)}, got {size}; "
                "dynamic_img_size=True accepts any size"
            )
        if width < 1 or (width % across and not pads):
            raise ValueError(f"the width must be a multiple of the patch {across}, got {width}")
        rows = check_heights(heights, self.patch_embed.patch_size[0], pads)
        return Strips(rows, -(-width // across), self.ranks.rank, self.num_prefix_tokens)

    def _patches(self, images: Tensor, strips: Strips) -> Tensor:
        """This rank's patches without positions, (B, n, D)."""
        (above, below), _ = margin(self.patch_embed)
        if above or below:
            images = self._with_margin(images, strips, above, below)
        if not images.shape[2]:
            images = images.new_zeros(*images.shape[:2], *self.patch_embed.patch_size)
        first = min(above, strips.own.start)
        return self.embed_patches(images, slice(first, first + strips.rows[strips.rank]))

    def _with_margin(self, images: Tensor, strips: Strips, above: int, below: int) -> Tensor:
        """A strip (B, C, h, W) between the rows above and below it that its tokens see, whichever ranks hold them."""
        height, patch = images.shape[2], self.patch_embed.patch_size[0]
        above, below = above * patch, below * patch
        last = nn.functional.pad(images[:, :, -above:], (0, 0, max(0, above - height), 0))
        first = nn.functional.pad(images[:, :, :below], (0, 0, 0, max(0, below - height)))  # as dynamic_img_pad does
        ends = self.ranks.gather(torch.cat([last, first], 2)).unbind()  # of every rank
        heights = [rows * patch for rows in strips.rows]
        upper = [end[:, :, max(0, above - height) : above] for end, height in zip(ends, heights, strict=True)]
        lower = [end[:, :, above : above + height] for end, height in zip(ends, heights, strict=True)]
        before, after = (
            torch.cat([images[:, :, :0], *parts], 2) for parts in (upper[: strips.rank], lower[strips.rank + 1 :])
        )
        return torch.cat([before[:, :, -above:], images, after[:, :, :below]], 2)

    def key_mask(self, patch_mask: Tensor | None, grid: Strips) -> Tensor | None:  # type: ignore[override]
        """A mask of this strip's patches (B, rows, w) as a mask of its tokens."""
        if patch_mask is None:
            return None
        own = (grid.rows[grid.rank], grid.columns)
        if patch_mask.dtype != torch.bool or tuple(patch_mask.shape[1:]) != own:
            shape = tuple(patch_mask.shape)
            raise ValueError(f"patch_mask must be boolean (B, {own[0]}, {own[1]}), got {patch_mask.dtype} {shape}")
        return nn.functional.pad(patch_mask.flatten(1), (self._own_prefix, 0), value=True)

    @property
    def _own_prefix(self) -> int:
        return self.num_prefix_tokens if self.ranks.rank == 0 else 0

    def pool(self, x: Tensor, patch_mask: Tensor | None = None) -> Tensor:
        """The tokens of all ranks to one vector per image, the same on every rank; ``""`` leaves each its own."""
        if self.global_pool == "":
            return x
        wide = accumulation_dtype(x.dtype)
        if self.global_pool == "token":
            return self.ranks.add(x[:, : min(self._own_prefix, 1)].sum(1, dtype=wide))[0].to(x.dtype)
        if patch_mask is not None and self.global_pool != "avg":
            raise ValueError(f"patch_mask needs global_pool 'token' or 'avg', got {self.global_pool!r}")
        patches = x[:, self._own_prefix :]
        pooled = []
        if "avg" in self.global_pool:
            real = (
                patches.new_ones(patches.shape[:2], dtype=torch.bool) if patch_mask is None else patch_mask.flatten(1)
            )
            sums = patches.masked_fill(~real.unsqueeze(-1), 0).sum(1, dtype=wide)
            total, count = self.ranks.add(sums, real.sum(1, keepdim=True).to(wide))
            pooled.append(total / count.clamp_min(1))
        if "max" in self.global_pool:
            least = nn.functional.pad(patches, (0, 0, 0, 1), value=-math.inf)  # a strip may be empty
            pooled.append(self.ranks.gather(least.amax(1)).amax(0).to(wide))
        return torch.stack(pooled).mean(0).to(x.dtype)

    def attention_maps(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: a map needs the whole image."""
        raise ValueError("a sharded model has no attention_maps: no rank holds the image")

    def forward_intermediates(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: features are laid out for whole images."""
        raise ValueError("a sharded model has no forward_intermediates: no rank holds the image")


def shard_model(model: InfViT, group: Group) -> ShardedInfViT:
    """Make an InfViT run on images that are split into strips over ranks; changes the model in place and returns it.

    Parameters and their names stay, so weights load and save as before. Call it before DistributedDataParallel or
    ``fully_shard``, which then work over *all* ranks, data and sequence alike: every rank computes the loss of the
    whole image, so the mean of the ranks' gradients, which both take, is the gradient that one process computes.
    Without them, :func:`average_gradients` does it.

    Args:
        model: with attention ``infsa_linear`` or ``infsa_pure``, the same weights on every rank.
        group: the ranks that share an image: a process group, one dimension of a device mesh, None for all.
    """
    if type(model) is not InfViT:
        raise TypeError(f"shard_model takes an InfViT before any other wrapping, got {type(model).__name__}")
    layers = [getattr(block, "attn", block) for block in model.blocks]
    if not all(type(layer) in (LinearInfSAAttention, PureInfSAAttention) for layer in layers):
        raise ValueError(f"shard_model needs attention 'infsa_linear' or 'infsa_pure', got {model.attention!r}")
    if model.readout == "series" and model.arguments["learn_gamma"]:
        raise ValueError("shard_model with readout='series' needs a fixed gamma, got learn_gamma=True")
    ranks = Ranks.of(group)
    shard_each(layers, ranks)
    model.__class__ = ShardedInfViT
    assert isinstance(model, ShardedInfViT)
    model.ranks = ranks
    share_dropping(model, model.head_drop, ranks)
    return model
