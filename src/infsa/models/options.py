"""Which options of a model go together, and which layer gets them; each refusal is one line that names the value."""

from collections.abc import Sequence
from typing import Any

from ..nn.peers.registry import attention_options as options_of
from ..ops.checks import check_choice, check_count

WITH_DECAY = ("infsa_pure", "infsa_linear", "mean", "energy")  # mechanisms whose output carries a γ
STEMS = ("patch", "conv")
POOLS = ("", "token", "avg", "max", "avgmax")


def check_pool(global_pool: str, class_token: bool) -> None:
    """Refuse a pooling that does not exist, or that reads a class token where there is none."""
    check_choice("global_pool", global_pool, POOLS)
    if global_pool == "token" and not class_token:
        raise ValueError("global_pool='token' needs class_token=True, got class_token=False")


def check_stem(stem: str, patch_size: int | tuple[int, int]) -> None:
    """Refuse a stem that does not exist, and patches that halving does not lead to."""
    check_choice("stem", stem, STEMS)
    sides = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    if stem == "conv" and not all(isinstance(side, int) and side > 0 and side & (side - 1) == 0 for side in sides):
        raise ValueError(f"stem='conv' needs patches whose sides are powers of two, got patch_size={patch_size!r}")


def check_options(options: dict[str, Any]) -> None:
    """Refuse arguments of :class:`InfViT` that are out of range or contradict each other."""
    for name, least in (("embed_dim", 1), ("depth", 1), ("in_chans", 1), ("num_classes", 0), ("reg_tokens", 0)):
        check_count(options[name], name, at_least=least)
    if options["mlp_chunk"] is not None:
        check_count(options["mlp_chunk"], "mlp_chunk")
    for name in ("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"):
        if not 0 <= options[name] < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {options[name]!r}")
    if not options["mlp_ratio"] > 0:
        raise ValueError(f"mlp_ratio must be positive, got {options['mlp_ratio']!r}")
    layers = layer_names(options["attention"], options["depth"])
    own = _own_options(layers, options["attention_options"] or {})
    taken = {"gamma", "learn_gamma", "activation", "dropout", "grid", "num_prefix", "extra_proj", "device", "dtype"}
    for name in sorted(taken & {name for table in own.values() for name in table}):
        raise ValueError(f"attention_options does not take {name!r}: it follows from the model's own arguments")
    check_pool(options["global_pool"], options["class_token"])
    check_stem(options["stem"], options["patch_size"])
    check_choice("pos_embed", options["pos_embed"], ("learn", "sincos", "none"))
    check_choice("decay", options["decay"], ("constant", "geometric"))
    check_choice("readout", options["readout"], ("last", "series"))
    if options["pos_embed"] == "sincos" and options["embed_dim"] % 4:
        raise ValueError(f"pos_embed='sincos' needs a width divisible by 4, got embed_dim={options['embed_dim']}")
    with_decay = [name in WITH_DECAY for name in layers]
    if not any(with_decay):
        neutral = {"gamma": None, "learn_gamma": False, "decay": "constant", "readout": "last"}
        for name, value in neutral.items():
            if options[name] != value:
                raise ValueError(f"attention={options['attention']!r} has no decay, got {name}={options[name]!r}")
    if options["readout"] == "series":
        if not all(with_decay):
            raise ValueError(f"readout='series' needs a decay at every layer, got attention={options['attention']!r}")
        for hops in (table["hops"] for table in own.values() if table.get("hops", 1) != 1):
            raise ValueError(f"readout='series' needs hops=1, got hops={hops!r}")
    if options["mlla_block"]:
        _check_mlla_block(options)


def layer_names(attention: str | Sequence[str], depth: int) -> tuple[str, ...]:
    """The mechanism of every layer, from one name for all or from a list with a name for each."""
    if isinstance(attention, str):
        return (attention,) * depth
    if not isinstance(attention, list | tuple) or not all(isinstance(name, str) for name in attention):
        raise ValueError(f"attention must be a name or a list of names, got {attention!r}")
    if len(attention) != depth:
        raise ValueError(f"attention must name one mechanism for each of the {depth} layers, got {len(attention)}")
    return tuple(attention)


def short_names(layers: Sequence[str]) -> str | list[str]:
    """The ``attention`` argument for such layers: one name if they are all the same, otherwise a list."""
    return layers[0] if len(set(layers)) == 1 else list(layers)


def layer_options(
    layers: Sequence[str], attention_options: dict[str, Any] | None, chosen: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The options of every mechanism of a model: its own, and those of the model's arguments that it takes.

    Args:
        layers: the mechanism of every layer.
        attention_options: of the one mechanism; in a mixed model a table of them for each name.
        chosen: options that arguments of the model set; each must be taken by at least one layer.
    """
    own = _own_options(layers, attention_options or {})
    if len(own) == 1:
        return {name: {**table, **chosen} for name, table in own.items()}
    takes = {name: options_of(name) for name in own}
    for option in chosen:
        if not any(option in known for known in takes.values()):
            raise ValueError(f"none of {', '.join(own)} takes the option {option!r}, got {chosen[option]!r}")
    return {name: {**table, **{k: v for k, v in chosen.items() if k in takes[name]}} for name, table in own.items()}


def _own_options(layers: Sequence[str], given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """``attention_options`` by the name of the mechanism."""
    names = list(dict.fromkeys(layers))
    if len(names) == 1:
        return {names[0]: dict(given)}
    for name, table in given.items():
        if name not in names or not isinstance(table, dict):
            raise ValueError(
                f"attention_options of several mechanisms must be tables by name ({', '.join(names)}), "
                f"got {name!r}: {table!r}"
            )
    return {name: dict(given.get(name, {})) for name in names}


def _check_mlla_block(options: dict[str, Any]) -> None:
    """The MLLA block replaces the plain one, whose options do not apply to it."""
    if options["attention"] != "mlla":
        raise ValueError(f"mlla_block=True needs attention='mlla', got attention={options['attention']!r}")
    plain = ("attention_options", "activation", "mlp_chunk", "paper_params", "proj_drop_rate", "attn_drop_rate",
             "drop_path_rate")  # fmt: skip
    for name in plain:
        if options[name]:
            raise ValueError(f"mlla_block=True does not take {name}, got {options[name]!r}")
