"""Which options of a model go together; each refusal is one line that names the value."""

from typing import Any

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
    attention, learn_gamma = options["attention"], options["learn_gamma"]
    for name, least in (("embed_dim", 1), ("depth", 1), ("in_chans", 1), ("num_classes", 0), ("reg_tokens", 0)):
        check_count(options[name], name, at_least=least)
    if options["mlp_chunk"] is not None:
        check_count(options["mlp_chunk"], "mlp_chunk")
    for name in ("drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"):
        if not 0 <= options[name] < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {options[name]!r}")
    if not options["mlp_ratio"] > 0:
        raise ValueError(f"mlp_ratio must be positive, got {options['mlp_ratio']!r}")
    taken = {"gamma", "learn_gamma", "activation", "dropout", "grid", "num_prefix", "extra_proj", "device", "dtype"}
    for name in sorted(taken & set(options["attention_options"] or {})):
        raise ValueError(f"attention_options does not take {name!r}: it follows from the model's own arguments")
    check_pool(options["global_pool"], options["class_token"])
    check_stem(options["stem"], options["patch_size"])
    check_choice("pos_embed", options["pos_embed"], ("learn", "sincos", "none"))
    check_choice("decay", options["decay"], ("constant", "geometric"))
    check_choice("readout", options["readout"], ("last", "series"))
    if options["pos_embed"] == "sincos" and options["embed_dim"] % 4:
        raise ValueError(f"pos_embed='sincos' needs a width divisible by 4, got embed_dim={options['embed_dim']}")
    if attention not in WITH_DECAY:
        neutral = {"gamma": None, "learn_gamma": False, "decay": "constant", "readout": "last"}
        for name, value in neutral.items():
            if options[name] != value:
                raise ValueError(f"attention={attention!r} has no decay, got {name}={options[name]!r}")
    if options["readout"] == "series" and learn_gamma:
        raise ValueError("readout='series' needs a fixed gamma, got learn_gamma=True")
    hops = (options["attention_options"] or {}).get("hops", 1)
    if options["readout"] == "series" and hops != 1:
        raise ValueError(f"readout='series' needs hops=1, got hops={hops!r}")
    if options["mlla_block"]:
        _check_mlla_block(options)


def _check_mlla_block(options: dict[str, Any]) -> None:
    """The MLLA block replaces the plain one, whose options do not apply to it."""
    if options["attention"] != "mlla":
        raise ValueError(f"mlla_block=True needs attention='mlla', got attention={options['attention']!r}")
    plain = ("attention_options", "activation", "mlp_chunk", "paper_params", "proj_drop_rate", "attn_drop_rate",
             "drop_path_rate")  # fmt: skip
    for name in plain:
        if options[name]:
            raise ValueError(f"mlla_block=True does not take {name}, got {options[name]!r}")
