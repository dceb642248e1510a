"""timm's attention on maps as InfSA: each position of a map (B, D, h, w) or (B, h, w, D) is a token."""

from typing import Any

import torch
from timm.layers import apply_rot_embed_cat
from timm.layers.attention2d import Attention2d as TimmMap
from timm.layers.attention2d import MultiQueryAttention2d as TimmMultiQuery
from timm.models.fastvit import Attention as TimmFast
from timm.models.maxxvit import Attention2d as TimmMaxMap
from timm.models.maxxvit import AttentionCl as TimmMax
from timm.models.shvit import SHSA as TimmSingle
from timm.models.visformer import Attention as TimmVis
from timm.models.vision_transformer_sam import Attention as TimmSam
from timm.models.vision_transformer_sam import get_decomposed_rel_pos_bias
from timm.models.volo import Attention as TimmVolo
from torch import Tensor

from ...nn.infsa import split_heads
from .layers import TimmLayer
from .windows import PADDING


class _Map(TimmLayer):
    """Layers whose projections are convolutions: (B, D, h, w) -> (B, D', h, w)."""

    def _map_heads(self, x: Tensor, head_first: bool) -> tuple[Tensor, ...]:
        """q, k, v of a fused convolution: (B, H, N, d) each; its channels are ordered by head or by part first."""
        y = self.qkv(x).flatten(2)  # (B, 3 · H · d, N)
        if head_first:
            return y.unflatten(1, (self.num_heads, -1)).mT.chunk(3, -1)
        return y.unflatten(1, (3, self.num_heads, -1)).mT.unbind(1)

    def _map_output(self, z: Tensor, x: Tensor) -> Tensor:
        """The joined heads z (B, N, A) as a map of x's size, projected."""
        return self.proj_drop(self.proj(z.mT.unflatten(-1, x.shape[2:])))


class MaxMapAttention(_Map, TimmMaxMap):
    """The attention of MaxViT and CoAtNet on maps as InfSA; a window or grid cell has its own norm."""

    original = TimmMaxMap
    rel_pos: Any
    head_first: bool

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D', h, w)."""
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos.get_bias()
        q, k, v = self._map_heads(x, self.head_first)
        return self._map_output(self._mix(q, k, v, bias), x)


class MaxAttention(TimmLayer, TimmMax):
    """The attention of MaxViT, channels last, as InfSA; a window or grid cell has its own norm."""

    original = TimmMax
    rel_pos: Any

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        """Attend: x (B, ..., D) -> (B, ..., D')."""
        y = self.qkv(x).flatten(1, -2)  # (B, N, 3 · H · d)
        if self.head_first:
            q, k, v = y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).chunk(3, -1)
        else:
            q, k, v = y.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos.get_bias()
        z = self._mix(q, k, v, bias)
        return self.proj_drop(self.proj(z.view(*x.shape[:-1], -1)))


class MapAttention(_Map, TimmMap):
    """``timm.layers.Attention2d`` as InfSA: the attention of MobileNetV4 and its relatives."""

    original = TimmMap
    masks = "attn_mask"
    head_first: bool

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D', h, w)."""
        qkv = self._map_heads(x, self.head_first)
        return self._map_output(self.attend(*qkv, attn_mask=attn_mask, dropout=self.attn_drop.p), x)


class MultiQueryAttention(TimmLayer, TimmMultiQuery):
    """``timm.layers.MultiQueryAttention2d`` as InfSA: heads share one key; queries and keys may be pooled."""

    original = TimmMultiQuery
    masks = "attn_mask"
    query: Any
    key: Any
    value: Any
    output: Any

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D', h, w)."""
        query = self.query(x)  # (B, H · d, h', w')
        q = query.flatten(2).unflatten(1, (self.num_heads, -1)).mT
        k, v = (
            part(x).flatten(2).mT.unsqueeze(1).expand(-1, self.num_heads, -1, -1) for part in (self.key, self.value)
        )
        if q.shape[2] == k.shape[2]:
            z = self.attend(q, k, v, attn_mask=attn_mask, dropout=self.attn_drop.p)
        else:
            z = self._mix(q, k, v, attn_mask)
        return self.output(z.mT.unflatten(-1, query.shape[2:]))


class VisformerAttention(_Map, TimmVis):
    """The attention of Visformer as InfSA."""

    original = TimmVis

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D, h, w)."""
        return self._map_output(self._mix(*self._map_heads(x, head_first=False)), x)


class FastAttention(TimmLayer, TimmFast):
    """The attention of FastViT as InfSA."""

    original = TimmFast

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D, h, w)."""
        z = self.proj_drop(self.proj(self._mix(*self._fused(x.flatten(2).mT))))
        return z.mT.unflatten(-1, x.shape[2:])


class VoloAttention(TimmLayer, TimmVolo):
    """The self-attention of VOLO as InfSA; its outlook attention is another layer."""

    original = TimmVolo

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, h, w, D) -> (B, h, w, D)."""
        z = self._mix(*self._fused(x.flatten(1, 2)))
        return self.proj_drop(self.proj(z.unflatten(1, x.shape[1:3])))


class SamAttention(TimmLayer, TimmSam):
    """The attention of SAM's image encoder as InfSA; relative positions are added to the scores before φ."""

    original = TimmSam
    lost = (PADDING,)
    rope: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, h, w, D), a map or a window of one -> the same shape."""
        size = (x.shape[1], x.shape[2])
        q, k, v = self._fused(x.flatten(1, 2))
        q, k, bias = self.q_norm(q), self.k_norm(k), None
        if self.use_rel_pos:
            bias = get_decomposed_rel_pos_bias(q.flatten(0, 1), self.rel_pos_h, self.rel_pos_w, size, size)
            bias = bias.unflatten(0, q.shape[:2])
        elif self.rope is not None:
            rope = self.rope.get_embed()
            q, k = apply_rot_embed_cat(q, rope), apply_rot_embed_cat(k, rope)
        z = self._mix(q.type_as(v), k.type_as(v), v, bias)
        return self.proj_drop(self.proj(z)).unflatten(1, size)


class SingleHeadAttention(TimmLayer, TimmSingle):
    """The single-head attention of SHViT as InfSA: a part of the channels attends, the others pass."""

    original = TimmSingle
    num_heads = 1
    pre_norm: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, D, h, w) -> (B, D, h, w)."""
        first, rest = x.split([self.pdim, self.dim - self.pdim], 1)
        y = self.qkv(self.pre_norm(first)).flatten(2).mT
        q, k, v = (split_heads(part, 1) for part in y.split([self.qk_dim, self.qk_dim, self.pdim], -1))
        z = self._mix(self._scaled(q), k, v).mT.unflatten(-1, x.shape[2:])
        return self.proj(torch.cat([z, rest], 1))


LAYERS: tuple[type[TimmLayer], ...] = (
    MaxMapAttention,
    MaxAttention,
    MapAttention,
    MultiQueryAttention,
    VisformerAttention,
    FastAttention,
    VoloAttention,
    SamAttention,
    SingleHeadAttention,
)
