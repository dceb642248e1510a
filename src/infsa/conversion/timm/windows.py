"""timm's window attention as InfSA: every window is a token graph of its own, with its own norm."""

import math
from typing import Any

import torch
from timm.models.davit import WindowAttention as TimmDavit
from timm.models.gcvit import WindowAttentionGlobal as TimmGlobal
from timm.models.nest import Attention as TimmNest
from timm.models.swin_transformer import WindowAttention as TimmWindow
from timm.models.swin_transformer_v2 import WindowAttention as TimmWindowV2
from timm.models.swin_transformer_v2_cr import WindowMultiHeadAttention as TimmWindowCr
from timm.models.twins import LocallyGroupedAttn as TimmTwins
from torch import Tensor
from torch.nn import functional as F

from ..swap import ONE_NORM
from .layers import TimmLayer

PADDING = "zero padding of incomplete windows takes part, as with softmax: timm adds it before the layer's projections"


class WindowAttention(TimmLayer, TimmWindow):
    """Swin's window attention as Pure InfSA: every window is a token graph of its own, with its own norm."""

    original = TimmWindow
    masks = "window shift"
    lost = (ONE_NORM, PADDING)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape."""
        return self._output(_attend_in_windows(self, self._fused(x), self._get_rel_pos_bias(), mask), x)


class WindowAttentionV2(TimmLayer, TimmWindowV2):
    """Swin V2's window attention as Pure InfSA: cosine scores, scaled and biased as in the original, then φ."""

    original = TimmWindowV2
    cpb_mlp: Any
    relative_coords_table: Tensor
    relative_position_index: Tensor
    masks = "window shift"
    lost = (ONE_NORM, PADDING)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape."""
        q, k, v = _cosine(self._fused(x), self.logit_scale)
        tokens = math.prod(self.window_size)
        table = self.cpb_mlp(self.relative_coords_table).view(-1, self.num_heads)
        bias = table[self.relative_position_index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1)
        return self._output(_attend_in_windows(self, (q, k, v), 16 * bias.sigmoid().unsqueeze(0), mask), x)


class WindowAttentionCr(TimmLayer, TimmWindowCr):
    """The window attention of timm's other Swin V2 (``swinv2_cr``) as Pure InfSA: cosine scores, biases of an MLP."""

    original = TimmWindowCr
    masks = "window shift"
    lost = (ONE_NORM, PADDING)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape."""
        qkv = _cosine(self._fused(x), self.logit_scale.view(-1, 1, 1))
        return self._output(_attend_in_windows(self, qkv, self._relative_positional_encodings(), mask), x)


class DavitWindow(TimmLayer, TimmDavit):
    """The window attention of DaViT as InfSA; its channel attention is another layer."""

    original = TimmDavit
    lost = (PADDING,)

    def forward(self, x: Tensor) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape."""
        return self.proj(self._mix(*self._fused(x)))


class NestAttention(TimmLayer, TimmNest):
    """The block attention of NesT as InfSA."""

    original = TimmNest

    def forward(self, x: Tensor) -> Tensor:
        """Attend inside blocks: x (B, blocks, N, D) -> the same shape."""
        z = self._mix(*self._fused(x.flatten(0, 1)))
        z = z.unflatten(-1, (self.num_heads, -1)).mT.flatten(-2)  # timm joins heads with the channel first
        return self.proj_drop(self.proj(z.unflatten(0, x.shape[:2])))


class TwinsWindow(TimmLayer, TimmTwins):
    """The locally grouped attention of Twins-SVT as InfSA."""

    original = TimmTwins
    lost = (PADDING,)
    ws: int

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Attend inside windows: x (B, N, D) on a map of this size -> (B, N, D)."""
        (height, width), side = size, self.ws
        x = F.pad(x.unflatten(1, (height, width)), (0, 0, 0, -width % side, 0, -height % side))
        windows = x.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3)  # (B, rows, columns, w, w, D)
        z = self._mix(*self._fused(windows.flatten(3, 4).flatten(0, 2)))
        z = z.view(windows.shape).transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :height, :width]
        return self.proj_drop(self.proj(z.flatten(1, 2)))


class GlobalWindow(TimmLayer, TimmGlobal):
    """The window attention of GC ViT as Pure InfSA; its global queries, shared by all windows, stay."""

    original = TimmGlobal
    rel_pos: Any
    head_dim: int

    def forward(self, x: Tensor, q_global: Tensor | None = None) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape."""
        if self.use_global and q_global is not None:
            k, v = self.qkv(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
            q = q_global.repeat(x.shape[0] // q_global.shape[0], 1, 1, 1).reshape(*x.shape[:2], self.num_heads, -1)
            q = q.transpose(1, 2).type_as(k)
        else:
            q, k, v = self._fused(x)
        return self._output(self._mix(self._scaled(q), k, v, self.rel_pos.get_bias()), x)


def _cosine(qkv: tuple[Tensor, ...], logit_scale: Tensor) -> tuple[Tensor, ...]:
    """Queries and keys of length one, with the learned scale; φ(q·k/√d) follows, so √d is taken into it."""
    q, k, v = qkv
    scale = logit_scale.clamp(max=math.log(100.0)).exp() * math.sqrt(q.shape[-1])
    return (F.normalize(q, dim=-1) * scale).type_as(v), F.normalize(k, dim=-1).type_as(v), v


def _attend_in_windows(layer: TimmLayer, qkv: tuple[Tensor, ...], bias: Tensor, mask: Tensor | None) -> Tensor:
    """Attend inside windows; ``mask`` (windows, N, N) is 0, or negative between parts that a shift brought together.

    The windows of an image stand beside its heads, so that their masks need no copy per image.
    """
    q, k, v = qkv
    if mask is None:
        return layer._mix(q, k, v, bias)
    bias = bias.to(q.dtype)
    windows, heads = mask.shape[0], q.shape[1]
    edges = torch.where((mask == 0).unsqueeze(1), bias, -torch.inf).flatten(0, 1).unsqueeze(0)  # (1, windows·H, N, N)
    q, k, v = (y.unflatten(0, (-1, windows)).flatten(1, 2) for y in (q, k, v))
    z = layer.pure(q, k, v, attn_mask=edges, dropout=layer.attn_drop.p)  # (B, N, windows·H·d)
    return z.unflatten(-1, (windows, heads * v.shape[-1])).transpose(1, 2).flatten(0, 1)


LAYERS: tuple[type[TimmLayer], ...] = (
    WindowAttention,
    WindowAttentionV2,
    WindowAttentionCr,
    DavitWindow,
    NestAttention,
    TwinsWindow,
    GlobalWindow,
)
