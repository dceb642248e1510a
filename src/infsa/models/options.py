"""The arguments of a model in two groups: how images become tokens, and what the layers are.

What is out of range or does not go together is refused in one line that names the value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..nn.peers.registry import attention_options as options_of
from ..ops.checks import check_choice, check_count

WITH_DECAY = ("infsa_pure", "infsa_linear", "mean", "energy")  # mechanisms whose output carries a γ
RESERVED = {"gamma", "learn_gamma", "activation", "dropout", "grid", "num_prefix", "extra_proj", "device", "dtype"}
NO_DECAY = {"gamma": None, "learn_gamma": False, "decay": "constant", "readout": "last"}  # without such mechanisms
STEMS = ("patch", "conv")
POOLS = ("", "token", "avg", "max", "avgmax")


def check_pool(global_pool: str, class_token: bool) -> None:
    """Refuse a pooling that does not exist, or that reads a class token where there is none."""
    check_choice("global_pool", global_pool, POOLS)
    if global_pool == "token" and not class_token:
        raise ValueError("global_pool='token' needs class_token=True, got class_token=False")


def check_rate(name: str, rate: float) -> None:
    """Refuse a rate of dropout outside [0, 1)."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {rate!r}")


def check_stem(stem: str, patch_size: int | tuple[int, int]) -> None:
    """Refuse a stem that does not exist, and patches that halving does not lead to."""
    check_choice("stem", stem, STEMS)
    sides = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    if stem == "conv" and not all(isinstance(side, int) and side > 0 and side & (side - 1) == 0 for side in sides):
        raise ValueError(f"stem='conv' needs patches whose sides are powers of two, got patch_size={patch_size!r}")


def layer_names(attention: str | Sequence[str], depth: int) -> tuple[str, ...]:
    """The mechanism of every layer, from one name for all or from a list with a name for each."""
    if isinstance(attention, str):
        return (attention,) * depth
    if not isinstance(attention, list | tuple) or not all(isinstance(name, str) for name in attention):
        raise ValueError(f"attention must be a name or a list of names, got {attention!r}")
    if len(attention) != depth:
        raise ValueError(f"attention must name one mechanism for each of the {depth} layers, got {len(attention)}")
    return tuple(attention)


def unused_options(layers: Sequence[str]) -> dict[str, Any]:
    """The arguments that none of these layers takes, with the values that say so."""
    known = {option for name in layers for option in options_of(name)}
    unused: dict[str, Any] = {} if any(name in WITH_DECAY for name in layers) else dict(NO_DECAY)
    if "activation" not in known:
        unused["activation"] = None
    return unused if "dropout" in known else {**unused, "attn_drop_rate": 0.0}


def short_names(layers: Sequence[str]) -> str | list[str]:
    """The ``attention`` argument for such layers: one name if they are all the same, otherwise a list."""
    return layers[0] if len(set(layers)) == 1 else list(layers)


@dataclass(frozen=True)
class TokenOptions:
    """How images become tokens; see :class:`infsa.models.InfViT`."""

    img_size: int | tuple[int, int]
    patch_size: int | tuple[int, int]
    in_chans: int
    embed_dim: int
    stem: str
    class_token: bool
    reg_tokens: int
    pos_embed: str
    dynamic_img_size: bool
    dynamic_img_pad: bool

    def __post_init__(self) -> None:
        check_count(self.in_chans, "in_chans")
        check_count(self.embed_dim, "embed_dim")
        check_count(self.reg_tokens, "reg_tokens", at_least=0)
        check_stem(self.stem, self.patch_size)
        check_choice("pos_embed", self.pos_embed, ("learn", "sincos", "none"))
        if self.pos_embed == "sincos" and self.embed_dim % 4:
            raise ValueError(f"pos_embed='sincos' needs a width divisible by 4, got embed_dim={self.embed_dim}")


@dataclass(frozen=True)
class LayerOptions:
    """What the layers are; see :class:`infsa.models.InfViT`."""

    depth: int
    mlp_ratio: float
    mlp_chunk: int | None
    attention: str | Sequence[str]
    attention_options: dict[str, Any] | None
    gamma: float | None
    learn_gamma: bool
    activation: str | None
    decay: str
    readout: str
    mlla_block: bool
    paper_params: bool
    proj_drop_rate: float
    attn_drop_rate: float
    drop_path_rate: float

    def __post_init__(self) -> None:
        check_count(self.depth, "depth")
        if self.mlp_chunk is not None:
            check_count(self.mlp_chunk, "mlp_chunk")
        for name in ("proj_drop_rate", "attn_drop_rate", "drop_path_rate"):
            check_rate(name, getattr(self, name))
        if not self.mlp_ratio > 0:
            raise ValueError(f"mlp_ratio must be positive, got {self.mlp_ratio!r}")
        check_choice("decay", self.decay, ("constant", "geometric"))
        check_choice("readout", self.readout, ("last", "series"))
        for name in sorted(RESERVED & {name for table in self.tables.values() for name in table}):
            raise ValueError(f"attention_options does not take {name!r}: it follows from the model's own arguments")
        self._check_decay()
        if self.mlla_block:
            self._check_mlla_block()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The mechanism of every layer."""
        return layer_names(self.attention, self.depth)

    @cached_property
    def tables(self) -> dict[str, dict[str, Any]]:
        """``attention_options`` by the name of the mechanism."""
        names, given = list(dict.fromkeys(self.names)), self.attention_options or {}
        if len(names) == 1:
            return {names[0]: given}
        for name, table in given.items():
            if name not in names or not isinstance(table, dict):
                raise ValueError(
                    f"attention_options of several mechanisms must be tables by name ({', '.join(names)}), "
                    f"got {name!r}: {table!r}"
                )
        return {name: given.get(name, {}) for name in names}

    def by_mechanism(self) -> dict[str, dict[str, Any]]:
        """The options of each mechanism: its own, and those of the model's arguments that it takes; one must."""
        chosen = {"learn_gamma": self.learn_gamma, "activation": self.activation, "dropout": self.attn_drop_rate}
        chosen = {name: value for name, value in chosen.items() if value}
        takes = {name: options_of(name) for name in self.tables}
        for option, value in chosen.items():
            if not any(option in known for known in takes.values()):
                raise ValueError(f"attention={self.attention!r} does not take the option {option!r}, got {value!r}")
        return {
            name: {**table, **{option: value for option, value in chosen.items() if option in takes[name]}}
            for name, table in self.tables.items()
        }

    def _check_decay(self) -> None:
        """What a decay does needs one."""
        with_decay = [name in WITH_DECAY for name in self.names]
        if not any(with_decay):
            for name, value in NO_DECAY.items():
                if getattr(self, name) != value:
                    raise ValueError(f"attention={self.attention!r} has no decay, got {name}={getattr(self, name)!r}")
        if self.readout == "series":
            if not all(with_decay):
                raise ValueError(f"readout='series' needs a decay at every layer, got attention={self.attention!r}")
            for hops in (table["hops"] for table in self.tables.values() if table.get("hops", 1) != 1):
                raise ValueError(f"readout='series' needs hops=1, got hops={hops!r}")

    def _check_mlla_block(self) -> None:
        """The MLLA block replaces the plain one, whose options do not apply to it."""
        if self.attention != "mlla":
            raise ValueError(f"mlla_block=True needs attention='mlla', got attention={self.attention!r}")
        plain = ("attention_options", "activation", "mlp_chunk", "paper_params", "proj_drop_rate", "attn_drop_rate",
                 "drop_path_rate")  # fmt: skip
        for name in plain:
            if getattr(self, name):
                raise ValueError(f"mlla_block=True does not take {name}, got {getattr(self, name)!r}")
