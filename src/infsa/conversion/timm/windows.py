"""timm's window attention as InfSA: every window is a token graph of its own, with its own norm."""

from timm.models import davit, gcvit, nest, swin_transformer, swin_transformer_v2, swin_transformer_v2_cr, twins
from torch import Tensor
from torch.nn import functional as F

from ..windows import ONE_NORM, attend_in_windows, continuous_bias, cosines, from_windows, to_windows
from .base import PADDING, PlainLayer, TimmLayer


class _Shifted(TimmLayer):
    """The windows of Swin and its relatives; parts that a shift brought together do not see each other."""

    masks = "window shift"
    lost = (ONE_NORM, PADDING)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape; ``mask`` is negative between such parts."""
        seen = None if mask is None else mask == 0
        q, k, v = self._projected(x)
        return self._output(attend_in_windows(self, (self._scaled(q), k, v), self._pairs(), seen, self._dropout()))

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v, with cosine scores where the layer has a scale for them."""
        if not hasattr(self, "logit_scale"):
            return self._fused(x)
        return cosines(self._fused(x), self.logit_scale.view(-1, 1, 1))

    def _pairs(self) -> Tensor:
        """The bias of each pair of tokens, (1, H, N, N)."""
        raise NotImplementedError


class WindowAttention(_Shifted, swin_transformer.WindowAttention):
    """Swin's window attention as Pure InfSA."""

    def _pairs(self) -> Tensor:
        return self._get_rel_pos_bias()


class WindowAttentionV2(_Shifted, swin_transformer_v2.WindowAttention):
    """Swin V2's window attention as Pure InfSA: cosine scores, scaled and biased as in the original, then φ."""

    def _pairs(self) -> Tensor:
        tables = (self.relative_coords_table, self.relative_position_index)
        return continuous_bias(self.cpb_mlp, *tables, self.num_heads)


class WindowAttentionCr(_Shifted, swin_transformer_v2_cr.WindowMultiHeadAttention):
    """The window attention of timm's other Swin V2 (``swinv2_cr``) as Pure InfSA: cosine scores, biases of an MLP."""

    def _pairs(self) -> Tensor:
        return self._relative_positional_encodings()


class DavitWindow(PlainLayer, davit.WindowAttention):
    """The window attention of DaViT as InfSA; its channel attention is another layer."""

    lost = (PADDING,)


class NestAttention(TimmLayer, nest.Attention):
    """The block attention of NesT as InfSA."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend inside blocks: x (B, blocks, N, D) -> the same shape."""
        z = self._mix(*self._fused(x.flatten(0, 1)))
        z = z.unflatten(-1, (self.num_heads, -1)).mT.flatten(-2)  # timm joins heads with the channel first
        return self._output(z.unflatten(0, x.shape[:2]))


class TwinsWindow(TimmLayer, twins.LocallyGroupedAttn):
    """The locally grouped attention of Twins-SVT as InfSA."""

    lost = (PADDING,)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Attend inside windows: x (B, N, D) on a map of this size -> (B, N, D)."""
        (height, width), sides = size, (self.ws, self.ws)
        x = F.pad(x.unflatten(1, (height, width)), (0, 0, 0, -width % self.ws, 0, -height % self.ws))
        z = self._mix(*self._fused(to_windows(x, sides)))
        return self._output(from_windows(z, sides, x.shape[1:3])[:, :height, :width].flatten(1, 2))


class GlobalWindow(TimmLayer, gcvit.WindowAttentionGlobal):
    """The window attention of GC ViT as Pure InfSA; its global queries, shared by all windows, stay."""

    def forward(self, x: Tensor, q_global: Tensor | None = None) -> Tensor:
        """Attend inside windows: x (windows · B, N, D) -> the same shape."""
        if self.use_global and q_global is not None:
            k, v = self._parts(self.qkv(x), 2)
            q = q_global.repeat(x.shape[0] // q_global.shape[0], 1, 1, 1).reshape(*x.shape[:2], self.num_heads, -1)
            q = q.transpose(1, 2)
        else:
            q, k, v = self._fused(x)
        return self._output(self._mix(q, k, v, bias=self.rel_pos.get_bias()))
