"""timm's attention with a learned bias per offset of two positions, as Pure InfSA: LeViT, TinyViT, EfficientFormer."""

from timm.models import efficientformer, levit, tiny_vit
from torch import Tensor

from .base import PADDING, TimmLayer, to_map, to_tokens


class _Offsets(TimmLayer):
    """Layers whose values are wider than their keys, and whose biases are looked up by offset."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        return self._output(self._mix_all(x))

    def _mix_all(self, x: Tensor) -> Tensor:
        """Attend among the tokens (B, N, D) or the positions (B, D, h, w) of x, joined: (B, N, H·dv)."""
        widths = (self.key_dim, self.key_dim, self.val_dim)
        return self._mix(*self._parts_of_heads(to_tokens(self.qkv(x)), *widths), bias=self._offset_bias())

    def _offset_bias(self) -> Tensor:
        """The bias of each pair, (H, Nq, Nk); looked up anew, since timm's cache would hold a graph across calls."""
        return self.attention_biases[:, self.attention_bias_idxs]


class LevitAttention(_Offsets, levit.Attention):
    """The attention of LeViT as Pure InfSA, on tokens or, as in its convolutional form, on maps."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) or (B, D, h, w) -> the same shape."""
        z = self._mix_all(x)
        return self._output(to_map(z, x.shape[2:]) if self.use_conv else z)


class LevitDownsample(_Offsets, levit.AttentionDownsample):
    """The shrinking attention of LeViT as Pure InfSA: a subset of the tokens asks all of them."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, fewer, D'), or a map (B, D, h, w) -> (B, D', smaller h, w)."""
        (q,) = self._heads(to_tokens(self.q(x)))
        k, v = self._parts_of_heads(to_tokens(self.kv(x)), self.key_dim, self.val_dim)
        z = self._mix(q, k, v, bias=self._offset_bias())
        smaller = tuple((side - 1) // self.stride + 1 for side in x.shape[2:])
        return self._output(to_map(z, smaller) if self.use_conv else z)


class TinyAttention(_Offsets, tiny_vit.Attention):
    """The window attention of TinyViT as Pure InfSA; each window has its own norm."""

    lost = (PADDING,)

    def forward(self, x: Tensor) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape."""
        return super().forward(self.norm(x))


class EfficientFormerAttention(_Offsets, efficientformer.Attention):
    """The attention of EfficientFormer as Pure InfSA."""
