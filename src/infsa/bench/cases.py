"""What is measured: a mechanism in a model of some depth, at a resolution, in training or inference."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ..models.options import check_stem
from ..ops.checks import check_choice, check_count

DTYPES = ("float32", "bfloat16", "float16")
COMPILE = ("none", "graph", "default", "reduce-overhead")  # graph: eager, replayed as a CUDA graph
BASE = 224  # pixels: the resolution that learned tables are made for, as in training
MODES = ("infer", "train")
PARTS = ("model", "attention")
WIDTH, PATCH = 1024, 16  # of the paper's models


class Variant(NamedTuple):
    """A row of the tables: a mechanism and how it is computed."""

    label: str
    attention: str  # the name in infsa.nn.peers
    tier: str  # of the paper: quadratic, N d², N d, N
    options: Mapping[str, Any] = MappingProxyType({})
    backend: str | None = None  # of scaled_dot_product_attention


VARIANTS: dict[str, Variant] = {
    "softmax-naive": Variant("softmax (unfused)", "softmax", "N² d"),
    "softmax": Variant("softmax (fused)", "softmax", "N² d"),
    "softmax-flash": Variant("softmax (fused, flash)", "softmax", "N² d", backend="FLASH_ATTENTION"),
    "softmax-cudnn": Variant("softmax (fused, cuDNN)", "softmax", "N² d", backend="CUDNN_ATTENTION"),
    "linformer": Variant("Linformer", "linformer", "N d"),
    "performer": Variant("Performer", "performer", "N d²"),
    "soft": Variant("SOFT", "soft", "N d"),
    "flatten": Variant("FLatten", "flatten", "N d²"),
    "agent": Variant("Agent", "agent", "N d"),
    "mlla": Variant("MLLA core", "mlla", "N d²"),
    "infsa_pure-naive": Variant("Pure InfSA, N² memory", "infsa_pure", "N² d", {"impl": "reference"}),
    "infsa_pure": Variant("Pure InfSA", "infsa_pure", "N² d"),
    "infsa_pure-triton": Variant("Pure InfSA, Triton", "infsa_pure", "N² d", {"impl": "triton"}),
    "infsa_linear": Variant("Linear-InfSA", "infsa_linear", "N"),
    "mean": Variant("mean pooling", "mean", "N"),
    "energy": Variant("energy pooling", "energy", "N"),
    "fastformer": Variant("Fastformer", "fastformer", "N d"),
}
PEERS = ("linformer", "performer", "soft", "flatten", "agent", "mlla")
NINE = ("softmax", *PEERS, "infsa_pure", "infsa_linear")  # the paper's, softmax in its fused form


@dataclass(frozen=True)
class Case:
    """One measurement. ``part="attention"`` measures a single layer on random tokens instead of a whole model.

    ``limit`` asks for the largest square resolution instead of a time; ``size`` is then where the search starts.

    Example:
        >>> Case("infsa_linear", depth=4, heads=64, size=(1024, 1024)).key
        'model/4L-64H/infer/1024x1024/b1/bfloat16/infsa_linear'
    """

    mechanism: str
    depth: int = 4
    heads: int = 64
    size: tuple[int, int] = (1024, 1024)
    mode: str = "infer"
    batch: int = 1
    dtype: str = "bfloat16"
    compile: str = "none"
    width: int = WIDTH
    patch: int = PATCH
    part: str = "model"
    energy: bool = False
    limit: bool = False
    stem: str = "patch"

    def __post_init__(self) -> None:
        check_choice("mechanism", self.mechanism, tuple(VARIANTS))
        for name, choices in (("mode", MODES), ("dtype", DTYPES), ("compile", COMPILE), ("part", PARTS)):
            check_choice(name, getattr(self, name), choices)
        for name in ("depth", "heads", "batch", "width", "patch"):
            check_count(getattr(self, name), name)
        check_stem(self.stem, self.patch)
        if self.patch > BASE:
            raise ValueError(f"patch must be at most {BASE}, the base of position tables, got {self.patch}")
        if self.width % self.heads:
            raise ValueError(f"heads must divide the width {self.width}, got {self.heads}")
        if len(self.size) != 2 or any(side < self.patch or side % self.patch for side in self.size):
            raise ValueError(f"both sides must be multiples of the patch {self.patch}, got {self.size}")
        if self.part == "attention" and self.depth != 1:
            raise ValueError(f"part='attention' is one layer, got depth={self.depth}")
        if self.part == "attention" and self.stem != "patch":
            raise ValueError(f"part='attention' has no stem, got stem={self.stem!r}")
        if self.limit and self.energy:
            raise ValueError("a limit row has no energy, got limit=True and energy=True")
        if self.limit and self.size[0] != self.size[1]:
            raise ValueError(f"the search for the largest image starts from a square, got {self.size}")

    @property
    def variant(self) -> Variant:
        """The mechanism's entry in VARIANTS."""
        return VARIANTS[self.mechanism]

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along both sides."""
        return self.size[0] // self.patch, self.size[1] // self.patch

    @property
    def tokens(self) -> int:
        """N: the patches and the class token."""
        return 1 + self.grid[0] * self.grid[1]

    @property
    def config(self) -> str:
        """The depth configuration, as in ``4L-64H``; another width, patch or stem follows: ``12L-12H-768-14``."""
        patch = f"-{self.patch}" if self.patch != PATCH else ""
        width = f"-{self.width}" if self.width != WIDTH or patch else ""
        stem = f"-{self.stem}" if self.stem != "patch" else ""
        return f"{self.depth}L-{self.heads}H{width}{patch}{stem}"

    @property
    def group(self) -> str:
        """What rows that are measured in turns have in common: everything but the mechanism."""
        size = "limit" if self.limit else f"{self.size[0]}x{self.size[1]}"
        compiled = "" if self.compile == "none" else f"/{self.compile}"
        return f"{self.part}/{self.config}/{self.mode}/{size}/b{self.batch}/{self.dtype}{compiled}"

    @property
    def key(self) -> str:
        """The row's name in a result file."""
        return f"{self.group}/{self.mechanism}"

    def at(self, side: int) -> "Case":
        """The same at a square resolution."""
        return replace(self, size=(side, side))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as :func:`read_case` takes it."""
        return {**asdict(self), "size": list(self.size)}


def read_case(fields: dict[str, Any]) -> Case:
    """The inverse of :meth:`Case.as_dict`."""
    return Case(**{**fields, "size": tuple(fields["size"])})


def parse_size(text: str) -> tuple[int, int]:
    """``1024`` or ``512x768`` (height × width) as a pair."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if not match:
        raise ValueError(f"a resolution is a number of pixels or HEIGHTxWIDTH, got {text!r}")
    return int(match[1]), int(match[2] or match[1])


def parse_config(text: str) -> dict[str, Any]:
    """``4L-64H``, ``12L-12H-768-14`` or ``4L-64H-conv`` (layers, heads, width, patch, stem) as arguments of a case."""
    match = re.fullmatch(r"(\d+)L-(\d+)H(?:-(\d+))?(?:-(\d+))?(?:-(conv))?", text)
    if not match:
        raise ValueError(f"a configuration is written like 4L-64H or 12L-12H-768, got {text!r}")
    *numbers, stem = match.groups()
    found = {
        name: int(value) for name, value in zip(("depth", "heads", "width", "patch"), numbers, strict=True) if value
    }
    return found | ({"stem": stem} if stem else {})
