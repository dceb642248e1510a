"""One call of an attention function, in the terms of our operators.

Queries arrive as (B, H, Nq, d), keys and values as (B, Hk, Nk, d).
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

try:  # transformers has no public way to ask
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = None

from ...ops import pure_attention, pure_weights
from ...ops.dtypes import as_autocast
from ..settings import Settings, Variant
from .classes import Role, Traits
from .layers import name_of, role_of, traits_of
from .masks import four_dimensions

FOREIGN = ("softcap", "s_aux", "position_bias", "head_mask", "cache")  # what other models put into a call

PLACES = ("scaling", "dropout")  # of what follows the mask


@dataclass(frozen=True)
class Call:
    """What a layer asks for.

    Attributes:
        name: the layer's, for errors.
        settings, role: what the layer became, and what it does in this call.
        q, k, v: (B, H, N, d) each, of one type, with the scale of the layer in the queries.
        mask: four dimensions, boolean or added to the scores.
        bias: added to the scores beside the mask.
        gamma, dropout: γ, and the rate of dropout on Â.
        with_weights: whether Â, or a, is wanted too.
        options: the rest of the call: the links of a converted layer among it.
    """

    name: str
    settings: Settings
    role: Role
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    bias: Tensor | None
    gamma: float | Tensor
    dropout: float
    with_weights: bool
    options: dict[str, Any]

    @property
    def cache(self) -> Any:
        """The layer of the cache that the call continues, None without one."""
        return self.options.get("infsa_cache")

    def pure(self, **masks: Any) -> tuple[Tensor, Tensor | None]:
        """Pure InfSA, (B, H, Nq, d), and Â on request: dense, without γ and without dropout."""
        options = {**self.settings.formula, **masks}
        given: dict[str, Any] = {"gamma": self.gamma, "dropout_p": self.dropout, "impl": self.settings.impl}
        weights = pure_weights(self.q, self.k, **options) if self.with_weights else None
        return pure_attention(self.q, self.k, self.v, **given, **options), weights


def read_call(
    variant: Variant,
    module: Any,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Any,
    more: tuple[Any, ...],
    options: dict[str, Any],
) -> Call:
    """A call of a layer, with what came by its place and by its name; what InfSA cannot keep in it is refused."""
    options = dict(zip(PLACES, more, strict=False)) | options
    name, settings = name_of(module), settings_of(module, variant)
    traits, decay = traits_of(module) or Traits(), getattr(module, "decay", None)
    role = role_of(module, options.pop("is_causal", None))
    if variant == "pure" and traits.shift and "infsa_shift" not in options:
        raise ValueError(f"{name}: the mask of a window shift is part of its bias: use infsa.convert(model)")
    bias = options.pop("position_bias", None) if variant == "pure" and traits.bias_beside else None
    for option in FOREIGN:
        if options.get(option) is not None:
            raise ValueError(f"{name}: InfSA cannot keep {option} in an attention call")
    q, k, v = one_type(*tensors)
    return Call(
        name,
        settings,
        role,
        _scaled(q, options.pop("scaling", None)),
        _shared(k, q),
        _shared(v, q),
        four_dimensions(mask, name),
        bias,
        settings.gamma if decay is None else decay(),
        options.pop("dropout", 0.0),
        bool(options.pop("output_attentions", None) or weights_are_collected()),
        options,
    )


def one_type(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three in one type: that of autocast where it is on, as torch's own attention has it, else that of the values.

    Rotary positions promote queries and keys alone, and a cache may hold keys of another type.
    """
    query, key, value = as_autocast(query, key, value)
    return query.to(value.dtype), key.to(value.dtype), value


def weights_are_collected() -> bool:
    """Whether the model around a call collects the weights of its layers: not all hand ``output_attentions`` down."""
    collected = _active_collector.get() if _active_collector is not None else None
    return collected is not None and any("attentions" in key for key in collected)


def settings_of(module: nn.Module, variant: Variant) -> Settings:
    """The settings of a layer: those it was converted with, those its configuration was saved with, or the defaults."""
    settings = getattr(module, "infsa_settings", None)
    if settings is None:
        saved = getattr(module.config, "infsa", None) or {"layers": {"": {"variant": variant}}, "partial": False}
        ways = {tuple(fields.items()) for fields in saved["layers"].values()}
        if saved["partial"] or len(ways) > 1 or ("learn_gamma", True) in min(ways):
            raise ValueError(
                f"{name_of(module)}: saved with layers converted separately or with learned γ: use load_converted"
            )
        settings = _settings(min(ways))
    if settings.variant != variant:
        raise ValueError(f"{name_of(module)}: converted as {settings.variant!r}, called as {variant!r}")
    return settings


@functools.cache
def _settings(items: tuple[tuple[str, Any], ...]) -> Settings:
    return Settings.saved(dict(items))


def _scaled(query: Tensor, scaling: float | None) -> Tensor:
    """Queries to which the operator's own 1/√d gives the scale that the layer asks for."""
    width = query.shape[-1]
    return query if scaling is None or scaling == width**-0.5 else query * (scaling * math.sqrt(width))


def _shared(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values that groups of query heads share, one copy per head."""
    groups = query.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, 1)
