"""timm's attention whose queries or keys are pooled, as InfSA: the graph of an image joins Nq queries and Nk keys."""

from collections.abc import Sequence
from typing import Any

from timm.models.hiera import MaskUnitAttention as TimmHiera
from timm.models.hieradet_sam2 import MultiScaleAttention as TimmHieraDet
from timm.models.mvitv2 import MultiScaleAttention as TimmMvit
from timm.models.mvitv2 import cal_rel_pos_type, reshape_post_pool, reshape_pre_pool
from timm.models.nextvit import EfficientAttention as TimmNext
from timm.models.pvt_v2 import Attention as TimmPvt
from timm.models.twins import GlobalSubSampleAttn as TimmSubSample
from torch import Tensor

from ...nn.infsa import split_heads
from .layers import TimmLayer
from .windows import PADDING


class _Reduced(TimmLayer):
    """Layers in which all tokens ask a reduced map: spatial reduction."""

    q: Any
    kv: Any
    sr: Any
    norm: Any

    def _reduce(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """The tokens x (B, N, D) on a map of this size, reduced by the layer's convolution: (B, fewer, D)."""
        if self.sr is None:
            return x
        pool = getattr(self, "pool", None)
        image = x.mT.unflatten(-1, tuple(size))
        return self.norm(self.sr(image if pool is None else pool(image)).flatten(2).mT)

    def _ask(self, x: Tensor, reduced: Tensor) -> Tensor:
        """Attend from the tokens to the reduced ones."""
        k, v = self.kv(reduced).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        z = self._mix(split_heads(self.q(x), self.num_heads), k, v)
        return self.proj_drop(self.proj(z))


class PvtAttention(_Reduced, TimmPvt):
    """The attention of PVT v2 as InfSA: all tokens ask keys and values of a reduced map."""

    original = TimmPvt
    act: Any

    def forward(self, x: Tensor, feat_size: list[int]) -> Tensor:
        """Attend: x (B, N, D) on a map of this size -> (B, N, D)."""
        reduced = self._reduce(x, feat_size)
        return self._ask(x, reduced if self.act is None else self.act(reduced))


class SubSampleAttention(_Reduced, TimmSubSample):
    """The global attention of Twins as InfSA: all tokens ask keys and values of a reduced map."""

    original = TimmSubSample

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Attend: x (B, N, D) on a map of this size -> (B, N, D)."""
        return self._ask(x, self._reduce(x, size))


class NextAttention(TimmLayer, TimmNext):
    """The attention of Next-ViT as InfSA: all tokens ask averages of neighbouring ones."""

    original = TimmNext
    q: Any
    k: Any
    v: Any
    sr: Any
    norm: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        reduced = x if self.sr is None else self.norm(self.sr(x.mT)).mT
        parts = ((self.q, x), (self.k, reduced), (self.v, reduced))
        q, k, v = (split_heads(part(tokens), self.num_heads) for part, tokens in parts)
        return self.proj_drop(self.proj(self._mix(q, k, v)))


class HieraAttention(TimmLayer, TimmHiera):
    """The attention of Hiera as InfSA: each mask unit is a token graph of its own; queries may be pooled."""

    original = TimmHiera
    heads: int
    q_stride: int
    window_size: int

    @property
    def num_heads(self) -> int:  # type: ignore[override]
        """The heads, by the name that other layers give their number."""
        return self.heads

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N / q_stride, D')."""
        units = x.shape[1] // (self.q_stride * self.window_size) if self.use_mask_unit_attn else 1
        y = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unflatten(1, (-1, units))  # (B, n, units, 3, H, d)
        q, k, v = y.permute(3, 0, 2, 4, 1, 5).flatten(1, 2).unbind()  # (B · units, H, n, d)
        if self.q_stride > 1:
            q = q.unflatten(2, (self.q_stride, -1)).amax(2)
        z = self._mix(q, k, v).unflatten(0, (-1, units))
        return self.proj(z.transpose(1, 2).flatten(1, 2))


class HieraDetAttention(TimmLayer, TimmHieraDet):
    """The attention of SAM 2's Hiera as InfSA, on maps or windows of them; queries may be pooled."""

    original = TimmHieraDet
    lost = (PADDING,)
    q_pool: Any

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, h, w, D) -> (B, h', w', D')."""
        q, k, v = self.qkv(x).chunk(3, -1)  # (B, h, w, D') each
        if self.q_pool is not None:
            q = self.q_pool(q.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        z = self._mix(*(split_heads(y.flatten(1, 2), self.num_heads) for y in (q, k, v)))
        return self.proj(z.unflatten(1, q.shape[1:3]))


class MvitAttention(TimmLayer, TimmMvit):
    """The pooling attention of MViT v2 as InfSA; relative positions are added to the scores before φ.

    What the layer adds after attention, its pooled queries, stays.
    """

    original = TimmMvit
    has_cls_token: bool

    def forward(self, x: Tensor, feat_size: list[int]) -> tuple[Tensor, list[int]]:
        """Attend: x (B, N, D) on a map of this size -> (B, N', D') and the size of the pooled map."""
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        (q, q_size), (k, k_size), (v, _) = (
            self._pool(y, feat_size, getattr(self, f"pool_{name}"), getattr(self, f"norm_{name}"))
            for name, y in zip("qkv", qkv, strict=True)
        )
        bias = None
        if self.rel_pos_type == "spatial":
            blank = q.new_zeros(*q.shape[:3], k.shape[2])
            bias = cal_rel_pos_type(blank, q, self.has_cls_token, q_size, k_size, self.rel_pos_h, self.rel_pos_w)
        z = self._mix(self._scaled(q).type_as(v), k.type_as(v), v, bias)
        if self.residual_pooling:
            z = z + q.transpose(1, 2).flatten(2)
        return self.proj(z), q_size

    def _pool(self, x: Tensor, size: list[int], pool: Any, norm: Any) -> tuple[Tensor, list[int]]:
        """Pool x (B, H, N, d) on a map of this size, the class token aside; the pooled tokens and their map's size."""
        if pool is not None:
            image, token = reshape_pre_pool(x, size, self.has_cls_token)
            x, size = reshape_post_pool(pool(image), self.num_heads, token)
        return (x if norm is None else norm(x)), size


LAYERS: tuple[type[TimmLayer], ...] = (
    PvtAttention,
    SubSampleAttention,
    NextAttention,
    HieraAttention,
    HieraDetAttention,
    MvitAttention,
)
