"""timm's attention whose queries or keys are pooled, as InfSA: the graph of an image joins Nq queries and Nk keys."""

from collections.abc import Sequence
from typing import Any

from timm.models import hiera, hieradet_sam2, mvitv2, nextvit, pvt_v2, twins
from timm.models.mvitv2 import cal_rel_pos_type, reshape_post_pool, reshape_pre_pool
from torch import Tensor

from .base import PADDING, TimmLayer, to_map, to_tokens


class _Reduced(TimmLayer):
    """Layers in which all tokens ask keys and values of a reduced map."""

    def _ask(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """Attend: x (B, N, D) on a map of this size -> (B, N, D)."""
        reduced = x
        if self.sr is not None:
            image, pool = to_map(x, tuple(size)), getattr(self, "pool", None)
            reduced = self.norm(to_tokens(self.sr(image if pool is None else pool(image))))
        if getattr(self, "act", None) is not None:
            reduced = self.act(reduced)
        return self._output(self._mix(*self._heads(self.q(x)), *self._parts(self.kv(reduced), 2)))


class SubSampleAttention(_Reduced, twins.GlobalSubSampleAttn):
    """The global attention of Twins as InfSA."""

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """Attend: x (B, N, D) on a map of this size -> (B, N, D)."""
        return self._ask(x, size)


class PvtAttention(_Reduced, pvt_v2.Attention):
    """The attention of PVT v2 as InfSA; it may have a pool before the reduction and an activation after it."""

    def forward(self, x: Tensor, feat_size: Sequence[int]) -> Tensor:
        """Attend: x (B, N, D) on a map of this size -> (B, N, D)."""
        return self._ask(x, feat_size)


class NextAttention(TimmLayer, nextvit.EfficientAttention):
    """The attention of Next-ViT as InfSA: all tokens ask averages of neighbouring ones."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N, D)."""
        reduced = x if self.sr is None else self.norm(self.sr(x.mT)).mT
        return self._output(self._mix(*self._heads(self.q(x), self.k(reduced), self.v(reduced))))


class HieraAttention(TimmLayer, hiera.MaskUnitAttention):
    """The attention of Hiera as InfSA: each mask unit is a token graph of its own; queries may be pooled."""

    @property
    def num_heads(self) -> int:  # type: ignore[override]
        """The heads, by the name that other layers give their number."""
        return self.heads

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, N, D) -> (B, N / q_stride, D')."""
        units = x.shape[1] // (self.q_stride * self.window_size) if self.use_mask_unit_attn else 1
        y = self.qkv(x).unflatten(1, (-1, units)).transpose(1, 2).flatten(0, 1)
        q, k, v = self._parts(y)  # (B · units, H, n, d)
        if self.q_stride > 1:
            q = q.unflatten(2, (self.q_stride, -1)).amax(2)
        z = self._mix(q, k, v).unflatten(0, (-1, units))
        return self._output(z.transpose(1, 2).flatten(1, 2))


class HieraDetAttention(TimmLayer, hieradet_sam2.MultiScaleAttention):
    """The attention of SAM 2's Hiera as InfSA, on maps or windows of them; queries may be pooled."""

    lost = (PADDING,)

    def forward(self, x: Tensor) -> Tensor:
        """Attend: x (B, h, w, D) -> (B, h', w', D')."""
        q, k, v = self.qkv(x).chunk(3, -1)  # (B, h, w, D') each
        if self.q_pool is not None:
            q = self.q_pool(q.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        z = self._mix(*self._heads(*(y.flatten(1, 2) for y in (q, k, v))))
        return self._output(z.unflatten(1, q.shape[1:3]))


class MvitAttention(TimmLayer, mvitv2.MultiScaleAttention):
    """The pooling attention of MViT v2 as InfSA; relative positions are added to the scores before φ.

    What the layer adds after attention, its pooled queries, stays.
    """

    def forward(self, x: Tensor, feat_size: list[int]) -> tuple[Tensor, list[int]]:
        """Attend: x (B, N, D) on a map of this size -> (B, N', D') and the size of the pooled map."""
        (q, q_size), (k, k_size), (v, _) = (
            self._pool(y, feat_size, getattr(self, f"pool_{name}"), getattr(self, f"norm_{name}"))
            for name, y in zip("qkv", self._parts(self.qkv(x)), strict=True)
        )
        bias = None
        if self.rel_pos_type == "spatial":
            blank = q.new_zeros(*q.shape[:3], k.shape[2])
            bias = cal_rel_pos_type(blank, q, self.has_cls_token, q_size, k_size, self.rel_pos_h, self.rel_pos_w)
        z = self._mix(q, k, v, bias=bias)
        if self.residual_pooling:
            z = z + q.transpose(1, 2).flatten(2)
        return self._output(z), q_size

    def _pool(self, x: Tensor, size: list[int], pool: Any, norm: Any) -> tuple[Tensor, list[int]]:
        """Pool x (B, H, N, d) on a map of this size, the class token aside; the pooled tokens and their map's size."""
        if pool is not None:
            image, token = reshape_pre_pool(x, size, self.has_cls_token)
            x, size = reshape_post_pool(pool(image), self.num_heads, token)
        return (x if norm is None else norm(x)), size
