"""Execute a plan on a model, verify the weights, and undo it."""

import copy
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from .families import Family, LayerPlan, families, family_named
from .plan import Patterns, plan_conversion
from .settings import Settings
from .surgery import can_unfold, fold_rows, unfold_rows

Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model,
    variant: Literal["pure", "linear"] = "pure",
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    inplace: bool = False,
    **settings: Any,
) -> Model:
    """Replace the attention of a model by InfSA; every weight stays, under its name.

    The layers that change are those of :func:`infsa.plan_conversion`. If one of them cannot be converted exactly as
    planned, nothing changes and the error names it; ``exclude`` keeps it as it is. Layers that are InfSA already
    are kept: :func:`infsa.revert` them first to use other settings. What only looks like attention is kept too, and a
    warning names it.

    Args:
        model: any module, also a single attention layer.
        variant: ``"pure"`` or ``"linear"``.
        include: patterns of layer names; without it, every layer.
        exclude: patterns of layer names to keep as they are.
        inplace: change the model itself; otherwise a deep copy is changed.
        **settings: see :func:`infsa.plan_conversion`.

    Returns:
        The converted model, of the same type.

    Example:
        >>> import timm
        >>> model = infsa.convert(timm.create_model("deit_tiny_patch16_224"), "pure")
        >>> model(torch.randn(1, 3, 224, 224)).shape
        torch.Size([1, 1000])
    """
    plan = plan_conversion(model, variant, include=include, exclude=exclude, **settings)
    plan.check()
    if warning := plan.warning():
        warnings.warn(warning, stacklevel=3)
    layers = plan.chosen()
    for family in families():
        family.prepare(model)
    changed = _changed(layers) if plan.settings.level == "surgery" else set()
    before = {name: (tensor, tensor._version) for name, tensor in _tensors(model)}
    snapshot = _Snapshot(model, [before[name][0] for name in changed & before.keys()]) if inplace else None
    target = model if inplace else copy.deepcopy(model)
    try:
        for layer in layers:
            _convert_layer(target, layer, plan.settings)
        for family in families():
            family.finish(target, _of(family, layers))
        _verify(before, target, changed)
    except BaseException:
        if snapshot is not None:
            snapshot.restore()
        raise
    return target


def revert(model: Model) -> Model:
    """Restore the original attention of a converted model, or of a part of one, in place.

    Weights keep the values they have now; only projections that surgery folded become what they were before it.

    Example:
        >>> layer = infsa.convert(torch.nn.MultiheadAttention(64, 4))
        >>> type(infsa.revert(layer))
        <class 'torch.nn.modules.activation.MultiheadAttention'>
    """
    layers = converted_layers(model)
    if not layers:
        raise ValueError(f"nothing to revert: no layer of this {type(model).__name__} was converted")
    for name, module in layers.items():
        if not can_unfold(module):
            raise ValueError(f"{name}: surgery replaced its projections, and the file it came from does not hold them")
    plans = [replace(vars(module)["infsa_layer"], name=name) for name, module in layers.items()]
    for family in families():
        family.undo(model, _of(family, plans))
    layer: Any
    for plan, layer in zip(plans, layers.values(), strict=True):
        family = family_named(plan.family)
        family.revert(layer)
        if layer.infsa_settings.level == "surgery":
            unfold_rows(layer, family.fused)
        del layer.infsa_layer, layer.infsa_settings
    return model


def convert_as_noted(model: nn.Module, layers: dict[str, dict[str, Any]]) -> nn.Module:
    """Convert layers in place, each with the settings that a file notes for it."""
    groups: dict[Settings, list[str]] = {}
    for name, fields in layers.items():
        groups.setdefault(Settings.saved(fields), []).append(name)
    for settings, names in groups.items():
        convert(model, include=names, inplace=True, **settings.as_dict())
    return model


def converted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that :func:`infsa.convert` changed, by name.

    Example:
        >>> list(converted_layers(infsa.convert(torch.nn.TransformerEncoderLayer(64, 4))))
        ['self_attn']
    """
    return {name: module for name, module in model.named_modules() if hasattr(module, "infsa_layer")}


def _convert_layer(model: nn.Module, layer: LayerPlan, settings: Settings) -> None:
    module: Any = model.get_submodule(layer.name)
    family = family_named(layer.family)
    if settings.variant == "pure":
        settings = replace(settings, norm=layer.norm)
    module.infsa_layer, module.infsa_settings = layer, settings
    if settings.level == "surgery":
        fold_rows(module, family.fused, layer.heads)
    family.convert(module, layer, settings)


def _of(family: Family, layers: list[LayerPlan]) -> list[LayerPlan]:
    return [layer for layer in layers if layer.family == family.name]


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _changed(layers: list[LayerPlan]) -> set[str]:
    """The tensors whose values surgery changes."""
    return {f"{layer.name}.{part}".lstrip(".") for layer in layers for part in family_named(layer.family).fused}


def _verify(before: dict[str, tuple[Tensor, int]], model: nn.Module, changed: set[str]) -> None:
    """Refuse a conversion that lost or changed a tensor other than those it said it would."""
    after = dict(_tensors(model))
    for name, (tensor, version) in before.items():
        if name not in after:
            raise RuntimeError(f"conversion lost {name!r}: please report this")
        if name not in changed and not _same(tensor, version, after[name]):
            raise RuntimeError(f"conversion changed {name!r}: please report this")


def _same(old: Tensor, version: int, new: Tensor) -> bool:
    if new is old:
        return new._version == version
    if new.shape != old.shape or new.dtype != old.dtype:
        return False
    return old.device.type == "meta" or torch.equal(_bits(old), _bits(new))


def _bits(x: Tensor) -> Tensor:
    """Plain numbers to compare, with NaN equal to itself."""
    return torch.nan_to_num(x.detach()) if x.is_floating_point() else x.detach()


class _Snapshot:
    """A model as it was: classes and attributes of its modules and configurations, values of some of its tensors.

    Tensors that are not named keep their values by themselves; they are held, not copied.
    """

    def __init__(self, model: nn.Module, tensors: Iterable[Tensor]) -> None:
        configs = (vars(module).get("config") for module in model.modules())
        holders = [*model.modules(), *(config for config in configs if hasattr(config, "__dict__"))]
        unique = {id(held): held for held in holders}.values()
        self._objects = [(held, held.__class__, dict(vars(held))) for held in unique]
        inner = (value for _, _, state in self._objects for value in state.values() if isinstance(value, dict))
        self._dictionaries = [(value, dict(value)) for value in inner]  # hooks keep a reference to theirs
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def restore(self) -> None:
        """Make the model what it was."""
        for dictionary, content in self._dictionaries:
            dictionary.clear()
            dictionary.update(content)
        for held, kind, state in self._objects:
            held.__class__ = kind
            vars(held).clear()
            vars(held).update(state)
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)
