"""The adapters, one per foreign library, and what they must offer."""

import importlib
import re
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from .plan import LayerPlan
    from .settings import Settings

# library whose import makes the adapter worth asking -> module of this package that holds FAMILY
ADAPTERS = {"torch": "torch_nn", "torchvision": "torchvision", "timm": "timm", "transformers": "huggingface"}


class Family(ABC):
    """What one library's attention layers are, and how they change.

    Layers change in place: the module object, its parameters and their names stay, so that optimisers, adapters,
    hooks and checkpoints go on working.

    Example:
        >>> [family.name for family in families()]  # the libraries imported so far
        ['torch', 'timm']
    """

    name: str

    @abstractmethod
    def recognise(self, name: str, module: nn.Module, settings: "Settings", model: nn.Module) -> "LayerPlan | None":
        """The plan for an attention layer of this library (it may be a refusal); None for any other module."""

    @abstractmethod
    def convert(self, module: nn.Module, layer: "LayerPlan", settings: "Settings") -> None:
        """Change the layer in place."""

    @abstractmethod
    def revert(self, module: nn.Module, layer: "LayerPlan", settings: "Settings") -> None:
        """Undo :meth:`convert`."""

    def prepare(self, model: nn.Module) -> None:  # noqa: B027 (optional)
        """Make a model ready to be copied; it may only drop what the model makes again by itself."""

    def changed(self, layer: "LayerPlan", settings: "Settings") -> tuple[str, ...]:
        """Names, inside the layer, of tensors whose values conversion changes (by surgery); usually none."""
        return ()

    def finish(self, model: nn.Module, layers: "list[LayerPlan]", settings: "Settings") -> None:  # noqa: B027 (optional)
        """Change what belongs to the whole model, once, after all layers were converted; ``layers`` are its own."""

    def undo(self, model: nn.Module, layers: "list[LayerPlan]") -> None:  # noqa: B027 (optional)
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
    raise ValueError(f"no adapter is named {name!r}; have {[family.name for family in families()]}")


_NAME = re.compile(r"attention|attn", re.IGNORECASE)
_PARTS = frozenset(
    ["qkv", "q_proj", "query", "to_q", "to_qkv", "in_proj_weight", "c_attn", "Wqkv", "query_key_value", "attn_drop"]
)


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module that no adapter knows has the name or the parts of an attention layer."""
    return bool(_NAME.search(type(module).__name__)) or has_parts(module)


def has_parts(module: nn.Module) -> bool:
    """Whether a module itself, not one inside it, has the projections of an attention layer."""
    return not _PARTS.isdisjoint({*dict(module.named_children()), *dict(module.named_parameters(recurse=False))})
