"""The adapters, one per foreign library: what they say of a layer, and how they change it."""

import importlib
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn

from .settings import Settings
from .swap import restore_class, swap_class

# library whose import makes the adapter worth asking -> module of this package that holds FAMILY
ADAPTERS = {"torch": "torch_nn", "torchvision": "torchvision", "timm": "timm", "transformers": "huggingface"}

Action = Literal["convert", "keep", "refuse", "done"]


def kind_of(module: nn.Module) -> str:
    """The full name of a module's class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


@dataclass(frozen=True)
class LayerPlan:
    """One attention layer: what it is, what happens to it, and what cannot be preserved.

    Attributes:
        name: the module's name in the model, ``""`` for the model itself.
        kind: its class.
        family: the adapter that knows it; empty where none does.
        action: ``"convert"``; ``"keep"`` (left alone on request); ``"refuse"`` (conversion would be wrong);
            ``"done"`` (InfSA already).
        reason: why it is kept or refused.
        heads, key_heads: query heads, and key/value heads where queries share them.
        width, head_width: D and d.
        masks: the masks its calls can carry, in words.
        causal: ``"no"``, ``"yes"`` or ``"by call"``.
        rotary, qk_norm: whether queries and keys are rotated by position, normalised.
        biases: biases of projections and scores, in words.
        norm: the norm of Pure InfSA that it gets, ``"frobenius"`` or ``"row"``.
        lost: what cannot be preserved, and why, one sentence each.
        left: kept though nobody asked for it, because it only looks like attention; :func:`infsa.convert` warns.

    Example:
        >>> LayerPlan("blocks.0.attn", "timm.layers.attention.Attention", "timm", heads=3, width=192).action
        'convert'
    """

    name: str
    kind: str
    family: str
    action: Action = "convert"
    reason: str = ""
    heads: int = 0
    key_heads: int = 0
    width: int = 0
    head_width: int = 0
    masks: str = "none"
    causal: str = "no"
    rotary: bool = False
    qk_norm: bool = False
    biases: str = "none"
    norm: Literal["frobenius", "row"] = "frobenius"
    lost: tuple[str, ...] = ()
    left: bool = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        families()  # a converted model that is unpickled in a new process finds its adapter in place

    def as_dict(self) -> dict[str, Any]:
        """The row as plain values, for JSON."""
        return {**asdict(self), "lost": list(self.lost)}

    def refused(self, reason: str) -> "LayerPlan":
        """The same layer, refused if there is a reason: then it loses nothing."""
        return replace(self, action="refuse", reason=reason, lost=()) if reason else self


class Family(ABC):
    """What one library's attention layers are, and how they change.

    Layers change in place: the module object, its parameters and their names stay, so that optimisers, adapters,
    hooks and checkpoints keep working.
    """

    name: str
    fused: tuple[str, ...] = ()  # weight and bias that hold queries, keys and values, which surgery folds

    def layer(self, name: str, module: nn.Module, **facts: Any) -> LayerPlan:
        """The plan of a layer of this library; unless told, heads share the width and have their own keys."""
        heads, width = facts.get("heads", 0), facts.get("width", 0)
        usual = {"key_heads": heads, "head_width": width // heads if heads else 0}
        return LayerPlan(name, kind_of(module), self.name, **{**usual, **facts})

    @abstractmethod
    def recognise(self, name: str, module: nn.Module, settings: Settings, model: nn.Module) -> LayerPlan | None:
        """The plan for an attention layer of this library (it may be a refusal); None for any other module."""

    def convert(self, module: nn.Module, layer: LayerPlan, settings: Settings) -> None:
        """Change the layer in place."""
        swap_class(module, layer.heads, settings)

    def revert(self, module: nn.Module) -> None:
        """Undo :meth:`convert`."""
        restore_class(module)

    def prepare(self, model: nn.Module) -> None:  # noqa: B027 (optional)
        """Make a model ready to be copied; it may only drop what the model makes again by itself."""

    def finish(self, model: nn.Module, layers: list[LayerPlan]) -> None:  # noqa: B027 (optional)
        """Change what belongs to the whole model, once, after all layers were converted; ``layers`` are its own."""

    def undo(self, model: nn.Module, layers: list[LayerPlan]) -> None:  # noqa: B027 (optional)
        """Undo :meth:`finish`, once, before the layers are reverted."""


def families() -> list[Family]:
    """The adapters of the libraries that are imported: a model cannot come from any other."""
    present = [module for library, module in ADAPTERS.items() if library in sys.modules]
    return [importlib.import_module(f"{__package__}.{module}").FAMILY for module in present]


def family_named(name: str) -> Family:
    """The adapter with a name."""
    for family in families():
        if family.name == name:
            return family
    raise ValueError(f"unknown adapter {name!r}; known are {[family.name for family in families()]}")
