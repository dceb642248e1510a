"""From pixels to tokens: patches, positions and prefix tokens, of an image or of a window of its patch grid.

A model knows a base grid (h0, w0). Patch (i, j) of an (h, w) image sits at ((i + ½) h0/h − ½, (j + ½) w0/w − ½)
in base-grid units: the convention of bicubic resizing with align_corners=False and without antialiasing.
"""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.models._manipulate import checkpoint
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F

from ..nn.peers.layout import Grid, resizing
from ..ops.dispatch import untouched
from ..ops.tracing import exporting
from .options import TokenOptions
from .stem import ConvStem

ALL = slice(None)


# Pixels


def embed_patches(layer: PatchEmbed, images: Tensor, rows: slice = ALL, columns: slice = ALL) -> Tensor:
    """Images (B, C, H, W) to embedded patches (B, h·w, D), or to those in a window of their grid.

    Where an image is a part of a larger one, the patches that lie a ``margin`` inside are those of the larger one.
    Disjoint patches are embedded by one product on GPUs: a convolution of three channels leaves most of the matrix
    units idle, 768 numbers per patch fill them.
    """
    if images.is_cuda and disjoint(layer) and not exporting():
        x = project(layer, unfold(layer, images)).unflatten(1, layer.dynamic_feat_size(images.shape[2:]))  # type: ignore[arg-type]
    else:
        x = layer(images)  # (B, h, w, D)
    return x[:, rows, columns].flatten(1, 2)


def unfold(layer: PatchEmbed, images: Tensor) -> Tensor:
    """The pixels of each patch, in the order of the convolution's weight: (B, h·w, C · rows, columns)."""
    rows, columns = layer.patch_size
    if layer.dynamic_img_pad:
        below, right = -images.shape[2] % rows, -images.shape[3] % columns
        images = F.pad(images, (0, right, 0, below)) if below or right else images
    x = images.unflatten(3, (-1, columns)).unflatten(2, (-1, rows)).permute(0, 2, 4, 1, 3, 5)
    return x.flatten(3, 4).flatten(1, 2)


def project(layer: PatchEmbed, patches: Tensor) -> Tensor:
    """Unfolded patches to embedded ones: (B, h·w, C · rows, columns) -> (B, h·w, D)."""
    return layer.norm(F.linear(patches.flatten(2), layer.proj.weight.flatten(1), layer.proj.bias))


def disjoint(layer: PatchEmbed) -> bool:
    """Whether the patches are embedded by a plain convolution, each by itself, and has no hooks."""
    c = layer.proj
    plain = type(layer) is PatchEmbed and type(c) is nn.Conv2d and c.kernel_size == c.stride == tuple(layer.patch_size)
    alone = plain and c.groups == 1 and c.padding == (0, 0) and c.dilation == (1, 1)
    return alone and untouched(layer, c)


# Positions


def learned_positions(table: Tensor, base: Grid, grid: Grid, rows: slice = ALL, columns: slice = ALL) -> Tensor:
    """Learned positions (h0·w0, D) resized bicubically to a grid, or to a window of it: (h·w, D).

    In float32, or float64 for float64.
    """
    dtype = torch.promote_types(table.dtype, torch.float32)
    with torch.autocast(table.device.type, enabled=False):
        table = table.to(dtype).unflatten(0, base)  # (h0, w0, D)
        down, across = (resizing(size, b, table) for size, b in zip(grid, base, strict=True))
        table = torch.einsum("ia,abd->ibd", down[rows], table)
        return torch.einsum("jb,ibd->ijd", across[columns], table).flatten(0, 1)


def resize_table(table: Tensor, base: Grid, grid: Grid, num_prefix: int) -> Tensor:
    """Resize the patch rows of a position table (1, prefix + h0·w0, D); the prefix rows stay."""
    prefix, patches = table.split([num_prefix, base[0] * base[1]], dim=1)
    return torch.cat([prefix, learned_positions(patches[0], base, grid).to(table.dtype).unsqueeze(0)], 1)


def sincos_positions(
    base: Grid, grid: Grid, dim: int, like: Tensor, rows: slice = ALL, columns: slice = ALL, temperature: float = 1e4
) -> Tensor:
    """Sines and cosines of the base coordinates, half the channels per axis, in the type of ``like``: (h·w, D)."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    frequency = temperature ** (-4 * torch.arange(dim // 4, device=like.device, dtype=dtype) / dim)
    waves = []
    for size, b, window in zip(grid, base, (rows, columns), strict=True):
        place = (torch.arange(size, device=like.device, dtype=dtype)[window] + 0.5) * (b / size) - 0.5
        angle = place[:, None] * frequency
        waves.append(torch.cat([angle.sin(), angle.cos()], 1))  # (size, D/2)
    down, across = waves
    both = [down[:, None].expand(-1, across.shape[0], -1), across[None].expand(down.shape[0], -1, -1)]
    return torch.cat(both, -1).flatten(0, 1).to(like.dtype)


# Tokens


class Embedding(nn.Module):
    """The part of :class:`InfViT` that makes tokens of images."""

    grad_checkpointing: bool

    def _build_tokens(self, options: TokenOptions, factory: dict[str, Any]) -> None:
        self.in_chans, self.embed_dim, self.stem = options.in_chans, options.embed_dim, options.stem
        self.has_class_token, self.dynamic_img_size = options.class_token, options.dynamic_img_size
        self.num_prefix_tokens, self.pos_kind = int(options.class_token) + options.reg_tokens, options.pos_embed
        self.patch_embed: PatchEmbed = (ConvStem if options.stem == "conv" else PatchEmbed)(
            options.img_size, options.patch_size, options.in_chans, options.embed_dim,  # type: ignore[arg-type]  # pairs
            output_fmt="NHWC", strict_img_size=False, dynamic_img_pad=options.dynamic_img_pad, **factory,
        )  # fmt: skip

        def rows(count: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(1, count, options.embed_dim, **factory)) if count else None

        length = self.num_prefix_tokens + self.patch_embed.num_patches
        self.cls_token, self.reg_token = rows(int(options.class_token)), rows(options.reg_tokens)
        self.pos_embed = rows(length) if options.pos_embed == "learn" else None

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """The patch grid (h, w) of a batch of images (B, C, H, W), or a one-line refusal."""
        if images.dim() != 4 or images.shape[1] != self.in_chans:
            raise ValueError(f"images must be (B, {self.in_chans}, H, W), got {tuple(images.shape)}")
        height, width = images.shape[-2:]
        if torch.jit.is_tracing():  # sizes are tensors then, and the traced model takes images of this size alone
            if torch.onnx.is_in_onnx_export():
                raise ValueError("torch.onnx.export needs dynamo=True for this model, got dynamo=False")
            height, width = int(height), int(width)
        if height < 1 or width < 1:
            raise ValueError(f"images must have at least one pixel a side, got {(height, width)}")
        if not self.dynamic_img_size and (height, width) != tuple(self.patch_embed.img_size):
            raise ValueError(
                f"images must be {tuple(self.patch_embed.img_size)}, got {(height, width)}; "
                "dynamic_img_size=True accepts any size"
            )
        rows, columns = self.patch_embed.patch_size
        if not self.patch_embed.dynamic_img_pad and (height % rows or width % columns):
            raise ValueError(
                f"image sides must be multiples of the patch {(rows, columns)}, got {(height, width)}; "
                "dynamic_img_pad=True pads them"
            )
        return self.patch_embed.dynamic_feat_size((height, width))

    def positions(self, grid: tuple[int, int]) -> Tensor | None:
        """Positions of prefix and patches on a grid, (1, N, D), or None; prefix tokens of sin-cos get zeros."""
        if self.pos_embed is not None and self._is_base(grid):
            return self.pos_embed
        return self.join_positions(self.patch_positions(grid), self.num_prefix_tokens)

    def patch_positions(self, grid: tuple[int, int], rows: slice = ALL, columns: slice = ALL) -> Tensor | None:
        """Positions of the patches in a window of a grid, (rows · columns, D), or None."""
        base = self.patch_embed.grid_size
        if self.pos_kind == "none":
            return None
        if self.pos_embed is None:
            return sincos_positions(base, grid, self.embed_dim, self.patch_embed.proj.weight, rows, columns)
        table = self.pos_embed[0, self.num_prefix_tokens :]
        if self._is_base(grid):
            return table.unflatten(0, base)[rows, columns].flatten(0, 1)
        return learned_positions(table, base, grid, rows, columns).to(table.dtype)

    def join_positions(self, patches: Tensor | None, prefix: int) -> Tensor | None:
        """Positions of so many prefix tokens and of patches (n, D) in one table, (1, prefix + n, D)."""
        if patches is None:
            return None
        if self.pos_embed is None:
            return nn.functional.pad(patches, (0, 0, prefix, 0)).unsqueeze(0)
        return torch.cat([self.pos_embed[:, :prefix], patches.unsqueeze(0)], 1)

    def _is_base(self, grid: tuple[int, int]) -> bool:
        """Whether a grid surely is the base grid; asked this way, a dynamic size stays dynamic."""
        base = self.patch_embed.grid_size
        return all(statically_known_true(size == b) for size, b in zip(grid, base, strict=True))

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Images to tokens with positions, (B, N, D), and their grid."""
        grid = self.grid_of(images)
        return self.with_positions(self.embed_patches(images), grid), grid

    def embed_patches(self, images: Tensor, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """Images to patches without positions, (B, h·w, D); see :func:`infsa.models.patches.embed_patches`."""
        if self.stem == "conv":
            return self._checkpointed(embed_patches, self.patch_embed, images, rows, columns)
        return embed_patches(self.patch_embed, images, rows, columns)

    def with_positions(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Embedded patches (B, h·w, D) with the prefix tokens before them and positions added, (B, N, D)."""
        x = self.with_prefix(patches)
        positions = self.positions(grid)
        return x if positions is None else x + positions

    def with_prefix(self, patches: Tensor, positions: Tensor | None = None) -> Tensor:
        """Patches (B, h·w, D) with the class and register tokens before them, to which positions are added if given."""
        tokens: list[Tensor] = [token for token in (self.cls_token, self.reg_token) if token is not None]
        if positions is not None and tokens:
            tokens = [torch.cat(tokens, 1) + positions]
        return torch.cat([*(token.expand(patches.shape[0], -1, -1) for token in tokens), patches], 1)

    def _checkpointed(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(function, *arguments)
        return function(*arguments)
