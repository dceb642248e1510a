"""timm's attention on maps as InfSA: each position of a map (B, D, h, w) or (B, h, w, D) is a token."""

from typing import Any

import torch
from timm.layers import apply_rot_embed_cat, attention2d, attention_pool2d, bottleneck_attn, resample_abs_pos_embed
from timm.models import fastvit, maxxvit, shvit, visformer, vision_transformer_sam, volo
from torch import Tensor

from .base import PADDING, TimmLayer, to_map, to_tokens


class _Map(TimmLayer):
    """Layers with a fused projection whose channels are ordered by head or, without ``head_first``, by part."""

    def _split(self, y: Tensor) -> tuple[Tensor, ...]:
        """q, k, v of a projection (B, N, 3 · H · d): (B, H, N, d) each."""
        return self._parts_of_heads(y) if getattr(self, "head_first", False) else self._parts(y)


class MaxMapAttention(_Map, maxxvit.Attention2d):
    """The attention of MaxViT and CoAtNet on maps as InfSA; a window or grid cell has its own norm."""

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D', h, w)."""
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos.get_bias()
        return self._output(to_map(self._mix(*self._split(to_tokens(self.qkv(x))), bias=bias), x.shape[2:]))


class MaxAttention(_Map, maxxvit.AttentionCl):
    """The attention of MaxViT, channels last, as InfSA; a window or grid cell has its own norm."""

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        """Attend: x (B, ..., D) -> (B, ..., D')."""
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos.get_bias()
        z = self._mix(*self._split(self.qkv(x).flatten(1, -2)), bias=bias)
        return self._output(z.view(*x.shape[:-1], -1))


class MapAttention(_Map, attention2d.Attention2d):
    """``timm.layers.Attention2d`` as InfSA: the attention of MobileNetV4 and its relatives."""

    masks = "attn_mask"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D', h, w)."""
        z = self._mix_masked(*self._split(to_tokens(self.qkv(x))), attn_mask=attn_mask)
        return self._output(to_map(z, x.shape[2:]))


class VisformerAttention(_Map, visformer.Attention):
    """The attention of Visformer as InfSA."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D, h, w)."""
        return self._output(to_map(self._mix(*self._split(to_tokens(self.qkv(x)))), x.shape[2:]))


class MultiQueryAttention(TimmLayer, attention2d.MultiQueryAttention2d):
    """``timm.layers.MultiQueryAttention2d`` as InfSA: heads share one key; queries and keys may be pooled."""

    masks = "attn_mask"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D', h, w)."""
        query = self.query(x)  # (B, H · d, h', w')
        (q,) = self._heads(to_tokens(query))
        k, v = (to_tokens(y).unsqueeze(1).expand(-1, self.num_heads, -1, -1) for y in (self.key(x), self.value(x)))
        if q.shape[2] == k.shape[2]:
            z = self._mix_masked(q, k, v, attn_mask=attn_mask)
        else:
            z = self._mix(q, k, v, bias=attn_mask)
        return self.output(to_map(z, query.shape[2:]))


class FastAttention(TimmLayer, fastvit.Attention):
    """The attention of FastViT as InfSA."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D, h, w)."""
        return to_map(self._output(self._mix(*self._fused(to_tokens(x)))), x.shape[2:])


class VoloAttention(TimmLayer, volo.Attention):
    """The self-attention of VOLO as InfSA; its outlook attention is another layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, h, w, D) -> (B, h, w, D)."""
        return self._output(self._mix(*self._fused(x.flatten(1, 2)))).unflatten(1, x.shape[1:3])


class SamAttention(TimmLayer, vision_transformer_sam.Attention):
    """The attention of SAM's image encoder as InfSA; relative positions are added to the scores before φ."""

    rope: Any
    lost = (PADDING,)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, h, w, D), a map or a window of one -> the same shape."""
        size = (x.shape[1], x.shape[2])
        q, k, v = self._fused(x.flatten(1, 2))
        q, k, bias = self.q_norm(q), self.k_norm(k), None
        if self.use_rel_pos:
            tables = (self.rel_pos_h, self.rel_pos_w, size, size)
            bias = vision_transformer_sam.get_decomposed_rel_pos_bias(q.flatten(0, 1), *tables)
            bias = bias.unflatten(0, q.shape[:2])
        elif self.rope is not None:
            rope = self.rope.get_embed()
            q, k = apply_rot_embed_cat(q, rope), apply_rot_embed_cat(k, rope)
        return self._output(self._mix(q, k, v, bias=bias)).unflatten(1, size)


class SingleHeadAttention(TimmLayer, shvit.SHSA):
    """The single-head attention of SHViT as InfSA: a part of the channels attends, the others pass."""

    num_heads = 1

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D, h, w)."""
        first, rest = x.split([self.pdim, self.dim - self.pdim], 1)
        qkv = self._parts_of_heads(to_tokens(self.qkv(self.pre_norm(first))), self.qk_dim, self.qk_dim, self.pdim)
        return self._output(torch.cat([to_map(self._mix(*qkv), x.shape[2:]), rest], 1))


class BottleneckAttention(TimmLayer, bottleneck_attn.BottleneckAttn):
    """The attention of bottleneck transformers (BoTNet) as Pure InfSA; relative positions are added before φ."""

    biased = True

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D', h, w), or half the size."""
        q, k, v = self._heads(*to_tokens(self.qkv(x)).split([self.dim_out_qk, self.dim_out_qk, self.dim_out_v], -1))
        bias = self.pos_embed(q.flatten(0, 1)).unflatten(0, q.shape[:2])
        z = self._mix(q, k, v, bias=bias * self.scale if self.scale_pos_embed else bias)
        return self.pool(to_map(z, x.shape[2:]))


class _MapPool(TimmLayer):
    """Layers that pool a map by attention among its positions and a token for all of it."""

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool: x (B, D, h, w) -> (B, D'), or the map without a pool."""
        tokens = to_tokens(x)
        mean = self.cls_token is None
        first = tokens.mean(1, keepdim=True) if mean else self.cls_token.expand(x.shape[0], -1, -1)
        z = self.drop(self._mix(*self._placed(torch.cat([first, tokens], 1), x.shape[2:])))
        return self._pool(z if pre_logits else self.proj(z), *x.shape[2:])

    def _placed(self, x: Tensor, size: torch.Size) -> tuple[Tensor, ...]:
        """q, k, v (B, H, 1 + N, d) of the tokens of a map, led by one for all of it, with their places."""
        raise NotImplementedError

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v of fused or separate projections."""
        return self._fused(x) if self.qkv is not None else self._heads(self.q(x), self.k(x), self.v(x))


class AttentionPool2d(_MapPool, attention_pool2d.AttentionPool2d):
    """``timm.layers.AttentionPool2d``, the pooling of CLIP's ResNets, as InfSA."""

    def _placed(self, x: Tensor, size: torch.Size) -> tuple[Tensor, ...]:
        return self._project(x + resample_abs_pos_embed(self.pos_embed.unsqueeze(0), size, num_prefix_tokens=1))


class RotaryPool2d(_MapPool, attention_pool2d.RotAttentionPool2d):
    """``timm.layers.RotAttentionPool2d`` as InfSA: the same pooling with rotary positions."""

    rotary = True
    pos_embed: Any

    def _placed(self, x: Tensor, size: torch.Size) -> tuple[Tensor, ...]:
        q, k, v = self._project(x)
        rope = self.pos_embed.get_embed(size)
        rope = torch.cat(rope, -1) if isinstance(rope, tuple) else rope
        q, k = (torch.cat([y[:, :, :1], apply_rot_embed_cat(y[:, :, 1:], rope)], 2) for y in (q, k))
        return q, k, v
