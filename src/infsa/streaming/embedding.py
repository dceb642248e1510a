"""From the integers of an image file to tokens: the colour normalisation is part of the patch embedding's weights.

A model embeds W · (x/F − μ)/σ + b, with F the largest value of a pixel's type, μ the mean and σ the deviation of a
channel. With c, the whole number nearest to Fμ, that is

    W′ · (x − c) + b′        W′ = W/(Fσ)        b′ = b + Σ W′ · (c − Fμ)

x − c is exact in every floating type for 8 bits. The model pads the normalised image with 0, which is x = Fμ here.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..models import InfViT
from ..models.patches import disjoint, unfold
from .source import Colours, full_value

Folded = tuple[Tensor, Tensor, Tensor, Tensor]  # weight, bias, the number taken off each channel, padding after that


class PixelEmbedding:
    """Embeds raw pixels (h, w, c) with a model.

    Integer pixels without opacity meet folded weights. Everything else (floating pixels, opacity, a convolutional
    stem, a patch embedding with hooks, float16, whose range is too short) is normalised on the device first.

    Args:
        model: whose patch embedding is used.
        colours: the mean and the deviation.
    """

    def __init__(self, model: InfViT, colours: Colours) -> None:
        self.model, self.colours = model, colours
        self._cache: dict[torch.dtype, Folded] = {}  # while no gradients are asked for

    def __call__(self, raw: Tensor, rows: slice, columns: slice) -> Tensor:
        """Patches without positions in a window of the grid of these pixels: (1, n, D)."""
        layer = self.model.patch_embed
        integers = not raw.is_floating_point() and not self.colours.has_opacity(raw.shape[2])
        if not integers or not disjoint(layer) or self.colours.dtype == torch.float16:
            return self.model.embed_patches(self.colours.normalised(raw), rows, columns)
        weight, bias, centre, padding = self._folded(raw.dtype)
        height, width = layer.patch_size
        x = raw.permute(2, 0, 1).expand(self.model.in_chans, -1, -1).unsqueeze(0)
        below, right = -x.shape[2] % height, -x.shape[3] % width
        if raw.is_cuda and not (below or right):  # integers are put in the order of the patches before they grow
            patches = unfold(layer, x).flatten(2).to(centre.dtype)
            patches -= centre.expand(1, -1, height, width).flatten()
            made = F.linear(patches.to(weight.dtype), weight.flatten(1), bias)
            made = made.unflatten(1, (x.shape[2] // height, x.shape[3] // width))
        else:
            planes = centre.new_empty(*x.shape[:2], x.shape[2] + below, x.shape[3] + right)
            planes[:, :, x.shape[2] :] = padding
            planes[:, :, :, x.shape[3] :] = padding
            planes[:, :, : x.shape[2], : x.shape[3]].copy_(x).sub_(centre)
            made = F.conv2d(planes.to(weight.dtype), weight, bias, layer.patch_size).permute(0, 2, 3, 1)
        return layer.norm(made)[:, rows, columns].flatten(1, 2)

    def _folded(self, dtype: torch.dtype) -> Folded:
        if torch.is_grad_enabled():
            return self._fold(dtype)
        if dtype not in self._cache:
            self._cache[dtype] = self._fold(dtype)
        return self._cache[dtype]

    def _fold(self, dtype: torch.dtype) -> Folded:
        conv, full = self.model.patch_embed.proj, full_value(dtype)
        wide = torch.float32 if conv.weight.device.type == "mps" else torch.float64
        mean, std = (
            torch.tensor(values, dtype=wide, device=conv.weight.device).expand(self.model.in_chans)
            for values in (self.colours.mean, self.colours.std)
        )
        centre = (full * mean).round()
        weight = conv.weight.to(wide) / (full * std)[:, None, None]
        bias = (weight * (centre - full * mean)[:, None, None]).sum((1, 2, 3))
        bias = bias if conv.bias is None else bias + conv.bias.to(wide)
        taken, padding = (v.to(self.colours.exact)[None, :, None, None] for v in (centre, full * mean - centre))
        return weight.to(conv.weight.dtype), bias.to(conv.weight.dtype), taken, padding
