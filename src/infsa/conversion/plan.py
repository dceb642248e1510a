"""What will happen to each attention layer of a model, before anything happens."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import nn

from .detect import has_parts, is_gate, looks_like_attention, signs_in_code, signs_in_names
from .families import Action, LayerPlan, families, kind_of
from .settings import Settings

Patterns = str | Sequence[str] | None


@dataclass(frozen=True)
class ConversionPlan:
    """Every attention layer of a model and what :func:`infsa.convert` will do to it; ``print`` shows a table.

    Example:
        >>> plan = infsa.plan_conversion(torch.nn.TransformerEncoderLayer(64, 4), "pure")
        >>> [(layer.name, layer.action, layer.norm) for layer in plan]
        [('self_attn', 'convert', 'frobenius')]
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
        named = _named((f"({layer.kind}): {layer.reason}", layer) for layer in self.layers if layer.left)
        return f"not converted: {named}; exclude such layers to keep them without this warning" if named else None

    def check(self) -> None:
        """Raise unless the plan can be executed: no layer refused, at least one to convert."""
        if refused := _named((f"({layer.kind}): {layer.reason}", layer) for layer in self.chosen("refuse")):
            raise ValueError(f"cannot convert {refused}; exclude such layers to keep them as they are")
        if not self.chosen():
            found = _named((f"({layer.action}: {layer.reason})", layer) for layer in self.layers)
            raise ValueError(f"nothing to convert: the attention layers found are {found or 'none'}")

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {"settings": self.settings.as_dict(), "layers": [layer.as_dict() for layer in self.layers]}

    def rows(self) -> list[dict[str, str]]:
        """The table: a row of text for every layer, one for neighbours alike."""
        rows = []
        for facts, group in itertools.groupby(self.layers, lambda layer: _row(layer, self.settings)):
            rows.append({"layer": _together([layer.name or "(the model)" for layer in group]), **facts})
        return rows

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
    few = {note: ", ".join(names) for note, names in said.items() if len(names) < 4}
    return {note: few.get(note, f"{names[0]}, ..., {names[-1]} ({len(names)} layers)") for note, names in said.items()}


def _named(notes: Iterable[tuple[str, LayerPlan]]) -> str:
    return "; ".join(f"{names} {note}" for note, names in _grouped(notes).items())


def _together(names: Sequence[str]) -> str:
    """Layers in a row under one name, as in ``blocks.0-11.attn``."""
    first, last = names[0].split("."), names[-1].split(".")
    differ = [place for place, parts in enumerate(zip(first, last, strict=False)) if len(set(parts)) > 1]
    numbers = [parts[place] for parts in (first, last) for place in differ]
    in_order = len(first) == len(last) and len(numbers) == 2 and all(number.isdigit() for number in numbers)
    if in_order and int(numbers[1]) - int(numbers[0]) == len(names) - 1:
        return ".".join([*first[: differ[0]], f"{first[differ[0]]}-{last[differ[0]]}", *first[differ[0] + 1 :]])
    return names[0] if len(names) == 1 else f"{names[0]}, ..., {names[-1]} ({len(names)})"


def _row(layer: LayerPlan, settings: Settings) -> dict[str, str]:
    grouped = layer.key_heads not in (0, layer.heads)
    how = settings.level if settings.variant == "linear" else f"{layer.norm} norm"
    becomes = f"{settings.variant} ({how})" if layer.action == "convert" else layer.action
    return {  # without its name
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
        >>> model = torch.nn.TransformerDecoderLayer(64, 4)
        >>> plan = infsa.plan_conversion(model, "linear", exclude="multihead_attn", chunk_size=16)
        >>> {layer.name: layer.action for layer in plan}
        {'self_attn': 'convert', 'multihead_attn': 'keep'}
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
    return (patterns,) if isinstance(patterns, str) else None if patterns is None else tuple(patterns)


def _select(layer: LayerPlan, include: Iterable[str] | None, exclude: Iterable[str] | None) -> LayerPlan:
    """Keep a layer that the patterns leave out."""
    excluding = [pattern for pattern in exclude or () if fnmatchcase(layer.name, pattern)]
    included = include is None or any(fnmatchcase(layer.name, pattern) for pattern in include)
    if layer.action == "done" or (included and not excluding):
        return layer
    reason = f"excluded by {excluding[0]!r}" if excluding else "not included"
    return replace(layer, action="keep", reason=reason, lost=(), left=False)


def _find(model: nn.Module, settings: Settings) -> list[LayerPlan]:
    """Every attention layer, outermost first, in the order of the model; unknown ones as refused."""
    known: dict[str, LayerPlan] = {}
    unknown: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if any(_inside(name, layer) for layer in known):
            continue
        layer = _recognise(name, module, settings, model)
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
    if has_parts(module) or not is_gate(module):
        return LayerPlan(name, kind_of(module), "", "refuse", "this attention class is not supported")
    return LayerPlan(name, kind_of(module), "", "keep", "it gates by a sigmoid; there is no attention between tokens")


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
        reason = f"it looks like attention, of an unsupported class ({code or projections})"
        guesses[name] = LayerPlan(name, kind_of(module), "", "keep", reason, left=True)
        if not code:
            served.append(name)
    return guesses


def _inside(name: str, parent: str) -> bool:
    return not parent or name == parent or name.startswith(f"{parent}.")


def _recognise(name: str, module: nn.Module, settings: Settings, model: nn.Module) -> LayerPlan | None:
    done = getattr(module, "infsa_layer", None)
    if isinstance(done, LayerPlan):
        variant = module.infsa_settings.variant  # type: ignore[union-attr]
        return replace(done, name=name, action="done", reason=f"{variant} InfSA already; infsa.revert undoes it")
    for family in families():
        layer = family.recognise(name, module, settings, model)
        if layer is not None:
            return layer if settings.norm == "auto" else replace(layer, norm=settings.norm)
    return None
