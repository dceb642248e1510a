"""The compared mechanisms by name."""

import inspect
from typing import Any, get_args

from .agent import AgentAttention
from .base import Attention
from .controls import EnergyPool, Fastformer, MeanPool
from .flatten import FLatten
from .infsa import LinearInfSAAttention, PureInfSAAttention
from .layout import Grid
from .linformer import Linformer
from .mlla import MLLACore
from .performer import Performer
from .soft import SOFT
from .softmax import SoftmaxAttention

ATTENTIONS: dict[str, type[Attention]] = {
    cls.name: cls
    for cls in (
        SoftmaxAttention,
        Linformer,
        Performer,
        SOFT,
        FLatten,
        AgentAttention,
        MLLACore,
        PureInfSAAttention,
        LinearInfSAAttention,
        MeanPool,
        EnergyPool,
        Fastformer,
    )
}


def attention_options(name: str) -> list[str]:
    """The options that a mechanism takes beside ``dim``, ``num_heads``, ``grid`` and ``num_prefix``."""
    *parameters, rest = inspect.signature(_mechanism(name)).parameters.values()
    named = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    (others,) = get_args(rest.annotation)  # of Unpack[...]
    return sorted((named | others.__optional_keys__) - {"grid", "num_prefix"})


def create_attention(
    name: str, dim: int, num_heads: int, *, grid: Grid, num_prefix: int = 1, **options: Any
) -> Attention:
    """Build a mechanism by name; see :class:`Attention` for the arguments, its class for the options.

    Example:
        >>> create_attention("linformer", 192, 3, grid=(14, 14), rank=64).name
        'linformer'
    """
    mechanism, known = _mechanism(name), attention_options(name)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{name} takes no option {unknown[0]!r}; it takes {known}")
    return mechanism(dim, num_heads, grid=grid, num_prefix=num_prefix, **options)


def _mechanism(name: str) -> type[Attention]:
    if name not in ATTENTIONS:
        raise ValueError(f"attention must be one of {sorted(ATTENTIONS)}, got {name!r}")
    return ATTENTIONS[name]
