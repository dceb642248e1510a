"""How a layer becomes InfSA in place: its class changes, its parameters stay."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..nn import Decay
from ..nn.infsa import merge_heads
from ..nn.masks import key_mask_only, padding_of, require_mutual
from ..ops import linear_attention, pure_attention
from .settings import Settings

if TYPE_CHECKING:
    from .families import LayerPlan

SHARED_NORM = (
    "tokens share one norm under every mask but padding and causal ones; a mask is refused if hidden tokens would leak "
    "through that norm"
)
NO_PAIRS = "Linear-InfSA scores no pairs of tokens, so a relative position bias would be dropped"

TARGETS: dict[type[nn.Module], type["Swapped"]] = {}  # class of a library -> the class that its layers become


class Swapped(nn.Module):
    """What converted layers share; the last base of a subclass is the class it takes the place of, its ``original``."""

    original: type[nn.Module]
    infsa_layer: "LayerPlan"
    infsa_settings: Settings
    decay: Decay
    num_heads: int

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # the parts of the original class

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        replaced: Any = cls.__bases__[-1]
        if not issubclass(replaced, Swapped):
            cls.original = replaced
            TARGETS[replaced] = cls

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool = False, dropout: float = 0.0
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
        gamma, settings = self.decay(), self.infsa_settings
        if isinstance(gamma, Tensor):
            gamma = gamma.repeat(q.shape[1] // self.num_heads)
        dropout_p = dropout if self.training else 0.0
        options = {**settings.formula, "impl": settings.impl, **masks}
        return merge_heads(pure_attention(q, k, v, gamma=gamma, dropout_p=dropout_p, **options))

    def linear(self, q: Tensor, k: Tensor, v: Tensor, **masks: Any) -> Tensor:
        """Linear-InfSA with this layer's settings, joined: (B, N, H·d)."""
        options = {**self.infsa_settings.formula, "impl": self.infsa_settings.impl, **masks}
        return merge_heads(linear_attention(q, k, v, gamma=self.decay(), **options)).expand(-1, q.shape[2], -1)

    def token_mask(self, tokens: Tensor, attn_mask: Tensor | None, is_causal: bool = False) -> Tensor | None:
        """The padding of a call as Linear-InfSA takes it, for tokens (B, ..., N, d); refuses any other mask."""
        name = self.infsa_layer.name or type(self).__name__
        if is_causal and self.infsa_settings.chunk_size is None:
            raise ValueError(f"{name}: Linear-InfSA is causal by chunks only: convert with chunk_size, got None")
        return key_mask_only(attn_mask, tokens.shape[0], tokens.shape[-2], name)


def swap_class(module: Any, heads: int, settings: Settings) -> None:
    """Turn a module into its InfSA class and give it a decay."""
    module.decay = new_decay(module, heads, settings)
    module.__class__ = TARGETS[type(module)]


def new_decay(module: nn.Module, heads: int, settings: Settings) -> Decay:
    """The decay of a layer, where its parameters are and of their type."""
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    place: dict[str, Any] = {} if like is None else {"device": like.device, "dtype": like.dtype}
    return Decay(heads, settings.gamma, settings.learn_gamma, **place).train(module.training)


def restore_class(module: Any) -> None:
    """Turn a converted module back into what it was."""
    del module.decay
    module.__class__ = module.original
