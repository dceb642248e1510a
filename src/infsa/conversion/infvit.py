"""A converted vision transformer of timm as an InfViT, so that it can be streamed, explained and served like one."""

import copy
from typing import Any

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from ..models import InfViT, describe_data
from ..models.adopt import SOFTMAX, data_facts, folded_weights, same_function, timm_arguments
from .convert import converted_layers
from .settings import Settings

NAMES = {  # the models under whose names the result is built; its arguments say the rest
    "infsa_linear": "infvit_linear_24l16h_patch16_224",
    "infsa_pure": "infvit_pure_24l16h_patch16_224",
    "softmax": SOFTMAX,
}
COMMON = ("gamma", "learn_gamma", "activation")  # of which an InfViT has one for all layers


def as_infvit(model: nn.Module) -> InfViT:
    """The :class:`InfViT` that computes what a converted, plain vision transformer of timm does.

    It takes images of any size and works with streaming, attention maps, export and `fast`. Layers that were not
    converted keep softmax. Weights are copied; dropout rates are not. Both models are compared on an image; a model
    with parts that an InfViT does not have is refused.

    Example:
        >>> import timm
        >>> model = infsa.convert(timm.create_model("deit_tiny_patch16_224"), "linear")
        >>> as_infvit(model)(torch.randn(1, 3, 448, 224)).shape
        torch.Size([1, 1000])
    """
    model = getattr(model, "_orig_mod", model)  # behind torch.compile
    kind = type(model).__name__
    if isinstance(model, InfViT):
        raise ValueError("the model is an InfViT already, got attention " + model.attention)
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"only a plain vision transformer of timm becomes an InfViT, got {kind}")
    plain = copy.deepcopy(model).eval().float().cpu()
    sizes = timm_arguments(plain, f"this {kind}")
    layers: dict[str, Any] = converted_layers(model)
    found = [layers.get(f"blocks.{index}.attn") for index in range(sizes["depth"])]
    if not any(found):
        raise ValueError(f"no layer of this {kind} was converted; infsa.convert does that")
    settings = [None if layer is None else layer.infsa_settings for layer in found]
    arguments, tied = _attention(settings)
    name = NAMES[next(name for name in NAMES if name in arguments["attention"])]
    weights = folded_weights(plain)
    for index, one in enumerate(settings):
        if one is not None and one.variant == "linear":
            _split(weights, f"blocks.{index}.attn.", keys=not tied, folded=one.level == "surgery")
    ours = same_function(f"this {kind}", plain, name, weights, sizes | arguments)
    like = next(model.parameters())
    describe_data(ours, **data_facts(getattr(model, "pretrained_cfg", None) or {}))
    return ours.to(like.device, like.dtype).train(model.training)


def _attention(settings: list[Settings | None]) -> tuple[dict[str, Any], bool]:
    """The arguments of an InfViT for the settings of every layer, and whether queries are keys in its Linear layers."""
    converted = [one for one in settings if one is not None]
    names = ["softmax" if one is None else f"infsa_{one.variant}" for one in settings]
    arguments: dict[str, Any] = {"attention": names}
    for field in (*COMMON, "impl"):
        values = {getattr(one, field) for one in converted}
        if len(values) > 1:
            raise ValueError(f"an InfViT has one {field} for all layers, got {sorted(values)}")
        arguments[field] = values.pop()
    impl = arguments.pop("impl")
    for field, usual in (("norm", ("auto", "frobenius")), ("eps", (1e-6,))):
        for one in converted:
            if getattr(one, field) not in usual:
                raise ValueError(f"an InfViT has {field}={usual[-1]!r}, got {getattr(one, field)!r}")
    tied = all(one.level == "surgery" for one in converted if one.variant == "linear")
    own: dict[str, dict[str, Any]] = {}
    for name in {*names} - {"softmax"}:
        own[name] = {} if impl == "auto" else {"impl": impl}
        own[name] |= {"tied": False} if name == "infsa_linear" and not tied else {}
    own = {name: options for name, options in own.items() if options}
    arguments["attention_options"] = (own if len({*names}) > 1 else own.get(names[0])) or None
    return arguments, tied


def _split(weights: dict[str, Tensor], layer: str, *, keys: bool, folded: bool) -> None:
    """Replace the fused projection of a layer by those of Linear-InfSA; after surgery the queries are its keys."""
    for part in ("weight", "bias"):
        if (fused := weights.pop(f"{layer}qkv.{part}", None)) is None:
            continue
        query, key, value = fused.chunk(3)
        weights |= {f"{layer}q.{part}": query, f"{layer}v.{part}": value}
        if keys:
            weights[f"{layer}k.{part}"] = query if folded else key
