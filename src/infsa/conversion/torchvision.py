"""torchvision's Swin, window by window; its ViT is made of ``torch.nn.MultiheadAttention`` and needs nothing here."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.swin_transformer import (  # type: ignore[import-untyped]
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
)

from .families import Family
from .plan import LayerPlan, kind_of
from .settings import Settings
from .swap import ONE_NORM, Swapped, restore_class, swap_class


class WindowAttention(Swapped, ShiftedWindowAttention):
    """Swin's shifted windows as Pure InfSA: every window is a token graph of its own, with its own norm.

    Parts that a shift brings together do not see each other, and the padding of incomplete windows is hidden (softmax
    attends to it). The relative position bias is added to the scores before φ.
    """

    original: type[nn.Module] = ShiftedWindowAttention
    qkv: Any
    proj: Any
    window_size: Any
    shift_size: Any
    attention_dropout: float
    dropout: float
    logit_scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, H, W, C) -> (B, H, W, C)."""
        height, width = x.shape[1:3]
        sides = tuple(self.window_size)
        rows, columns = -(-height // sides[0]) * sides[0], -(-width // sides[1]) * sides[1]
        shift = [0 if sides[i] >= (rows, columns)[i] else self.shift_size[i] for i in (0, 1)]
        padded = F.pad(x, (0, 0, 0, columns - width, 0, rows - height))
        tokens = _split(_roll(padded, shift, -1), sides)  # (B, windows, N, C)
        regions = _split(_regions((height, width), (rows, columns), sides, shift, x.device), sides)
        z = self._attend(tokens, regions[0, :, :, 0])
        z = _roll(_join(z, sides, rows, columns), shift, 1)
        return z[:, :height, :width].contiguous()

    def _attend(self, x: Tensor, region: Tensor) -> Tensor:
        """Attend inside windows: x (B, windows, N, C), region (windows, N); tokens of region −1 are padding."""
        batch, windows = x.shape[:2]
        q, k, v = self._project(x.flatten(0, 1))
        bias: Tensor = self.get_relative_position_bias()  # type: ignore[operator]
        bias = bias.to(q.dtype)  # (1, H, N, N)
        seen = (region.unsqueeze(1) == region.unsqueeze(2)) & (region >= 0).unsqueeze(1) & (region >= 0).unsqueeze(2)
        edges = torch.where(seen.unsqueeze(1), bias, -torch.inf).flatten(0, 1).unsqueeze(0)  # (1, windows·H, N, N)
        q, k, v = (y.unflatten(0, (batch, windows)).flatten(1, 2) for y in (q, k, v))
        z = self.pure(q, k, v, attn_mask=edges, dropout=self.attention_dropout)  # (B, N, windows·C)
        z = self.proj(z.unflatten(-1, (windows, -1)).transpose(1, 2))
        return F.dropout(z, self.dropout, self.training)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


class WindowAttentionV2(WindowAttention, ShiftedWindowAttentionV2):
    """Swin V2's shifted windows as Pure InfSA: cosine scores, scaled and biased as in the original, then φ."""

    original = ShiftedWindowAttentionV2

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """The key has no bias; φ(q·k/√d) follows, so √d is taken into the scale."""
        q, k, v = super()._project(x)
        if self.qkv.bias is not None:
            k = k - self.qkv.bias.chunk(3)[1].view(self.num_heads, 1, -1)
        scale = self.logit_scale.clamp(max=math.log(100.0)).exp() * math.sqrt(q.shape[-1])
        return (F.normalize(q, dim=-1) * scale).type_as(v), F.normalize(k, dim=-1).type_as(v), v


def _split(x: Tensor, window: tuple[int, ...]) -> Tensor:
    """(B, H, W, C) -> (B, windows, tokens of a window, C)."""
    x = x.unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0]))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _join(x: Tensor, window: tuple[int, ...], rows: int, columns: int) -> Tensor:
    """Undo :func:`_split`."""
    x = x.unflatten(2, tuple(window)).unflatten(1, (rows // window[0], columns // window[1]))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _roll(x: Tensor, shift: list[int], sign: int) -> Tensor:
    return x.roll((sign * shift[0], sign * shift[1]), (1, 2)) if any(shift) else x


def _regions(
    real: tuple[int, int], padded: tuple[int, int], window: tuple[int, ...], shift: list[int], device: torch.device
) -> Tensor:
    """A number for each part of the shifted map whose tokens may see each other, −1 for padding: (1, H, W, 1)."""
    parts = []
    for size, side, step in zip(padded, window, shift, strict=True):
        place = torch.arange(size, device=device)
        parts.append((place >= size - side).long() + (place >= size - step).long() if step else torch.zeros_like(place))
    region = 3 * parts[0].unsqueeze(1) + parts[1]
    inside_rows, inside_columns = (torch.arange(padded[i], device=device) < real[i] for i in (0, 1))
    inside = inside_rows.unsqueeze(1) & inside_columns
    return torch.where(_roll(inside[None, :, :, None], shift, -1), region[None, :, :, None], -1)


CLASSES: dict[type[nn.Module], type[WindowAttention]] = {
    ShiftedWindowAttention: WindowAttention,
    ShiftedWindowAttentionV2: WindowAttentionV2,
}


class Torchvision(Family):
    """The adapter for torchvision."""

    name = "torchvision"

    def recognise(self, name: str, module: Any, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan for a window attention of Swin; Linear-InfSA is refused."""
        if type(module) not in CLASSES:
            return None
        width = module.qkv.in_features
        layer = LayerPlan(
            name,
            kind_of(module),
            self.name,
            heads=module.num_heads,
            key_heads=module.num_heads,
            width=width,
            head_width=width // module.num_heads,
            masks="window shift",
            qk_norm=type(module) is ShiftedWindowAttentionV2,
            biases="qkv, proj, relative position",
            lost=(
                ONE_NORM,
                "attention to the zero padding of incomplete windows, which is hidden",
            ),
        )
        if settings.variant == "linear":
            return layer.refused("Linear-InfSA scores no pairs of tokens, so a relative position bias has no place")
        return layer

    def convert(self, module: Any, layer: LayerPlan, settings: Settings) -> None:
        """Change the class."""
        swap_class(module, CLASSES[type(module)], module.num_heads, settings)

    def revert(self, module: Any, layer: LayerPlan, settings: Settings) -> None:
        """Change the class back."""
        restore_class(module)


FAMILY = Torchvision()
