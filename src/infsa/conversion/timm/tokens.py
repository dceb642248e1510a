"""timm's attention on sequences of tokens as InfSA: plain, rotary, with relative positions, of class tokens."""

from typing import Any

import torch
from timm.layers import apply_rot_embed_cat, attention, attention_pool
from timm.models import beit, cait, convit, crossvit, eva, metaformer, tnt, vision_transformer_relpos, volo
from torch import Tensor, nn
from torch.nn import functional as F

from ...nn.infsa import merge_heads, split_heads, zero_padding
from ...ops import central_pool, projected_values
from ...ops.dispatch import untouched
from ...ops.linear.projected import project_pooled
from .base import PlainLayer, TimmLayer


class _Masked(TimmLayer):
    """Layers that take masks, and may normalise and gate the joined heads."""

    masks = "attn_mask, is_causal"

    def _gated(self, z: Tensor, x: Tensor) -> Tensor:
        """What follows the joined heads z (B, N, A): norm, gate, projection, dropout."""
        if isinstance(getattr(self, "norm", None), nn.Module):
            z = self.norm(z)
        if getattr(self, "gate", None) is not None:
            z = z * self.gate(x).sigmoid()
        return self._output(z)


class Attention(_Masked, attention.Attention):
    """``timm.layers.Attention`` as InfSA: ViT, DeiT, DINOv2, SigLIP, CLIP; qk-norm, scale-norm and gate stay.

    Linear-InfSA pools tokens before it projects them, unless a gate, an adapter or a hook stands in the way.
    """

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        plain = getattr(self, "gate", None) is None and type(self.qkv) is nn.Linear and untouched(self.qkv)
        if self.infsa_settings.variant == "linear" and plain and not is_causal:
            return self._pool_first(x, self.token_mask(x, attn_mask))
        q, k, v = self._fused(x)
        return self._gated(
            self._mix_masked(self.q_norm(q), self.k_norm(k), v, attn_mask=attn_mask, is_causal=is_causal), x
        )

    def _pool_first(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Linear-InfSA with the value and output projections on one row per image: exact, as a mean is linear."""
        settings = self.infsa_settings
        options: dict[str, Any] = {**settings.formula, "impl": settings.impl, "key_mask": key_mask}
        x = zero_padding(x, key_mask)
        biases = (None,) * 3 if self.qkv.bias is None else self.qkv.bias.chunk(3)
        query, key, value = zip(self.qkv.weight.chunk(3), biases, strict=True)
        if settings.level == "surgery":
            values, _ = projected_values(x, self.num_heads, query, None, value, **options)
        else:
            q, k = self._heads(F.linear(x, *query), F.linear(x, *key))
            pooled = central_pool(self.q_norm(q), self.k_norm(k), x.unsqueeze(1), **options)
            values = project_pooled(pooled, *value, self.num_heads)
        rows = merge_heads(values, self.decay())
        return self.proj_drop(self.proj(self.norm(rows)).expand(-1, x.shape[1], -1))


class _Rotary(_Masked):
    """Layers of EVA and its relatives: rotary positions beyond the prefix tokens, fused or separate projections."""

    rotary = True

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        q, k, v = self._fused(x) if self.qkv is not None else self._separate(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = self._rotate(q, rope), self._rotate(k, rope)
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return self._gated(self._mix_masked(q, k, v, attn_mask=attn_mask, is_causal=is_causal), x)

    def _separate(self, x: Tensor) -> tuple[Tensor, ...]:
        groups = getattr(self, "num_kv_heads", self.num_heads)
        parts = ((self.q_proj, self.num_heads), (self.k_proj, groups), (self.v_proj, groups))
        return tuple(split_heads(part(x), heads) for part, heads in parts)

    def _rotate(self, q: Tensor, rope: Tensor) -> Tensor:
        prefix = self.num_prefix_tokens
        turned = apply_rot_embed_cat(q[:, :, prefix:], rope, half=getattr(self, "rotate_half", False))
        return torch.cat([q[:, :, :prefix], turned], dim=2)


class EvaAttention(_Rotary, eva.EvaAttention):
    """``timm.models.eva.EvaAttention`` as InfSA."""


class AttentionRope(_Rotary, attention.AttentionRope):
    """``timm.layers.AttentionRope`` as InfSA; key heads shared by several query heads stay shared."""


class BeitAttention(TimmLayer, beit.Attention):
    """``timm.models.beit.Attention`` as InfSA: the relative position bias is added to the scores before φ."""

    def forward(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        bias = shared_rel_pos_bias
        if self.relative_position_bias_table is not None:
            bias = self._get_rel_pos_bias() if bias is None else self._get_rel_pos_bias() + bias
        return self._output(self._mix(*self._fused(x), bias=bias))


class RelPosAttention(TimmLayer, vision_transformer_relpos.RelPosAttention):
    """``RelPosAttention`` of timm's ViT with relative positions as InfSA: the bias is added to the scores before φ."""

    rel_pos: Any

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        q, k, v = self._fused(x)
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos.get_bias()
        return self._output(self._mix(self.q_norm(q), self.k_norm(k), v, bias=bias))


class AttentionPoolLatent(TimmLayer, attention_pool.AttentionPoolLatent):
    """Attention pooling by learned queries as InfSA: cross-attention of the latents to the tokens."""

    masks = "attn_mask"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Pool: x (B, N, D) -> (B, D), or (B, latents, D) without a final pool."""
        if self.pos_embed is not None:
            x = x + self.pos_embed.unsqueeze(0).to(x.dtype)
        (q,) = self._heads(self.q(self.latent.expand(x.shape[0], -1, -1)))
        k, v = self._parts(self.kv(x), 2)
        q, k = self.q_norm(q), self.k_norm(k)
        real = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
        if self.infsa_settings.variant == "linear":
            z = self.linear(q, k, v, key_mask=self.token_mask(x, attn_mask), query_mask=real)
        else:
            z = self.pure(q, k, v, attn_mask=attn_mask, query_mask=real)
        z = self._output(z)
        if self.mlp is not None:
            z = z + self.mlp(self.norm(z))
        if self.pool == "token":
            return z[:, 0]
        return z.mean(1) if self.pool == "avg" else z


class MetaAttention(PlainLayer, metaformer.Attention):
    """The attention of MetaFormers (CAFormer) as InfSA."""


class ConvitAttention(PlainLayer, convit.MHSA):
    """The plain attention of ConViT as InfSA; its gated positional attention is another layer."""


class TntAttention(TimmLayer, tnt.Attention):
    """The attention of Transformer iN Transformer as InfSA; the pixels of a patch are a token graph of their own."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        return self._output(self._mix(*self._parts(self.qk(x), 2), *self._heads(self.v(x))))


class _FirstToken(TimmLayer):
    """Layers in which the first token asks all: one row of scores, divided by its own norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, 1, D)."""
        return self._output(self._mix(*self._heads(*self._projected(x))))

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """q (B, 1, A), k and v (B, N, A)."""
        return self.q(x[:, :1]), self.k(x), self.v(x)


class ClassAttn(_FirstToken, cait.ClassAttn):
    """The class attention of CaiT and XCiT as InfSA."""


class VoloClassAttention(_FirstToken, volo.ClassAttention):
    """The class attention of VOLO as InfSA."""

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.q(x[:, :1]), *self.kv(x).chunk(2, -1)


class CrossAttention(_FirstToken, crossvit.CrossAttention):
    """The cross-attention of CrossViT as InfSA: the class token of one branch asks the patches of the other."""

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.wq(x[:, :1]), self.wk(x), self.wv(x)
