"""``torch.nn.MultiheadAttention`` as InfSA, and the decoder layer that tells it about its targets."""

from typing import Any

import torch
from torch import Tensor, nn

from ..nn import MultiheadAttention
from ..nn.infsa import merge_heads, scale_heads
from ..ops import projected_values
from ..ops.masks import forbids_future
from .plan import LayerPlan
from .settings import Settings


class SwappedMultiheadAttention(MultiheadAttention):
    """A ``torch.nn.MultiheadAttention`` that became InfSA in place; its errors name the layer."""

    infsa_layer: LayerPlan
    infsa_settings: Settings

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        query_padding_mask: Tensor | None = None,
        query_causal: bool | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as ``infsa.nn.MultiheadAttention`` does."""
        options: dict[str, Any] = {
            "key_padding_mask": key_padding_mask,
            "need_weights": need_weights,
            "attn_mask": attn_mask,
            "average_attn_weights": average_attn_weights,
            "is_causal": is_causal,
            "query_padding_mask": query_padding_mask,
            "query_causal": query_causal,
        }
        if torch.compiler.is_compiling():
            return super().forward(query, key, value, **options)
        try:
            return super().forward(query, key, value, **options)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{self.infsa_layer.name or 'the layer'}: {error}") from error

    @property
    def _guards_masks(self) -> bool:
        return True

    def _projection(self, part: int) -> tuple[Tensor, Tensor | None]:
        """After surgery the keys are the queries."""
        tied = part == 1 and self.infsa_settings.level == "surgery"
        return super()._projection(0 if tied else part)

    def _linear(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        masks: dict[str, Any],
        key_bias: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """With folded projections, pool the tokens before any projection but the query's."""
        general = is_causal or need_weights or attn_mask is not None or key_bias is not None
        if self.infsa_settings.level == "swap" or general:
            return super()._linear(query, key, value, masks, key_bias, attn_mask, is_causal, need_weights)
        rows, _ = projected_values(
            query,
            self.num_heads,
            self._projection(0),
            None,
            self._projection(2),
            activation=self.activation,
            key_mask=masks["key_mask"],
            eps=self.eps,
            impl=self.impl,
        )
        return self.out_proj(merge_heads(scale_heads(rows, self.decay()))).expand(-1, query.shape[1], -1), None


class SwappedDecoderLayer(nn.TransformerDecoderLayer):
    """A ``torch.nn.TransformerDecoderLayer`` whose cross-attention knows the padding and causality of its targets.

    Softmax needs neither, because its rows do not share a norm.
    """

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Decode as torch does."""
        if not any(isinstance(part, SwappedMultiheadAttention) for part in self.multihead_attn.modules()):
            masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
            return super().forward(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        causal = tgt_is_causal or (tgt_mask is not None and _forbids_future(tgt_mask))

        def self_attention(x: Tensor) -> Tensor:
            return self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)

        def cross_attention(x: Tensor) -> Tensor:
            x, _ = self.multihead_attn(
                x,
                memory,
                memory,
                attn_mask=memory_mask,
                key_padding_mask=memory_key_padding_mask,
                is_causal=memory_is_causal,
                need_weights=False,
                query_padding_mask=tgt_key_padding_mask,
                query_causal=causal,
            )
            return self.dropout2(x)

        x = tgt
        parts = ((self_attention, self.norm1), (cross_attention, self.norm2), (self._ff_block, self.norm3))
        for part, norm in parts:
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


def _forbids_future(mask: Tensor) -> bool:
    allowed = ~mask if mask.dtype == torch.bool else mask
    return bool(forbids_future(allowed[(None,) * (4 - mask.dim())], mask.shape[-1]).all())
