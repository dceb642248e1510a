"""Attention layers of transformers that score inside their own forward pass: their class changes in place."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers.models.sam.modeling_sam import SamVisionAttention, SamVisionSdpaAttention
from transformers.models.swinv2.modeling_swinv2 import Swinv2SelfAttention

from ...ops import pure_weights
from ..plan import LayerPlan, kind_of
from ..settings import Settings
from ..swap import ONE_NORM, Swapped, swap_class
from .attention import one_type, weights_are_collected
from .classes import PADDED
from .masks import hidden_parts, joined


class SwappedInside(Swapped):
    """What the classes below share: heads under the library's name, and Â on request."""

    num_attention_heads: int

    @property
    def num_heads(self) -> int:  # type: ignore[override]
        """The number of heads, as every other layer calls it."""
        return self.num_attention_heads

    def attend_with(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float, with_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """InfSA on q, k, v (B, H, N, d) with a bias on the scores: (B, N, H·d), and Â (B, H, N, N) on request."""
        settings = self.infsa_settings
        q, k, v = one_type(q, k, v)
        if settings.variant == "linear":
            return self.linear(q, k, v), None
        weights = None
        if with_weights:
            options: dict[str, Any] = {"activation": settings.activation, "eps": settings.eps, "attn_mask": bias}
            weights = pure_weights(q, k, norm="row" if settings.norm == "row" else "frobenius", **options)
        return self.pure(q, k, v, attn_mask=bias, dropout=dropout), weights


class SwappedSamVision(SwappedInside, SamVisionAttention):
    """SAM's image encoder: windows or the whole image, with relative positions along both axes."""

    original = SamVisionAttention
    qkv: Any
    proj: Any
    dropout: float
    rel_pos_h: Tensor
    rel_pos_w: Tensor
    get_decomposed_rel_pos: Any
    use_rel_pos: bool

    def forward(self, hidden_states: Tensor, output_attentions: bool | None = None) -> tuple[Tensor, Tensor | None]:
        """Image tokens (B, height, width, D) -> the same shape."""
        batch, height, width, _ = hidden_states.shape
        rows = self.qkv(hidden_states).reshape(batch, height * width, 3, self.num_heads, -1)
        q, k, v = rows.permute(2, 0, 3, 1, 4)
        bias = None
        if self.use_rel_pos:
            sides = (height, width)
            bias = self.get_decomposed_rel_pos(q.flatten(0, 1), self.rel_pos_h, self.rel_pos_w, sides, sides)
            bias = bias.reshape(batch, self.num_heads, height * width, height * width)
        wanted = bool(output_attentions or weights_are_collected())
        z, weights = self.attend_with(q, k, v, bias, self.dropout, wanted)
        return self.proj(z.view(batch, height, width, -1)), None if weights is None else weights.flatten(0, 1)


class SwappedSamVisionSdpa(SwappedSamVision, SamVisionSdpaAttention):
    """The same where SAM was built for torch's fused attention."""

    original = SamVisionSdpaAttention


class SwappedSwinv2(SwappedInside, Swinv2SelfAttention):
    """Swin V2: cosines between the tokens of a window, scaled per head, plus a learned function of their places."""

    original = Swinv2SelfAttention
    query: Any
    key: Any
    value: Any
    dropout: Any
    attention_head_size: int
    logit_scale: Tensor
    continuous_position_bias_mlp: Any
    relative_coords_table: Tensor
    relative_position_index: Tensor

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool | None = False
    ) -> tuple[Tensor | None, ...]:
        """Tokens of windows (B·W, n, D), and which of them a shift keeps apart (W, n, n)."""
        windows, tokens, _ = hidden_states.shape
        shape = (windows, tokens, self.num_heads, self.attention_head_size)
        q, k, v = (part(hidden_states).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        scale = torch.clamp(self.logit_scale, max=math.log(100)).exp() * math.sqrt(self.attention_head_size)
        apart = None
        if attention_mask is not None:
            apart = hidden_parts(attention_mask).repeat(windows // len(attention_mask), 1, 1).unsqueeze(1)
        bias = joined(apart, self._bias(tokens))
        q, k = normalize(q, dim=-1) * scale, normalize(k, dim=-1)
        z, weights = self.attend_with(q, k, v, bias, self.dropout.p, bool(output_attentions))
        return (z, weights) if output_attentions else (z,)

    def _bias(self, tokens: int) -> Tensor:
        """The bias of every pair of places in a window: (1, H, n, n)."""
        table = self.continuous_position_bias_mlp(self.relative_coords_table).view(-1, self.num_heads)
        pairs = table[self.relative_position_index.flatten()].view(tokens, tokens, self.num_heads)
        return 16 * torch.sigmoid(pairs.permute(2, 0, 1)).unsqueeze(0)


SWAPS: dict[type[nn.Module], type[SwappedInside]] = {
    SamVisionAttention: SwappedSamVision,
    SamVisionSdpaAttention: SwappedSamVisionSdpa,
    Swinv2SelfAttention: SwappedSwinv2,
}


def plan_inside(name: str, module: Any, settings: Settings) -> LayerPlan | None:
    """The plan of a layer that scores inside its own forward pass; None for any other."""
    if type(module) not in SWAPS:
        return None
    shifted = type(module) is Swinv2SelfAttention
    biased = shifted or module.use_rel_pos
    heads = module.num_attention_heads
    width = module.query.out_features if shifted else module.qkv.out_features // 3
    linear = [part for part, child in module.named_children() if getattr(child, "bias", None) is not None]
    layer = LayerPlan(
        name,
        kind_of(module),
        "transformers",
        heads=heads,
        key_heads=heads,
        width=width,
        head_width=width // heads,
        masks="window shift" if shifted else "none",
        qk_norm=shifted,
        biases="; ".join([f"of {', '.join(linear)}"] * bool(linear) + ["relative position on the scores"] * biased),
        lost=(ONE_NORM, PADDED) if shifted and settings.norm != "row" else (PADDED,),
    )
    if settings.level == "surgery":
        return layer.refused("level='surgery' is not offered for transformers")
    if settings.variant == "linear" and biased:
        return layer.refused("Linear-InfSA has no scores between pairs of tokens: relative positions would be dropped")
    return layer


def swap_inside(module: Any, heads: int, settings: Settings) -> None:
    """Turn such a layer into InfSA; :func:`infsa.conversion.swap.restore_class` undoes it."""
    swap_class(module, SWAPS[type(module)], heads, settings)
