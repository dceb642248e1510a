"""From pixels to tokens: patches, the convolutional stem and positions, of an image or of a window of its patch grid.

A model knows a base grid (h0, w0). Patch (i, j) of an (h, w) image sits at ((i + ½) h0/h − ½, (j + ½) w0/w − ½)
in base-grid units: the convention of bicubic resizing with align_corners=False and without antialiasing.
"""

from typing import Any

import torch
from timm.layers import PatchEmbed, to_2tuple
from torch import Tensor, nn
from torch.nn import functional as F

from ..nn.peers.layout import resizing
from ..ops.dispatch import kernels_run_on, untouched
from ..ops.tracing import exporting, transformed

Grid = tuple[int, int]
ALL = slice(None)
FIRST_CONV = {"patch": "patch_embed.proj", "conv": "patch_embed.stages.0.conv"}  # by stem: what reads the pixels


# Pixels


class ConvStem(PatchEmbed):
    """Patches that see their neighbourhood: 3 × 3 convolutions that halve the sides, and one more on the patch grid.

    A patch of 16 pixels takes four halvings, with widths D/8, D/4, D/2 and D (multiples of 8, at most D). Each is
    followed by LayerNorm over the channels of every position and ReLU, so that a token depends on the pixels around it
    and on nothing else: 2 patches before its own and 1 after, on each axis. Around the image lie zeros: patch − 1 rows
    above and as many columns to the left of the pixels, and one ring around the grid before the last convolution.
    """

    def __init__(self, img_size: Any, patch_size: Any, in_chans: int, embed_dim: int, **options: Any) -> None:
        super().__init__(img_size, 1, in_chans, embed_dim, **options)
        factory: dict[str, Any] = {"device": self.proj.weight.device, "dtype": self.proj.weight.dtype}
        del self.proj  # it comes after the stages
        self.patch_size = to_2tuple(patch_size)
        self.img_size, self.grid_size, self.num_patches = self._init_img_size(img_size)
        halvings = [int(side).bit_length() - 1 for side in self.patch_size]
        self.stages = nn.ModuleList()
        width = in_chans
        for stage, wider in enumerate(stage_widths(embed_dim, max(halvings))):
            self.stages.append(ConvStage(width, wider, [stage < count for count in halvings], **factory))
            width = wider
        self.proj = nn.Conv2d(width, embed_dim, 3, padding=1, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) to embedded patches (B, h, w, D)."""
        rows, columns = self.patch_size
        below, right = (-x.shape[2] % rows, -x.shape[3] % columns) if self.dynamic_img_pad else (0, 0)
        x = F.pad(x.contiguous(memory_format=torch.channels_last), (columns - 1, right, rows - 1, below))
        for stage in self.stages:
            x = stage(x)
        return self.proj(x).permute(0, 2, 3, 1)

    def set_input_size(self, img_size: Any = None, patch_size: Any = None) -> None:
        """Make another image size the base; the convolutions belong to the patch size."""
        if patch_size is not None and to_2tuple(patch_size) != self.patch_size:
            raise ValueError(f"stem='conv' was built for the patch {self.patch_size}, got patch_size={patch_size!r}")
        super().set_input_size(img_size)


def stage_widths(embed_dim: int, halvings: int) -> list[int]:
    """The channels after each halving: D at the end and half as many before, in multiples of 8 and at most D."""
    return [min(embed_dim, -(-embed_dim // (8 << left)) * 8) for left in reversed(range(halvings))]


class ConvStage(nn.Module):
    """A convolution that halves some sides, LayerNorm over channels, ReLU; (B, C, 2h + 1, 2w + 1) -> (B, D, h, w)."""

    def __init__(self, width: int, wider: int, halved: list[bool], **factory: Any) -> None:
        super().__init__()
        kernel, stride = (tuple(size if half else 1 for half in halved) for size in (3, 2))
        self.conv = nn.Conv2d(width, wider, kernel, stride, **factory)  # type: ignore[arg-type]
        self.norm = nn.LayerNorm(wider, eps=1e-6, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """In the type of the convolution's result, also where autocast would have norms in float32."""
        return norm_and_clip(self.conv(x).permute(0, 2, 3, 1), self.norm).permute(0, 3, 1, 2)


def norm_and_clip(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """relu(norm(x)) over the channels of x (B, h, w, C), by one kernel on GPUs: torch's has a block for every pixel."""
    plain = exporting() or transformed() or torch.compiler.is_compiling() or x.dtype == torch.float64 or not x.numel()
    if not plain and kernels_run_on(x.device.type, x.device.index):
        from ..ops.triton.channel_norm import ChannelNorm

        return ChannelNorm.apply(x.contiguous(), norm.weight, norm.bias, norm.eps)
    with torch.autocast(x.device.type, enabled=False):
        x = F.layer_norm(x, norm.normalized_shape, norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.eps)
    return F.relu(x, inplace=True)


def margin(layer: PatchEmbed) -> tuple[Grid, Grid]:
    """How many patches a token sees above and below its own, and to the left and to the right."""
    if not isinstance(layer, ConvStem):
        return (0, 0), (0, 0)
    above, left = (1 + (side > 1) for side in layer.patch_size)
    return (above, 1), (left, 1)


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
