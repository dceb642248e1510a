"""timm's attention with a learned bias per offset of two positions, as Pure InfSA: LeViT, TinyViT, EfficientFormer."""

from typing import Any

from timm.models.efficientformer import Attention as TimmEfficient
from timm.models.levit import Attention as TimmLevit
from timm.models.levit import AttentionDownsample as TimmLevitDown
from timm.models.tiny_vit import Attention as TimmTiny
from torch import Tensor, nn

from .layers import TimmLayer
from .windows import PADDING


class _Offsets(TimmLayer):
    """Layers whose values are wider than their keys, and whose biases are looked up by offset."""

    attention_biases: nn.Parameter
    attention_bias_idxs: Tensor
    key_dim: int
    val_dim: int

    def _offset_bias(self) -> Tensor:
        """The bias of each pair, (H, Nq, Nk); looked up anew, since timm's cache would hold a graph across calls."""
        return self.attention_biases[:, self.attention_bias_idxs]

    def _wide(self, x: Tensor, projection: Any, parts: list[int]) -> tuple[Tensor, ...]:
        """Project tokens (B, N, D) or a map (B, D, h, w), and split each head: (B, H, N, part) each."""
        y = projection(x)
        y = y.flatten(2).mT if y.dim() == 4 else y
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).split(parts, -1)


class LevitAttention(_Offsets, TimmLevit):
    """The attention of LeViT as Pure InfSA, on tokens or, as in its convolutional form, on maps."""

    original = TimmLevit

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) or (B, D, h, w) -> the same shape."""
        q, k, v = self._wide(x, self.qkv, [self.key_dim, self.key_dim, self.val_dim])
        z = self._mix(self._scaled(q), k, v, self._offset_bias())
        return self.proj(z.mT.unflatten(-1, x.shape[2:]) if self.use_conv else z)


class LevitDownsample(_Offsets, TimmLevitDown):
    """The shrinking attention of LeViT as Pure InfSA: a subset of the tokens asks all of them."""

    original = TimmLevitDown
    q: Any
    kv: Any
    stride: int

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, fewer, D'), or a map (B, D, h, w) -> (B, D', smaller h, w)."""
        (q,) = self._wide(x, self.q, [self.key_dim])
        k, v = self._wide(x, self.kv, [self.key_dim, self.val_dim])
        z = self._mix(self._scaled(q), k, v, self._offset_bias())
        if self.use_conv:
            z = z.mT.unflatten(-1, [(side - 1) // self.stride + 1 for side in x.shape[2:]])
        return self.proj(z)


class TinyAttention(_Offsets, TimmTiny):
    """The window attention of TinyViT as Pure InfSA; each window has its own norm."""

    original = TimmTiny
    lost = (PADDING,)
    norm: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape."""
        q, k, v = self._wide(self.norm(x), self.qkv, [self.key_dim, self.key_dim, self.val_dim])
        return self.proj(self._mix(q, k, v, self._offset_bias()))


class EfficientFormerAttention(_Offsets, TimmEfficient):
    """The attention of EfficientFormer as Pure InfSA."""

    original = TimmEfficient

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        q, k, v = self._wide(x, self.qkv, [self.key_dim, self.key_dim, self.val_dim])
        return self.proj(self._mix(self._scaled(q), k, v, self._offset_bias()))


LAYERS: tuple[type[TimmLayer], ...] = (LevitAttention, LevitDownsample, TinyAttention, EfficientFormerAttention)
