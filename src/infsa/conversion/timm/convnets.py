"""The attention of timm's convolutional networks as InfSA: in the bottlenecks, and in the pooling at the end."""

from typing import Any

import torch
from timm.layers import apply_rot_embed_cat, resample_abs_pos_embed
from timm.layers.attention_pool2d import AttentionPool2d as TimmPool2d
from timm.layers.attention_pool2d import RotAttentionPool2d as TimmRotPool2d
from timm.layers.bottleneck_attn import BottleneckAttn as TimmBottleneck
from torch import Tensor

from ...nn.infsa import split_heads
from .layers import TimmLayer


class BottleneckAttention(TimmLayer, TimmBottleneck):
    """The attention of bottleneck transformers (BoTNet) as Pure InfSA; relative positions are added before φ."""

    original = TimmBottleneck
    biased = True
    pool: Any
    pos_embed: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D', h, w), or half the size."""
        parts = self.qkv(x).flatten(2).mT.split([self.dim_out_qk, self.dim_out_qk, self.dim_out_v], -1)
        q, k, v = (split_heads(part, self.num_heads) for part in parts)
        bias = self.pos_embed(q.flatten(0, 1)).unflatten(0, q.shape[:2])
        z = self._mix(self._scaled(q), k, v, bias * self.scale if self.scale_pos_embed else bias)
        return self.pool(z.mT.unflatten(-1, x.shape[2:]))


class _MapPool(TimmLayer):
    """Layers that pool a map by attention among its positions and a token for all of it."""

    cls_token: Any
    pos_embed: Any
    drop: Any
    q: Any
    k: Any
    v: Any
    _pool: Any

    def _tokens(self, x: Tensor) -> Tensor:
        """The map x (B, D, h, w) as tokens, (B, 1 + N, D), led by a learned token or by their mean."""
        x = x.flatten(2).mT
        first = x.mean(1, keepdim=True) if self.cls_token is None else self.cls_token.expand(x.shape[0], -1, -1)
        return torch.cat([first, x], 1)

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v of fused or separate projections: (B, H, 1 + N, d) each."""
        if self.qkv is not None:
            return self._fused(x)
        return tuple(split_heads(part(x), self.num_heads) for part in (self.q, self.k, self.v))

    def _finish(self, z: Tensor, x: Tensor, pre_logits: bool) -> Tensor:
        """Drop, project and pool the joined heads z (B, 1 + N, A) of a map x."""
        z = self.drop(z)
        return self._pool(z if pre_logits else self.proj(z), *x.shape[2:])


class AttentionPool2d(_MapPool, TimmPool2d):
    """``timm.layers.AttentionPool2d``, the pooling of CLIP's ResNets, as InfSA."""

    original = TimmPool2d

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool: x (B, D, h, w) -> (B, D'), or the map without a pool."""
        places = resample_abs_pos_embed(self.pos_embed.unsqueeze(0), x.shape[2:], num_prefix_tokens=1)
        return self._finish(self._mix(*self._project(self._tokens(x) + places)), x, pre_logits)


class RotaryPool2d(_MapPool, TimmRotPool2d):
    """``timm.layers.RotAttentionPool2d`` as InfSA: the same pooling with rotary positions."""

    original = TimmRotPool2d
    rotary = True

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool: x (B, D, h, w) -> (B, D'), or the map without a pool."""
        q, k, v = self._project(self._tokens(x))
        rope = self.pos_embed.get_embed(x.shape[2:])
        rope = torch.cat(rope, -1) if isinstance(rope, tuple) else rope
        q, k = (torch.cat([y[:, :, :1], apply_rot_embed_cat(y[:, :, 1:], rope)], 2).type_as(v) for y in (q, k))
        return self._finish(self._mix(q, k, v), x, pre_logits)


LAYERS: tuple[type[TimmLayer], ...] = (BottleneckAttention, AttentionPool2d, RotaryPool2d)
