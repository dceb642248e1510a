"""What will happen to each attention layer of a model, before anything happens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn

from .detect import is_gate, signs_in_code, signs_in_names
from .families import Family, families, has_parts, looks_like_attention
from .settings import Settings

Action = Literal["convert", "keep", "refuse", "done"]
Patterns = str | Sequence[str] | None


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
        """The same layer, refused: it loses nothing."""
        return replace(self, action="refuse", reason=reason, lost=())


@dataclass(frozen=True)
class ConversionPlan:
    """Every attention layer of a model and what :func:`infsa.convert` will do to it; ``print`` shows a table.

    Example:
        >>> print(infsa.plan_conversion(timm.create_model("deit_tiny_patch16_224"), "pure"))
    """

    settings: Settings
    layers: tuple[LayerPlan, ...]

    def __iter__(self) -> Iterator[LayerPlan]:
        return iter(self.layers)

    def chosen(self, action: Action = "convert") -> list[LayerPlan]:
        """The layers with one action."""
        return [layer for layer in self.layers if layer.action == action]

    def warning(self) -> str | None:
        """One line that names what looks like attention and stays as it is; None if nothing does."""
        left = _grouped((f"({layer.kind}): {layer.reason}", layer) for layer in self.layers if layer.left)
        named = "; ".join(f"{names} {reason}" for reason, names in left.items())
        return f"not converted: {named}; exclude such layers to keep them without this warning" if named else None

    def check(self) -> None:
        """Raise unless the plan can be executed: no layer refused, at least one to convert."""
        refused = _grouped((f"({layer.kind}): {layer.reason}", layer) for layer in self.chosen("refuse"))
        if refused:
            named = "; ".join(f"{names} {reason}" for reason, names in refused.items())
            raise ValueError(f"cannot convert {named}; exclude such layers to keep them as they are")
        if not self.chosen():
            found = _grouped((f"({layer.action}: {layer.reason})", layer) for layer in self.layers)
            named = "; ".join(f"{names} {reason}" for reason, names in found.items())
            raise ValueError(f"nothing to convert: the attention layers found are {named or 'none'}")

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {"settings": self.settings.as_dict(), "layers": [layer.as_dict() for layer in self.layers]}

    def rows(self) -> list[dict[str, str]]:
        """The table, one row of text per layer."""
        return [_row(layer, self.settings) for layer in self.layers]

    def notes(self) -> list[str]:
        """Why layers are kept or refused and what is lost, each said once with the layers it holds for."""
        said = _grouped(
            (note, layer)
            for layer in self.layers
            for note in (*([f"{layer.action}: {layer.reason}"] if layer.reason else []), *layer.lost)
        )
        return [f"{names}: {note}" for note, names in said.items()]

    def __str__(self) -> str:
        rows = self.rows()
        if not rows:
            return "no attention layers"
        widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in rows[0]}
        lines = [dict(zip(widths, widths, strict=True)), *rows]
        table = ["  ".join(line[column].ljust(width) for column, width in widths.items()).rstrip() for line in lines]
        return "\n".join([*table, *self.notes()])


def _grouped(notes: Iterable[tuple[str, LayerPlan]]) -> dict[str, str]:
    """Each note once, with the layers it holds for."""
    said: dict[str, list[str]] = {}
    for note, layer in notes:
        said.setdefault(note, []).append(layer.name or "the model")
    return {note: _names(names) for note, names in said.items()}


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]}, ..., {names[-1]} ({len(names)} layers)"


def _row(layer: LayerPlan, settings: Settings) -> dict[str, str]:
    grouped = layer.key_heads not in (0, layer.heads)
    how = settings.level if settings.variant == "linear" else f"{layer.norm} norm"
    becomes = f"{settings.variant} ({how})" if layer.action == "convert" else layer.action
    return {
        "layer": layer.name or "(the model)",
        "class": layer.kind.rsplit(".", 1)[-1],
        "becomes": becomes,
        "heads": f"{layer.heads}/{layer.key_heads}" if grouped else str(layer.heads or "?"),
        "width": f"{layer.width}/{layer.head_width}" if layer.width else "?",
        "causal": layer.causal,
        "masks": layer.masks,
        "rotary": "yes" if layer.rotary else "no",
        "qk-norm": "yes" if layer.qk_norm else "no",
        "biases": layer.biases,
    }


def kind_of(module: nn.Module) -> str:
    """The full name of a module's class."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def plan_conversion(
    model: nn.Module,
    variant: Literal["pure", "linear"] = "pure",
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    **settings: Any,
) -> ConversionPlan:
    """Find every attention layer of a model and say what :func:`infsa.convert` would do to it; change nothing.

    Args:
        model: any module; on any device (meta too), in any type, compiled or with adapters.
        variant: ``"pure"`` or ``"linear"``.
        include: patterns of layer names (``"blocks.*.attn"``); without it, every layer.
        exclude: patterns of layer names to keep as they are.
        **settings: ``norm``, ``pool_queries``, ``gamma``, ``learn_gamma``, ``activation``, ``level``,
            ``chunk_size``, ``eps``, ``impl``; see :class:`infsa.conversion.Settings`.

    Example:
        >>> model = torchvision.models.vit_b_16()
        >>> print(infsa.plan_conversion(model, "linear", exclude="encoder.layers.encoder_layer_0.*"))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    wanted = Settings(variant, **settings)
    layers = [*_find(model, wanted)]
    include, exclude = _patterns(include), _patterns(exclude)
    for pattern in (*(include or ()), *(exclude or ())):
        if not any(fnmatchcase(layer.name, pattern) for layer in layers):
            names = ", ".join(layer.name or "''" for layer in layers) or "none"
            raise ValueError(f"the pattern {pattern!r} matches no attention layer; the layers are {names}")
    return ConversionPlan(wanted, tuple(_select(layer, include, exclude) for layer in layers))


def _patterns(patterns: Patterns) -> tuple[str, ...] | None:
    if patterns is None:
        return None
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _select(layer: LayerPlan, include: Iterable[str] | None, exclude: Iterable[str] | None) -> LayerPlan:
    """Keep a layer that the patterns leave out."""
    if layer.action == "done":
        return layer
    for pattern in exclude or ():
        if fnmatchcase(layer.name, pattern):
            return replace(layer, action="keep", reason=f"excluded by {pattern!r}", lost=(), left=False)
    if include is not None and not any(fnmatchcase(layer.name, pattern) for pattern in include):
        return replace(layer, action="keep", reason="not included", lost=(), left=False)
    return layer


def _find(model: nn.Module, settings: Settings) -> list[LayerPlan]:
    """Every attention layer, outermost first, in the order of the model; unknown ones as refused."""
    adapters = families()
    known: dict[str, LayerPlan] = {}
    unknown: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if any(_inside(name, layer) for layer in known):
            continue
        layer = _recognise(adapters, name, module, settings, model)
        if layer is not None:
            known[name] = layer
        elif looks_like_attention(module):
            unknown[name] = module
    for name, module in unknown.items():
        if has_parts(module) or not any(_inside(other, name) for other in (*known, *unknown) if other != name):
            known[name] = _unknown(name, module)
    known |= _guessed(model, known)
    order = {name: place for place, (name, _) in enumerate(model.named_modules())}
    return sorted(known.values(), key=lambda layer: order[layer.name])


def _unknown(name: str, module: nn.Module) -> LayerPlan:
    """The plan for a layer with the name or the parts of attention: refused, unless it is a gate."""
    if not has_parts(module) and is_gate(module):
        return LayerPlan(
            name, kind_of(module), "", "keep", "it gates by a sigmoid; there is no attention between tokens"
        )
    return LayerPlan(name, kind_of(module), "", "refuse", "no adapter knows this attention class")


def _guessed(model: nn.Module, known: dict[str, LayerPlan]) -> dict[str, LayerPlan]:
    """What looks like attention by its projections or its code alone: kept, and named.

    Code that computes attention counts wherever it is. Projections do not if the attention they serve is inside the
    module and named already.
    """
    guesses: dict[str, LayerPlan] = {}
    attention = [name for name, layer in known.items() if layer.action != "keep"]
    served: list[str] = []  # modules found by their projections; what computes for them lies inside
    for name, module in model.named_modules():
        if any(_inside(name, layer) for layer in (*known, *served)):
            continue
        code, projections = signs_in_code(module), signs_in_names(module)
        if not code and (not projections or any(_inside(layer, name) for layer in attention)):
            continue
        reason = f"it looks like attention that no adapter knows ({code or projections})"
        guesses[name] = LayerPlan(name, kind_of(module), "", "keep", reason, left=True)
        if not code:
            served.append(name)
    return guesses


def _inside(name: str, parent: str) -> bool:
    return not parent or name == parent or name.startswith(f"{parent}.")


def _recognise(
    adapters: list[Family], name: str, module: nn.Module, settings: Settings, model: nn.Module
) -> LayerPlan | None:
    done = getattr(module, "infsa_layer", None)
    if isinstance(done, LayerPlan):
        variant = module.infsa_settings.variant  # type: ignore[union-attr]
        return replace(done, name=name, action="done", reason=f"{variant} InfSA already; infsa.revert undoes it")
    for family in adapters:
        layer = family.recognise(name, module, settings, model)
        if layer is not None:
            return layer if settings.norm == "auto" else replace(layer, norm=settings.norm)
    return None
