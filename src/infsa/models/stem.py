"""The convolutional stem: patches that see their neighbourhood, by a few convolutions that halve the sides."""

from typing import Any

import torch
from timm.layers import PatchEmbed, to_2tuple
from torch import Tensor, nn
from torch.nn import functional as F

from ..nn.peers.layout import Grid
from ..ops.dispatch import kernels_run_on
from ..ops.tracing import exporting, transformed

FIRST_CONV = {"patch": "patch_embed.proj", "conv": "patch_embed.stages.0.conv"}  # by stem: what reads the pixels


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
