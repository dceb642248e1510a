"""What a file may choose of a Hugging Face configuration: plain values of fields that its class declares."""

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..models.header import FLAG, NONE, Rule, brief, either, number, one_of, permitted, some, whole
from .permitted import DTYPES, is_architecture

# Never a file's to choose: where weights, code and data come from, and what runs in a layer's place
NEVER = re.compile(
    r"(^|_)(path|file|url|repo|dir|folder)s?$|revision|^backbone|_backbone$|dataset|auto_map|quantization|trust"
    r"|implementation|custom|kernel_config|_plan$|_device$|^_|^infsa$"
)
WORD = Rule("a word", lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_+-]{0,64}", value) is not None)
REAL = Rule("a number", lambda value: type(value) is float and abs(value) <= 1e12)
SCALAR = either(FLAG, NONE, whole(-(1 << 24), 1 << 24), REAL, WORD)
SCALARS = some(SCALAR, 0, 1 << 12)
LISTS = some(SCALARS, 0, 1 << 10)
PLAIN = Rule(
    "a number up to 16777216, a word, true, false, null, or a list of those",
    lambda value: SCALAR.fits(value) or SCALARS.fits(value) or LISTS.fits(value),
)


def _table(most: int, entries: str, fits: Callable[[Any], bool]) -> Rule:
    """A table of at most so many entries that all fit."""
    return Rule(
        f"a table of at most {most} {entries}",
        lambda value: isinstance(value, dict) and len(value) <= most and all(map(fits, value.values())),
    )


TABLE = _table(1 << 18, "plain values", PLAIN.fits)
TABLES = _table(1 << 10, "tables of plain values", TABLE.fits)
LABELS = _table(1 << 18, "labels", lambda value: isinstance(value, str | int))
DTYPE = either(one_of(*DTYPES), NONE)
SPECIAL = {
    "_remove_final_layer_norm": FLAG,
    "_sliding_window_pattern": whole(1, 1 << 10),
    "architectures": either(some(WORD, 1, 1), NONE),
    "disable_custom_kernels": one_of(True),
    "dtype": DTYPE,
    "id2label": either(LABELS, NONE),
    "label2id": either(LABELS, NONE),
    "num_labels": whole(0, 1 << 18),
    "output_attentions": FLAG,
    "torch_dtype": DTYPE,
    "use_pretrained_backbone": one_of(False, None),
    "use_timm_backbone": FLAG,
}
ROTARY = {
    "rope_parameters": either(TABLE, TABLES, NONE),
    "rope_scaling": either(TABLE, NONE),
    "rope_theta": number(0, 1e12),
}
OF_A_FOLDER = {"out_features": PLAIN, "out_indices": PLAIN, "stage_names": PLAIN}  # written though computed
LEFT_OUT = ("_name_or_path", "model_type", "transformers_version", "task_specific_params", "pruned_heads", "infsa")


def config_class(name: Any) -> Any:
    """The class of configurations for a model type; None if transformers has no such type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name] if isinstance(name, str) and name in CONFIG_MAPPING else None


def has_layers(config: Any) -> bool:
    """Whether models with such configurations have layers that can be converted."""
    from .huggingface.classes import CLASSES, INSIDE

    spec = importlib.util.find_spec(config.__module__.replace(".configuration_", ".modeling_"))
    if spec is None or spec.origin is None:
        return False
    source = Path(spec.origin).read_text(encoding="utf-8")  # read, not imported: a file does not choose what runs
    return re.search(rf"^class ({'|'.join([*CLASSES, *INSIDE])})\b", source, re.MULTILINE) is not None


def permitted_fields(asked: Any, config: Any, where: str, folder: bool = False) -> dict[str, Any]:
    """The fields that a file asks for, if a configuration of the class declares them and they are plain.

    What ``save_pretrained`` writes (``folder``) holds more: fields of other versions, which must be plain too, and
    notes, which are left out of the result.
    """
    if not isinstance(asked, dict):
        raise ValueError(f"{where} must hold a table of names and values, got {brief(asked)}")
    rules, found = _rules(config), {}
    for name, value in asked.items():
        inside = f"{where}: {name}"
        if folder and name in LEFT_OUT:
            continue
        if name in config.sub_configs and isinstance(value, dict):
            part = config.sub_configs[name]
            part = part if dataclasses.is_dataclass(part) else config_class(value.get("model_type"))
            if part is None:
                raise ValueError(
                    f"{inside} must name a model type of transformers, got {brief(value.get('model_type'))}"
                )
            kept = {"model_type": value["model_type"]} if "model_type" in value else {}
            rest = {key: entry for key, entry in value.items() if key != "model_type"}
            found[name] = permitted_fields(rest, part, inside, folder) | kept
            continue
        inert = folder and name.isidentifier() and not NEVER.search(name) and not hasattr(config, name)
        own = {name: PLAIN} if inert and name not in rules else rules | (OF_A_FOLDER if folder else {})
        found |= permitted({name: value}, own, where)
    return found


def _rules(config: Any) -> dict[str, Rule]:
    declared = {field.name for field in dataclasses.fields(config)} | set(config.attribute_map)
    rules = {name: PLAIN for name in declared if not NEVER.search(name)} | SPECIAL
    if config.model_type == "timm_backbone":
        rules["backbone"] = Rule("a model of timm", functools.partial(is_architecture, "timm"))
    return rules | ROTARY if "rope_parameters" in declared else rules
