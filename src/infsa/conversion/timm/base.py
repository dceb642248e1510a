"""What the converted layers of timm share: how queries, keys and values are laid out, and what follows the heads."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...nn.infsa import split_heads
from ..swap import Swapped

PADDING = "zero padding of incomplete windows takes part, as with softmax: timm adds it before the layer's projections"


class TimmLayer(Swapped):
    """A layer of timm as InfSA; it inherits the class it takes the place of and keeps its signature."""

    masks = "none"
    rotary = False
    biased = False  # whether it scores pairs of positions in a part that has no name of its own
    lost: tuple[str, ...] = ()  # what the plan says that a layer of this class loses

    def _fused(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v of the fused projection, which may be an adapter: (B, H, N, d) each; after surgery k is q."""
        bias = None
        if getattr(self, "q_bias", None) is not None:  # kept in parts
            bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
        if bias is not None and type(self.qkv) is nn.Linear:
            qkv = F.linear(x, self.qkv.weight, bias)
        else:
            qkv = self.qkv(x) if bias is None else self.qkv(x) + bias
        q, k, v = self._parts(qkv)
        return q, q if self.infsa_settings.level == "surgery" else k, v

    def _parts(self, y: Tensor, count: int = 3) -> tuple[Tensor, ...]:
        """The parts of a projection y (B, N, count · H · d) whose channels are ordered by part: (B, H, N, d) each."""
        return y.unflatten(-1, (count, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()

    def _parts_of_heads(self, y: Tensor, *widths: int) -> tuple[Tensor, ...]:
        """The parts of a projection y (B, N, H · Σ widths) whose channels are ordered by head: (B, H, N, width) each.

        Without widths there are three of the same.
        """
        y = split_heads(y, self.num_heads)
        return y.split(widths, -1) if widths else y.chunk(3, -1)

    def _heads(self, *projected: Tensor) -> tuple[Tensor, ...]:
        """Projections (B, N, H · d) by head: (B, H, N, d) each."""
        return tuple(split_heads(y, self.num_heads) for y in projected)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None) -> Tensor:
        """Attend from q (B, H, Nq, d) to k, v (B, H, Nk, ·), joined: (B, Nq, H·dv).

        A bias (·, H, Nq, Nk) is added to the scores before φ and hides no token.
        """
        q, k = self._scaled(q).type_as(v), k.type_as(v)
        if self.infsa_settings.variant == "linear":
            return self.linear(q, k, v, key_mask=self.token_mask(k, bias))
        if bias is not None and bias.is_floating_point():
            bias = bias.to(q.dtype)
        return self.pure(q, k, v, attn_mask=bias, dropout=self._dropout())

    def _mix_masked(
        self, q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None, is_causal: bool = False
    ) -> Tensor:
        """The same for self-attention with a mask, under which some tokens may be padding."""
        return self.attend(self._scaled(q).type_as(v), k.type_as(v), v, attn_mask, is_causal, self._dropout())

    def _scaled(self, q: Tensor) -> Tensor:
        """Queries with the layer's own scale in them: φ(q·k/√d) follows."""
        root = math.sqrt(q.shape[-1])
        ratio = getattr(self, "scale", 1 / root) * root
        return q if math.isclose(ratio, 1.0) else q * ratio

    def _dropout(self) -> float:
        return getattr(getattr(self, "attn_drop", None), "p", 0.0)

    def _output(self, z: Tensor) -> Tensor:
        """The joined heads z, projected."""
        drop: Any = getattr(self, "proj_drop", None)
        return self.proj(z) if drop is None else drop(self.proj(z))


class PlainLayer(TimmLayer):
    """A layer that has no more than a fused projection and one after the heads."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        return self._output(self._mix(*self._fused(x)))


def to_tokens(x: Tensor) -> Tensor:
    """A map (B, D, h, w) as tokens (B, N, D); tokens stay."""
    return x.flatten(2).mT if x.dim() == 4 else x


def to_map(z: Tensor, size: torch.Size | tuple[int, ...]) -> Tensor:
    """Tokens (B, N, D) as a map (B, D, h, w)."""
    return z.mT.unflatten(-1, tuple(size))
