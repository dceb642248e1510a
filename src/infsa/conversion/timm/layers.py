"""timm's attention layers as InfSA; each inherits the class it takes the place of and keeps its signature."""

import math
from typing import Any

import torch
from timm.layers import AttentionPoolLatent as TimmPool
from timm.layers import AttentionRope as TimmRope
from timm.layers import apply_rot_embed_cat
from timm.layers.attention import Attention as TimmAttention
from timm.models.beit import Attention as TimmBeit
from timm.models.eva import EvaAttention as TimmEva
from timm.models.vision_transformer_relpos import RelPosAttention as TimmRelPos
from torch import Tensor, nn
from torch.nn import functional as F

from ...nn.infsa import merge_heads, scale_heads, split_heads, zero_padding
from ...ops import central_pool, projected_values
from ...ops.dispatch import untouched
from ...ops.linear.projected import project_pooled
from ..swap import Swapped


class TimmLayer(Swapped):
    """What the layers of timm share: a fused projection, and what follows the heads."""

    masks = "none"
    rotary = False
    biased = False  # whether it scores pairs of positions in a part that has no name of its own
    lost: tuple[str, ...] = ()  # what the plan says that a layer of this class loses
    qkv: Any
    proj: Any
    proj_drop: Any
    attn_drop: Any
    q_norm: Any
    k_norm: Any
    scale: float

    def _fused(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v of the fused projection, which may be an adapter: (B, H, N, d) each; after surgery k is q."""
        bias = self._bias()
        if bias is not None and type(self.qkv) is nn.Linear:
            qkv = F.linear(x, self.qkv.weight, bias)
        else:
            qkv = self.qkv(x) if bias is None else self.qkv(x) + bias
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return q, q if self.infsa_settings.level == "surgery" else k, v

    def _bias(self) -> Tensor | None:
        """The bias of the projection where a layer keeps it in parts."""
        if getattr(self, "q_bias", None) is None:
            return None
        return torch.cat((self.q_bias, self.k_bias, self.v_bias))  # type: ignore[arg-type]

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Attend from q (B, H, Nq, d) to k, v (B, H, Nk, ·), joined: (B, Nq, H·dv).

        A bias (·, H, Nq, Nk) is added to the scores before φ and hides no token.
        """
        if self.infsa_settings.variant == "linear":
            return self.linear(q, k, v, key_mask=self.token_mask(k, bias))
        dropout = getattr(getattr(self, "attn_drop", None), "p", 0.0)
        if bias is not None and bias.is_floating_point():
            bias = bias.to(q.dtype)
        return self.pure(q, k, v, attn_mask=bias, dropout=dropout)

    def _scaled(self, q: Tensor) -> Tensor:
        """Queries with the layer's own scale in them: φ(q·k/√d) follows."""
        ratio = self.scale * math.sqrt(q.shape[-1])
        return q if math.isclose(ratio, 1.0) else q * ratio

    def _output(self, z: Tensor, x: Tensor) -> Tensor:
        """What follows the joined heads z (B, N, A): norm, gate, projection, dropout."""
        if isinstance(getattr(self, "norm", None), nn.Module):
            z = self.norm(z)  # type: ignore[operator]
        if getattr(self, "gate", None) is not None:
            z = z * self.gate(x).sigmoid()  # type: ignore[operator]
        return self.proj_drop(self.proj(z))


class Attention(TimmLayer, TimmAttention):
    """``timm.layers.Attention`` as InfSA: ViT, DeiT, DINOv2, SigLIP, CLIP; qk-norm, scale-norm and gate stay.

    Linear-InfSA pools tokens before it projects them, unless a gate, an adapter or a hook stands in the way.

    Example:
        >>> infsa.convert(timm.layers.Attention(64, 4), "linear")(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    original = TimmAttention
    masks = "attn_mask, is_causal"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        plain = getattr(self, "gate", None) is None and type(self.qkv) is nn.Linear and untouched(self.qkv)
        if self.infsa_settings.variant == "linear" and plain and not is_causal:
            return self._pool_first(x, self.token_mask(x, attn_mask))
        q, k, v = self._fused(x)
        q, k = self.q_norm(q), self.k_norm(k)
        return self._output(self.attend(q, k, v, attn_mask=attn_mask, is_causal=is_causal, dropout=self.attn_drop.p), x)

    def _pool_first(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Linear-InfSA with the value and output projections on one row per image: exact, as a mean is linear."""
        settings = self.infsa_settings
        options: dict[str, Any] = {"activation": settings.activation, "eps": settings.eps, "impl": settings.impl}
        x = zero_padding(x, key_mask)
        (query, key, value), biases = self.qkv.weight.chunk(3), (None,) * 3
        if self.qkv.bias is not None:
            biases = self.qkv.bias.chunk(3)
        if settings.level == "surgery":
            first, last = (query, biases[0]), (value, biases[2])
            values, _ = projected_values(x, self.num_heads, first, None, last, key_mask=key_mask, **options)
        else:
            q, k = (split_heads(F.linear(x, *part), self.num_heads) for part in zip((query, key), biases, strict=False))
            pooled = central_pool(self.q_norm(q), self.k_norm(k), x.unsqueeze(1), key_mask=key_mask, **options)
            values = project_pooled(pooled, value, biases[2], self.num_heads)
        rows = merge_heads(scale_heads(values, self.decay()))
        return self.proj_drop(self.proj(self.norm(rows)).expand(-1, x.shape[1], -1))


class _Rotary(TimmLayer):
    """Layers of EVA and its relatives: rotary positions beyond the prefix tokens, fused or separate projections."""

    masks = "attn_mask, is_causal"
    rotary = True
    num_prefix_tokens: int

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        q, k, v = self._fused(x) if self.qkv is not None else self._separate(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = self._rotate(q, rope).type_as(v), self._rotate(k, rope).type_as(v)
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return self._output(self.attend(q, k, v, attn_mask=attn_mask, is_causal=is_causal, dropout=self.attn_drop.p), x)

    def _separate(self, x: Tensor) -> tuple[Tensor, ...]:
        groups = getattr(self, "num_kv_heads", self.num_heads)
        heads = (self.num_heads, groups, groups)
        parts: tuple[Any, ...] = (self.q_proj, self.k_proj, self.v_proj)
        return tuple(split_heads(part(x), count) for part, count in zip(parts, heads, strict=True))

    def _rotate(self, q: Tensor, rope: Tensor) -> Tensor:
        prefix = self.num_prefix_tokens
        turned = apply_rot_embed_cat(q[:, :, prefix:], rope, half=getattr(self, "rotate_half", False))
        return torch.cat([q[:, :, :prefix], turned], dim=2)


class EvaAttention(_Rotary, TimmEva):
    """``timm.models.eva.EvaAttention`` as InfSA."""

    original = TimmEva


class AttentionRope(_Rotary, TimmRope):
    """``timm.layers.AttentionRope`` as InfSA; key heads shared by several query heads stay shared."""

    original = TimmRope


class BeitAttention(TimmLayer, TimmBeit):
    """``timm.models.beit.Attention`` as InfSA: the relative position bias is added to the scores before φ."""

    original = TimmBeit

    def forward(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        bias = shared_rel_pos_bias
        if self.relative_position_bias_table is not None:
            bias = self._get_rel_pos_bias() if bias is None else self._get_rel_pos_bias() + bias
        q, k, v = self._fused(x)
        return self._output(self._mix(q, k, v, bias), x)


class RelPosAttention(TimmLayer, TimmRelPos):
    """``RelPosAttention`` of timm's ViT with relative positions as InfSA: the bias is added to the scores before φ."""

    original = TimmRelPos
    rel_pos: Any

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        q, k, v = self._fused(x)
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos.get_bias()
        return self._output(self._mix(self.q_norm(q), self.k_norm(k), v, bias), x)


class AttentionPoolLatent(TimmLayer, TimmPool):
    """Attention pooling by learned queries as InfSA: cross-attention of the latents to the tokens."""

    original = TimmPool
    q: Any
    kv: Any
    mlp: Any
    norm: Any
    masks = "attn_mask"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Pool: x (B, N, D) -> (B, D), or (B, latents, D) without a final pool."""
        if self.pos_embed is not None:
            x = x + self.pos_embed.unsqueeze(0).to(x.dtype)
        q = self.q_norm(split_heads(self.q(self.latent.expand(x.shape[0], -1, -1)), self.num_heads))
        k, v = self.kv(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        k = self.k_norm(k)
        real = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
        if self.infsa_settings.variant == "linear":
            z = self.linear(q, k, v, key_mask=self.token_mask(x, attn_mask), query_mask=real)
        else:
            z = self.pure(q, k, v, attn_mask=attn_mask, query_mask=real)
        z = self.proj_drop(self.proj(z))
        if self.mlp is not None:
            z = z + self.mlp(self.norm(z))
        if self.pool == "token":
            return z[:, 0]
        return z.mean(1) if self.pool == "avg" else z


LAYERS: tuple[type[TimmLayer], ...] = (
    Attention,
    EvaAttention,
    AttentionRope,
    BeitAttention,
    RelPosAttention,
    AttentionPoolLatent,
)
