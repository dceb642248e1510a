"""timm's other attention on sequences as InfSA: plain layers of several models, class tokens that ask all tokens."""

from typing import Any

from timm.models.cait import ClassAttn as TimmCait
from timm.models.convit import MHSA as TimmConvit
from timm.models.crossvit import CrossAttention as TimmCross
from timm.models.metaformer import Attention as TimmMeta
from timm.models.tnt import Attention as TimmTnt
from timm.models.volo import ClassAttention as TimmVoloClass
from torch import Tensor

from ...nn.infsa import split_heads
from .layers import TimmLayer


class MetaAttention(TimmLayer, TimmMeta):
    """The attention of MetaFormers (CAFormer) as InfSA."""

    original = TimmMeta

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        return self._output(self._mix(*self._fused(x)), x)


class ConvitAttention(TimmLayer, TimmConvit):
    """The plain attention of ConViT as InfSA; its gated positional attention is another layer."""

    original = TimmConvit

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        q, k, v = self._fused(x)
        return self._output(self._mix(self._scaled(q), k, v), x)


class TntAttention(TimmLayer, TimmTnt):
    """The attention of Transformer iN Transformer as InfSA; the pixels of a patch are a token graph of their own."""

    original = TimmTnt
    qk: Any
    v: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        q, k = self.qk(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        return self._output(self._mix(self._scaled(q), k, split_heads(self.v(x), self.num_heads)), x)


class _FirstToken(TimmLayer):
    """Layers in which the first token asks all: one row of scores, divided by its own norm."""

    def _ask(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from the projected first token q (B, 1, A) to k and v (B, N, A): (B, 1, D)."""
        q, k, v = (split_heads(y, self.num_heads) for y in (q, k, v))
        return self.proj_drop(self.proj(self._mix(self._scaled(q), k, v)))


class ClassAttn(_FirstToken, TimmCait):
    """The class attention of CaiT and XCiT as InfSA."""

    original = TimmCait
    q: Any
    k: Any
    v: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, 1, D)."""
        return self._ask(self.q(x[:, :1]), self.k(x), self.v(x))


class VoloClassAttention(_FirstToken, TimmVoloClass):
    """The class attention of VOLO as InfSA."""

    original = TimmVoloClass
    q: Any
    kv: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, 1, D)."""
        return self._ask(self.q(x[:, :1]), *self.kv(x).chunk(2, -1))


class CrossAttention(_FirstToken, TimmCross):
    """The cross-attention of CrossViT as InfSA: the class token of one branch asks the patches of the other."""

    original = TimmCross
    wq: Any
    wk: Any
    wv: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, 1, D)."""
        return self._ask(self.wq(x[:, :1]), self.wk(x), self.wv(x))


LAYERS: tuple[type[TimmLayer], ...] = (
    MetaAttention,
    ConvitAttention,
    TntAttention,
    ClassAttn,
    VoloClassAttention,
    CrossAttention,
)
