"""torchvision's Swin, window by window; its ViT is made of ``torch.nn.MultiheadAttention`` and needs nothing here."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.swin_transformer import (  # type: ignore[import-untyped]
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
)

from .families import Family, LayerPlan
from .settings import Settings
from .swap import NO_PAIRS, TARGETS, Swapped
from .windows import ONE_NORM, attend_in_windows, cosines, from_windows, to_windows

LOST = (ONE_NORM, "attention to the zero padding of incomplete windows, which is hidden")


class WindowAttention(Swapped, ShiftedWindowAttention):
    """Swin's shifted windows as Pure InfSA: every window is a token graph of its own, with its own norm.

    Parts that a shift brings together do not see each other, and the padding of incomplete windows is hidden (softmax
    attends to it). The relative position bias is added to the scores before φ.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, H, W, C) -> (B, H, W, C)."""
        (height, width), sides = x.shape[1:3], tuple(self.window_size)
        size = tuple(-(-length // side) * side for length, side in zip((height, width), sides, strict=True))
        steps = zip(sides, size, self.shift_size, strict=True)
        shift = tuple(0 if side >= length else step for side, length, step in steps)
        x = F.pad(x, (0, 0, 0, size[1] - width, 0, size[0] - height))
        tokens = to_windows(x.roll([-step for step in shift], (1, 2)), sides)  # (B·windows, N, C)
        region = to_windows(_regions((height, width), size, sides, shift, x.device), sides).squeeze(-1)  # (windows, N)
        seen = (region.unsqueeze(1) == region.unsqueeze(2)) & (region >= 0).unsqueeze(1)
        bias = self.get_relative_position_bias()
        z = self.proj(attend_in_windows(self, self._project(tokens), bias, seen, self.attention_dropout))
        z = from_windows(F.dropout(z, self.dropout, self.training), sides, size).roll(shift, (1, 2))
        return z[:, :height, :width].contiguous()

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


class WindowAttentionV2(WindowAttention, ShiftedWindowAttentionV2):
    """Swin V2's shifted windows as Pure InfSA: cosine scores, scaled and biased as in the original, then φ."""

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super()._project(x)
        if self.qkv.bias is not None:  # the key has none
            k = k - self.qkv.bias.chunk(3)[1].view(self.num_heads, 1, -1)
        return cosines((q, k, v), self.logit_scale)


def _regions(
    real: tuple[int, ...], size: tuple[int, ...], sides: tuple[int, ...], shift: tuple[int, ...], device: torch.device
) -> Tensor:
    """A number for each part of the shifted map whose tokens may see each other, −1 for padding: (1, H, W, 1)."""
    parts, inside = [], []
    for length, side, step, known in zip(size, sides, shift, real, strict=True):
        place = torch.arange(length, device=device)
        parts.append((place >= length - side).long() + (place >= length - step).long() if step else place * 0)
        inside.append((place < known).roll(-step))
    region = 3 * parts[0].unsqueeze(1) + parts[1]
    return torch.where(inside[0].unsqueeze(1) & inside[1], region, -1)[None, :, :, None]


class Torchvision(Family):
    """The adapter for torchvision."""

    name = "torchvision"

    def recognise(self, name: str, module: Any, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan for a window attention of Swin; Linear-InfSA is refused."""
        if not issubclass(TARGETS.get(type(module), nn.Module), WindowAttention):
            return None
        facts: dict[str, Any] = {"heads": module.num_heads, "width": module.qkv.in_features, "masks": "window shift"}
        facts |= {"qk_norm": type(module) is ShiftedWindowAttentionV2, "biases": "qkv, proj, relative position"}
        layer = self.layer(name, module, **facts, lost=LOST)
        return layer.refused(NO_PAIRS if settings.variant == "linear" else "")


FAMILY = Torchvision()
