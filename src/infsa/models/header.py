"""What a file may choose: names from closed lists, values in stated ranges, and nothing else.

Weights come with a header that says which model they belong to and what its classes are called. Whoever wrote the file
wrote the header, so no entry of it is handed on unread: every name is looked up in a table of this module, every value
must fit the rule beside the name, and anything else is refused in one line that says what was asked for.
"""

import json
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..nn.peers import ATTENTIONS
from ..nn.peers.registry import attention_options
from ..ops.activation import ACTIVATIONS
from ..ops.dispatch import NAMES
from .options import POOLS, STEMS

LARGEST_HEADER = 16 << 20  # bytes of a file's whole header, and of
LARGEST_ENTRY = 4 << 20  # one entry of it
ENTRIES = ("format", "infsa", "data", "conversion")  # of a header that are ours; safetensors itself wrote the first


@dataclass(frozen=True)
class Rule:
    """Which values a name takes: ``accepted`` says it to the reader, ``fits`` decides."""

    accepted: str
    fits: Callable[[Any], bool]


def whole(low: int, high: int) -> Rule:
    """Whole numbers from ``low`` to ``high``."""
    return Rule(f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


def number(low: float, high: float) -> Rule:
    """Numbers from ``low`` to ``high``; nan is none."""
    return Rule(f"a number from {low} to {high}", lambda value: type(value) in (int, float) and low <= value <= high)


def one_of(*choices: Any) -> Rule:
    """One of these values, of the same type."""
    known = {(type(choice), choice) for choice in choices}
    plain = (str, int, float, bool, type(None))
    return Rule(
        f"one of {', '.join(map(repr, choices))}",
        lambda value: isinstance(value, plain) and (type(value), value) in known,
    )


def some(rule: Rule, fewest: int, most: int) -> Rule:
    """A list of values that all fit a rule."""
    return Rule(
        f"a list of {fewest} to {most}, each {rule.accepted}",
        lambda value: isinstance(value, list) and fewest <= len(value) <= most and all(map(rule.fits, value)),
    )


def either(*rules: Rule) -> Rule:
    """What one of several rules accepts."""
    return Rule(" or ".join(rule.accepted for rule in rules), lambda value: any(rule.fits(value) for rule in rules))


def _is_label(value: Any) -> bool:
    """Whether a value is text that can be shown: no control characters, no halves of characters."""
    return isinstance(value, str) and not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in value)


def _is_task(value: Any) -> bool:
    """Whether a value is what :meth:`infsa.data.Tasks.as_list` writes of a task."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    return _is_label(value[0]) and whole(1, 1 << 20).fits(value[1]) and type(value[2]) is bool


NONE = one_of(None)
FLAG = one_of(True, False)
RATE = Rule("a number from 0 to below 1", lambda value: type(value) in (int, float) and 0 <= value < 1)
DECAY = Rule("a number between 0 and 1", lambda value: type(value) in (int, float) and 0 < value < 1)
SIDE = whole(1, 1 << 14)
SIDES = either(SIDE, some(SIDE, 2, 2))
WIDTH = whole(1, 1 << 16)
LABELS = some(Rule("text without control characters", _is_label), 0, 1 << 20)

MECHANISM_OPTIONS = {  # of attention_options; each mechanism takes some of them
    "agents": whole(1, 1 << 14),
    "bias": FLAG,
    "eps": number(0, 1),
    "features": either(whole(1, 1 << 14), NONE),
    "fused": FLAG,
    "hops": either(whole(1, 1 << 10), one_of(math.inf)),
    "impl": one_of(*NAMES),
    "iterations": whole(1, 1 << 10),
    "key_rank": whole(0, 1 << 16),
    "kernel_size": whole(1, 63),
    "landmarks": whole(1, 1 << 10),
    "newton_steps": whole(1, 1 << 10),
    "normalize": FLAG,
    "position_bias": FLAG,
    "power": number(1, 64),
    "queries": whole(1, 1 << 10),
    "rank": WIDTH,
    "redraw_every": whole(0, 1 << 40),
    "seed": whole(0, (1 << 63) - 1),
    "share_kv": FLAG,
    "tied": FLAG,
}

ARGUMENTS = {  # of InfViT
    "img_size": SIDES,
    "patch_size": SIDES,
    "in_chans": whole(1, 1 << 12),
    "num_classes": whole(0, 1 << 24),
    "global_pool": one_of(None, *POOLS),
    "embed_dim": WIDTH,
    "depth": whole(1, 1 << 10),
    "num_heads": WIDTH,
    "mlp_ratio": number(1e-3, 1e3),
    "attention": either(one_of(*ATTENTIONS), some(one_of(*ATTENTIONS), 1, 1 << 10)),
    "attention_options": Rule("a table of options", lambda value: value is None or isinstance(value, dict)),
    "attention_grid": either(some(SIDE, 2, 2), NONE),
    "gamma": either(DECAY, NONE),
    "learn_gamma": FLAG,
    "activation": one_of(None, *ACTIVATIONS),
    "decay": one_of("constant", "geometric"),
    "readout": one_of("last", "series"),
    "class_token": FLAG,
    "reg_tokens": whole(0, 1 << 16),
    "pos_embed": one_of("learn", "sincos", "none"),
    "dynamic_img_size": FLAG,
    "dynamic_img_pad": FLAG,
    "mlp_chunk": either(whole(1, 1 << 40), NONE),
    "mlla_block": FLAG,
    "paper_params": FLAG,
    "drop_rate": RATE,
    "proj_drop_rate": RATE,
    "attn_drop_rate": RATE,
    "drop_path_rate": RATE,
    "stem": one_of(*STEMS),
}

DATA = {  # of timm's data configuration: what weights know of the images they were trained on
    "label_names": either(LABELS, NONE),
    "tasks": some(Rule("a task: its name, its number of classes, whether several may be right", _is_task), 0, 1 << 10),
    "mean": some(number(-1e6, 1e6), 1, 1 << 12),
    "std": some(number(1e-12, 1e6), 1, 1 << 12),
    "crop_pct": number(1e-2, 1e2),
    "interpolation": one_of("bicubic", "bilinear", "nearest", "box", "hamming", "lanczos", "random"),
}


def brief(value: Any) -> str:
    """A value of a file as one short line, whatever it holds."""
    try:
        text = " ".join(str(value).split()) if isinstance(value, BaseException) else repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} nested too deeply"
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:500])
    return shown if len(shown) <= 120 else f"{shown[:120]}..."


def permitted(asked: Any, rules: Mapping[str, Rule], where: str) -> dict[str, Any]:
    """The names and values that a file asks for, if the rules know them all."""
    if not isinstance(asked, dict):
        raise ValueError(f"{where} must hold a table of names and values, got {brief(asked)}")
    for name, value in asked.items():
        if name not in rules:
            raise ValueError(f"{where} asks for {brief(name)}, which a file may not choose")
        if not rules[name].fits(value):
            raise ValueError(f"{where}: {name} must be {rules[name].accepted}, got {brief(value)}")
    return asked


def permitted_arguments(asked: Any, names: tuple[str, ...], where: str) -> dict[str, Any]:
    """Arguments of InfViT, and the ``architecture`` among ``names`` that they belong to, if a file may ask for them."""
    found = permitted(asked, {**ARGUMENTS, "architecture": one_of(*names)}, where)
    options = found.get("attention_options")
    if options:
        names = found.get("attention", "")
        if isinstance(names, str) or len(set(names)) == 1:
            _permitted_options(options, names if isinstance(names, str) else names[0], f"{where}: attention_options")
        else:
            table = Rule("a table of options", lambda value: isinstance(value, dict))
            for name, own in permitted(options, dict.fromkeys(names, table), f"{where}: attention_options").items():
                _permitted_options(own, name, f"{where}: attention_options of {name}")
    return found


def _permitted_options(options: Any, mechanism: str, where: str) -> None:
    """Refuse options that a mechanism does not take."""
    own = attention_options(mechanism) if mechanism in ATTENTIONS else ()
    permitted(options, {name: rule for name, rule in MECHANISM_OPTIONS.items() if name in own}, where)


@dataclass(frozen=True)
class Header:
    """What a safetensors file says before its numbers: text entries, and the type and shape of every tensor."""

    file: Path
    texts: dict[str, str]
    tensors: dict[str, tuple[str, tuple[int, ...]]]

    @property
    def where(self) -> str:
        """How a refusal begins."""
        return f"{self.file}: its header"

    def entry(self, name: str) -> Any:
        """An entry that holds JSON; an empty table if there is none."""
        text = self.texts.get(name, "{}")
        if len(text) > LARGEST_ENTRY:
            raise ValueError(f"{self.where}: {name} must have at most {LARGEST_ENTRY} letters, got {len(text)}")
        return parse(text, f"{self.where}: {name}")

    def check_entries(self) -> None:
        """Refuse entries that infsa does not write."""
        for name in sorted(self.texts.keys() - set(ENTRIES)):
            raise ValueError(f"{self.where} asks for {brief(name)}, which a file may not choose")


def parse(text: str, where: str) -> Any:
    """JSON, or a refusal in one line, however it is broken."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {brief(error)}") from None


def read_header(file: Path) -> Header:
    """The header of a safetensors file, without reading a tensor."""
    with open(file, "rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"{file}: its header must have at most {LARGEST_HEADER} bytes, got {length}")
    try:
        with safe_open(file, framework="pt") as handle:
            slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
            tensors = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
            return Header(file, handle.metadata() or {}, tensors)
    except (SafetensorError, RuntimeError, MemoryError) as error:  # the latter two: too long to map
        raise ValueError(f"{file} is not a complete safetensors file: {brief(error)}") from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    read_header(file)
    try:
        with safe_open(file, framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except (SafetensorError, RuntimeError, MemoryError, AttributeError, KeyError, TypeError) as error:  # odd types too
        raise ValueError(f"{file} is not a complete safetensors file: {brief(error)}") from error
