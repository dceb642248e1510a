"""``torch.nn.MultiheadAttention`` as InfSA, and the decoder layer that tells it about its targets."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..nn import MultiheadAttention
from ..nn.infsa import merge_heads, scale_heads
from ..ops import projected_values
from ..ops.masking import forbids_future
from .masks import padding_of, require_mutual
from .plan import LayerPlan
from .settings import Settings


class SwappedMultiheadAttention(MultiheadAttention):
    """A ``torch.nn.MultiheadAttention`` that became InfSA in place; its errors name the layer.

    Example:
        >>> layer = infsa.convert(torch.nn.MultiheadAttention(64, 4, batch_first=True))
        >>> layer(x, x, x)[0].shape
        torch.Size([2, 10, 64])
    """

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
        query_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as ``infsa.nn.MultiheadAttention`` does.

        ``query_causal`` is for cross-attention of a causal decoder: every key may be seen, and row i is divided by
        the norm of the rows up to i, so that no output depends on a later query.
        """
        options: dict[str, Any] = {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
        masks = (key_padding_mask, query_padding_mask, attn_mask)
        attend = self._attend_causal_queries if query_causal and not is_causal else self._attend
        if torch.compiler.is_compiling():
            return attend(query, key, value, *masks, is_causal=is_causal, **options)
        try:
            return attend(query, key, value, *masks, is_causal=is_causal, **options)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{self.infsa_layer.name or 'the layer'}: {error}") from error

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        query_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        return super().forward(
            query,
            key,
            value,
            key_padding_mask,
            attn_mask=attn_mask,
            query_padding_mask=query_padding_mask,
            **options,
        )

    def _attend_causal_queries(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        query_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Keys first, queries after them, one causal sequence: the prefix norm of its rows is the one wanted."""
        if self.variant == "linear":
            raise ValueError(
                "Linear-InfSA pools the queries of a decoder, later ones included; variant='pure' does not"
            )
        along = 1 if query.dim() == 3 and self.batch_first else 0
        keys, queries = key.shape[along], query.shape[along]
        batch = query.shape[1 - along] if query.dim() == 3 else 1
        query = torch.cat([query.new_zeros(*_sized(query, along, keys)), query], along)
        key, value = (torch.cat([x, x.new_zeros(*_sized(x, along, queries))], along) for x in (key, value))
        output, weights = self._attend(
            query,
            key,
            value,
            _hidden(key_padding_mask, batch, keys, query.device, (0, queries)),
            _hidden(query_padding_mask, batch, queries, query.device, (keys, 0)),
            None if attn_mask is None else pad(attn_mask, (0, queries, keys, 0)),
            **{**options, "is_causal": True},
        )
        return output.narrow(along, keys, queries), None if weights is None else weights[..., keys:, :keys]

    def _pure(
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
        """In self-attention, tokens that the mask hides from every query are padding."""
        real = masks["key_mask"]
        if attn_mask is not None and masks["query_mask"] is real:
            seen = padding_of(attn_mask, key.shape[0], key.shape[1])
            real = seen if real is None else seen & real
            masks = {"key_mask": real, "query_mask": real}
            if not is_causal:
                require_mutual(attn_mask, real)
        return super()._pure(query, key, value, masks, key_bias, attn_mask, is_causal, need_weights)

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

    Example:
        >>> type(infsa.convert(torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(64, 4), 1)).layers[0])
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


def _sized(x: Tensor, along: int, count: int) -> tuple[int, ...]:
    """The shape of x with another length."""
    return tuple(count if place == along else size for place, size in enumerate(x.shape))


def _hidden(mask: Tensor | None, batch: int, tokens: int, device: torch.device, extra: tuple[int, int]) -> Tensor:
    """torch's padding mask (B, N), True or −inf hides, with hidden tokens added at either end."""
    if mask is None:
        mask = torch.zeros(batch, tokens, dtype=torch.bool, device=device)
    mask = mask if mask.dim() == 2 else mask.unsqueeze(0)
    return pad(mask, extra, value=True if mask.dtype == torch.bool else -torch.inf)
