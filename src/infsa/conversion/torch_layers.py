"""``torch.nn.MultiheadAttention`` as InfSA, and the decoder layer that tells it about its targets."""

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..nn import MultiheadAttention
from ..nn.infsa import merge_heads
from ..nn.multihead import Call
from ..ops import projected_values
from ..ops.masks import forbids_future
from .settings import Settings

if TYPE_CHECKING:
    from .families import LayerPlan


class SwappedMultiheadAttention(MultiheadAttention):
    """A ``torch.nn.MultiheadAttention`` that became InfSA in place; its errors name the layer."""

    infsa_layer: "LayerPlan"
    infsa_settings: Settings

    @wraps(MultiheadAttention.forward)
    def forward(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        """Attend as ``infsa.nn.MultiheadAttention`` does."""
        if torch.compiler.is_compiling():
            return super().forward(*arguments, **options)
        try:
            return super().forward(*arguments, **options)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{self.infsa_layer.name or 'the layer'}: {error}") from error

    @property
    def _guards_masks(self) -> bool:
        return True

    def _projection(self, part: int) -> tuple[Tensor, Tensor | None]:
        """After surgery the keys are the queries."""
        tied = part == 1 and self.infsa_settings.level == "surgery"
        return super()._projection(0 if tied else part)

    def _linear(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """With folded projections, pool the tokens before any projection but the query's."""
        general = call.is_causal or call.need_weights or call.attn_mask is not None or call.key_bias is not None
        if self.infsa_settings.level == "swap" or general:
            return super()._linear(call)
        projections = (self._projection(0), None, self._projection(2))
        options: dict[str, Any] = {"activation": self.activation, "eps": self.eps, "impl": self.impl}
        rows, _ = projected_values(call.query, self.num_heads, *projections, key_mask=call.key_mask, **options)
        return self.out_proj(merge_heads(rows, self.decay())).expand(-1, call.query.shape[1], -1), None


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
        masks_of_memory: dict[str, Any] = {"attn_mask": memory_mask, "key_padding_mask": memory_key_padding_mask}
        masks_of_memory |= {"is_causal": memory_is_causal, "query_padding_mask": tgt_key_padding_mask}

        def self_attention(x: Tensor) -> Tensor:
            return self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)

        def cross_attention(x: Tensor) -> Tensor:
            z, _ = self.multihead_attn(x, memory, memory, need_weights=False, query_causal=causal, **masks_of_memory)
            return self.dropout2(z)

        x = tgt
        parts = ((self_attention, self.norm1), (cross_attention, self.norm2), (self._ff_block, self.norm3))
        for part, norm in parts:
            x = x + part(norm(x)) if self.norm_first else norm(x + part(x))
        return x


def _forbids_future(mask: Tensor) -> bool:
    allowed = ~mask if mask.dtype == torch.bool else mask
    return bool(forbids_future(allowed[(None,) * (4 - mask.dim())], mask.shape[-1]).all())
