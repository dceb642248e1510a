"""Execute a plan on a model, verify the weights, and undo it."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from .families import family_named
from .plan import LayerPlan, Patterns, plan_conversion
from .settings import Settings
from .surgery import can_unfold

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
    planned, nothing changes and the error names it; ``exclude`` keeps it as it is.

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
        >>> model = infsa.convert(timm.create_model("deit_tiny_patch16_224"), "pure")
        >>> model(torch.randn(1, 3, 224, 224)).shape
        torch.Size([1, 1000])
    """
    plan = plan_conversion(model, variant, include=include, exclude=exclude, **settings)
    plan.check()
    target = model if inplace else copy.deepcopy(model)
    before = {name: (tensor, tensor._version) for name, tensor in _tensors(model)}
    layers = plan.chosen()
    try:
        for layer in layers:
            _convert_layer(target, layer, plan.settings)
        for family, own in _by_family(layers).items():
            family_named(family).finish(target, own, plan.settings)
        _verify(before, target, layers, plan.settings)
    except Exception:
        with suppress(Exception):  # the first error is the one to show
            _undo(target, converted_layers(target))
        raise
    return target


def revert(model: Model) -> Model:
    """Give a converted model its own attention back, in place; weights keep the values they have now.

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
    _undo(model, layers)
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
    module.infsa_layer, module.infsa_settings = layer, settings
    family_named(layer.family).convert(module, layer, settings)


def _undo(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    plans = [_plan_of(module) for module in layers.values()]
    for family, own in _by_family(plans).items():
        family_named(family).undo(model, own)
    for module in layers.values():
        layer = _plan_of(module)
        family_named(layer.family).revert(module, layer, module.infsa_settings)  # type: ignore[arg-type]
        del module.infsa_layer, module.infsa_settings


def _plan_of(module: nn.Module) -> LayerPlan:
    return module.infsa_layer  # type: ignore[return-value]


def _by_family(layers: list[LayerPlan]) -> dict[str, list[LayerPlan]]:
    grouped: dict[str, list[LayerPlan]] = {}
    for layer in layers:
        grouped.setdefault(layer.family, []).append(layer)
    return grouped


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _verify(
    before: dict[str, tuple[Tensor, int]], model: nn.Module, layers: list[LayerPlan], settings: Settings
) -> None:
    """Refuse a conversion that lost or changed a tensor other than those it said it would."""
    after = dict(_tensors(model))
    allowed = {
        f"{layer.name}.{name}".lstrip(".")
        for layer in layers
        for name in family_named(layer.family).changed(layer, settings)
    }
    for name, (tensor, version) in before.items():
        if name not in after:
            raise RuntimeError(f"conversion lost {name!r}: please report this")
        if name not in allowed and not _same(tensor, version, after[name]):
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
