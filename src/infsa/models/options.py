"""Which options of a model go together; each refusal is one line that names the value."""

from typing import Any

WITH_DECAY = ("infsa_pure", "infsa_linear", "mean", "energy")  # mechanisms whose output carries a γ
POOLS = ("", "token", "avg", "max", "avgmax")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")


def check_options(options: dict[str, Any]) -> None:
    """Refuse arguments of :class:`InfViT` that contradict each other."""
    attention, learn_gamma = options["attention"], options["learn_gamma"]
    check_choice("global_pool", options["global_pool"], POOLS)
    check_choice("pos_embed", options["pos_embed"], ("learn", "sincos", "none"))
    check_choice("decay", options["decay"], ("constant", "geometric"))
    check_choice("readout", options["readout"], ("last", "series"))
    if options["global_pool"] == "token" and not options["class_token"]:
        raise ValueError("global_pool='token' needs class_token=True, got class_token=False")
    if options["pos_embed"] == "sincos" and options["embed_dim"] % 4:
        raise ValueError(f"pos_embed='sincos' needs a width divisible by 4, got embed_dim={options['embed_dim']}")
    if attention not in WITH_DECAY:
        neutral = {"gamma": None, "learn_gamma": False, "decay": "constant", "readout": "last"}
        for name, value in neutral.items():
            if options[name] != value:
                raise ValueError(f"attention={attention!r} has no decay, got {name}={options[name]!r}")
    if options["readout"] == "series" and learn_gamma:
        raise ValueError("readout='series' needs a fixed gamma, got learn_gamma=True")
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
