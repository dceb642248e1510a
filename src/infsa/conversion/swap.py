"""How a layer becomes InfSA in place: its class changes, its parameters stay."""

from typing import Any

from torch import Tensor, nn

from ..nn import Decay
from ..nn.infsa import merge_heads
from ..ops import linear_attention, pure_attention
from .masks import key_mask_only, padding_of, require_mutual
from .plan import LayerPlan
from .settings import Settings

SHARED_NORM = (
    "masks other than padding and causal ones limit who attends to whom, but not the norm, which all share; those "
    "under which a token is seen by one that it may not see are refused"
)
ONE_NORM = "parts that a window shift brings together do not attend to each other, but share the norm of their window"


class Swapped(nn.Module):
    """What converted layers share; a subclass also inherits the class it takes the place of, its ``original``."""

    original: type[nn.Module]
    infsa_layer: LayerPlan
    infsa_settings: Settings
    decay: Decay
    num_heads: int

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Self-attention by InfSA on q, k, v (B, H, N, d), joined: (B, N, H·d).

        ``attn_mask`` as in torch's scaled dot-product attention. Tokens that it hides from every query are padding.
        """
        if self.infsa_settings.variant == "linear":
            chunk = self.infsa_settings.chunk_size if is_causal else None
            mask = self.token_mask(q, attn_mask, is_causal)
            return self.linear(q, k, v, key_mask=mask, causal="chunk" if is_causal else None, chunk_size=chunk)
        causal = is_causal or ("auto" if attn_mask is not None else False)
        padding = padding_of(attn_mask, q.shape[0], q.shape[2])
        if not is_causal and self.infsa_settings.norm != "row":
            require_mutual(attn_mask, padding, self.infsa_layer.name or type(self).__name__)
        return self.pure(q, k, v, attn_mask=attn_mask, key_mask=padding, is_causal=causal, dropout=dropout)

    def pure(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0, **masks: Any) -> Tensor:
        """Pure InfSA with this layer's settings, joined: (B, N, H·d). More heads than γ has are taken in its rounds."""
        gamma = self.decay()
        if isinstance(gamma, Tensor):
            gamma = gamma.repeat(q.shape[1] // self.num_heads)
        settings = self.infsa_settings
        z = pure_attention(
            q,
            k,
            v,
            gamma=gamma,
            activation=settings.activation,
            norm="row" if settings.norm == "row" else "frobenius",
            eps=settings.eps,
            dropout_p=dropout if self.training else 0.0,
            impl=settings.impl,
            **masks,
        )
        return merge_heads(z)

    def linear(self, q: Tensor, k: Tensor, v: Tensor, **masks: Any) -> Tensor:
        """Linear-InfSA with this layer's settings, joined: (B, N, H·d)."""
        settings = self.infsa_settings
        z = linear_attention(
            q,
            k,
            v,
            gamma=self.decay(),
            activation=settings.activation,
            eps=settings.eps,
            impl=settings.impl,
            **masks,
        )
        return merge_heads(z).expand(-1, q.shape[2], -1)

    def token_mask(self, tokens: Tensor, attn_mask: Tensor | None, is_causal: bool = False) -> Tensor | None:
        """The padding of a call as Linear-InfSA takes it, for tokens (B, ..., N, d); refuses any other mask."""
        name = self.infsa_layer.name or type(self).__name__
        if is_causal and self.infsa_settings.chunk_size is None:
            raise ValueError(f"{name}: Linear-InfSA is causal by chunks only: convert with chunk_size, got None")
        return key_mask_only(attn_mask, tokens.shape[0], tokens.shape[-2], name)


def swap_class(module: Any, new: type[Swapped], heads: int, settings: Settings) -> None:
    """Turn a module into its InfSA class and give it a decay."""
    module.decay = new_decay(module, heads, settings)
    module.__class__ = new


def new_decay(module: nn.Module, heads: int, settings: Settings) -> Decay:
    """The decay of a layer, where its parameters are and of their type."""
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    place = {} if like is None else {"device": like.device, "dtype": like.dtype}
    return Decay(heads, settings.gamma, settings.learn_gamma, **place).train(module.training)  # type: ignore[arg-type]


def restore_class(module: Any) -> None:
    """Turn a converted module back into what it was."""
    del module.decay
    module.__class__ = module.original
