"""Attention layers of transformers that score inside their own forward pass: their class changes in place."""

from typing import Any

from torch import Tensor
from transformers.models.sam.modeling_sam import SamVisionAttention, SamVisionSdpaAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

from ...nn.infsa import split_heads
from ...ops import pure_weights
from ..settings import Settings
from ..swap import NO_PAIRS, TARGETS, Swapped
from ..windows import ONE_NORM, continuous_bias, cosines
from .call import one_type, weights_are_collected
from .classes import PADDED
from .layers import words_for
from .masks import hidden_parts, joined


class SwappedInside(Swapped):
    """What the classes below share: heads under the library's name, and Â on request."""

    @property
    def num_heads(self) -> int:  # type: ignore[override]
        """The number of heads, as every other layer calls it."""
        return self.num_attention_heads

    def attend_with(
        self, qkv: tuple[Tensor, ...], bias: Tensor | None, dropout: float, with_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """InfSA on q, k, v (B, H, N, d) with a bias on the scores: (B, N, H·d), and Â (B, H, N, N) on request."""
        q, k, v = one_type(*qkv)
        if self.infsa_settings.variant == "linear":
            return self.linear(q, k, v), None
        weights = pure_weights(q, k, attn_mask=bias, **self.infsa_settings.formula) if with_weights else None
        return self.pure(q, k, v, attn_mask=bias, dropout=dropout), weights


class SwappedSamVision(SwappedInside, SamVisionAttention):
    """SAM's image encoder: windows or the whole image, with relative positions along both axes."""

    def forward(self, hidden_states: Tensor, output_attentions: bool | None = None) -> tuple[Tensor, Tensor | None]:
        """Image tokens (B, height, width, D) -> the same shape."""
        sides = hidden_states.shape[1:3]
        rows = self.qkv(hidden_states).flatten(1, 2).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = rows.permute(2, 0, 3, 1, 4)
        bias = None
        if self.use_rel_pos:
            bias = self.get_decomposed_rel_pos(q.flatten(0, 1), self.rel_pos_h, self.rel_pos_w, sides, sides)
            bias = bias.reshape(*q.shape[:3], q.shape[2])
        wanted = bool(output_attentions or weights_are_collected())
        z, weights = self.attend_with((q, k, v), bias, self.dropout, wanted)
        return self.proj(z.unflatten(1, sides)), None if weights is None else weights.flatten(0, 1)


class SwappedSamVisionSdpa(SwappedSamVision, SamVisionSdpaAttention):
    """The same where SAM was built for torch's fused attention."""


class SwappedSwinv2(SwappedInside, Swinv2SelfAttention):
    """Swin V2: cosines between the tokens of a window, scaled per head, plus a learned function of their places."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool | None = False
    ) -> tuple[Tensor | None, ...]:
        """Tokens of windows (B·W, n, D), and which of them a shift keeps apart (W, n, n)."""
        parts = (self.query, self.key, self.value)
        qkv = tuple(split_heads(part(hidden_states), self.num_heads) for part in parts)
        apart = None
        if attention_mask is not None:
            apart = hidden_parts(attention_mask).repeat(len(hidden_states) // len(attention_mask), 1, 1).unsqueeze(1)
        tables = (self.relative_coords_table, self.relative_position_index)
        bias = joined(apart, continuous_bias(self.continuous_position_bias_mlp, *tables, self.num_heads))
        qkv = cosines(qkv, self.logit_scale)
        z, weights = self.attend_with(qkv, bias, self.dropout.p, bool(output_attentions))
        return (z, weights) if output_attentions else (z,)


def facts_inside(module: Any, settings: Settings) -> tuple[dict[str, Any], str] | None:
    """What such a layer is, for its plan, and why it is refused, if it is; None for any other."""
    if type(module) not in TARGETS:
        return None
    shifted = type(module) is Swinv2SelfAttention
    biased = shifted or module.use_rel_pos
    facts = {
        "heads": module.num_attention_heads,
        "width": module.query.out_features if shifted else module.qkv.out_features // 3,
        "masks": "window shift" if shifted else "none",
        "qk_norm": shifted,
        "biases": words_for(module, "relative position" if biased else ""),
        "lost": (ONE_NORM, PADDED) if shifted and settings.norm != "row" else (PADDED,),
    }
    if settings.level == "surgery":
        return facts, "level='surgery' is not supported for transformers"
    return facts, NO_PAIRS if settings.variant == "linear" and biased else ""
