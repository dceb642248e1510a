"""Plans: groups of cases that are timed in turns, the most important first."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..ops import dispatch
from .cases import NINE, PEERS, Case

Plan = list[list[Case]]
FOUR: dict[str, Any] = {"depth": 4, "heads": 64}
DEEP: dict[str, Any] = {"depth": 24, "heads": 16}
VIT_B: dict[str, Any] = {"depth": 12, "heads": 12, "width": 768}
FUSED = ("softmax-flash", "softmax-cudnn")
TABLE = ("infsa_linear", "softmax-naive", *FUSED, "infsa_pure", *PEERS)  # InfSA and softmax first, then the peers


def compiled_names() -> tuple[str, ...]:
    """What is worth compiling: Linear-InfSA, softmax, and Pure InfSA with its kernels, which "auto" leaves out
    there.
    """
    return ("infsa_linear", "softmax", "infsa_pure-triton" if dispatch.HAS_TRITON else "infsa_pure")


def group(names: Iterable[str], side: int, energy: Sequence[str] = (), **fields: Any) -> list[Case]:
    """One case per mechanism at a square resolution; those in ``energy`` get an energy window too."""
    return [Case(name, size=(side, side), energy=name in energy, **fields) for name in names]


def table1() -> Plan:
    """The paper's Table 1: both configurations, the stress test, compiled models, and what the paper skips."""
    names, few = TABLE, ("infsa_linear", "softmax-naive", "softmax-flash", "infsa_pure")
    linear = ["infsa_linear"]
    others = (*FUSED, "infsa_pure", *PEERS, "softmax-naive")
    return [
        group(names, 1024, energy=names, **FOUR),
        group(linear, 9216, energy=linear, **FOUR),
        group(linear, 4096, mode="train", energy=linear, **FOUR),
        group(linear, 9216, energy=linear, **DEEP),
        group(names, 512, mode="train", energy=few[:3], **FOUR),
        group(names, 1024, energy=few, **DEEP),
        group(names, 512, mode="train", **DEEP),
        group(compiled_names(), 1024, compile="reduce-overhead", **FOUR),
        group(others, 4096, mode="train", **FOUR),
        group((*PEERS, "softmax-naive", "infsa_pure"), 9216, **FOUR),
        group(linear, 9216, compile="default", **FOUR),
        group(("softmax-cudnn",), 9216, **FOUR),  # the slowest: 15 s a call on an H200
        group(linear, 4096, mode="train", compile="default", **FOUR),
    ]


def graphs() -> Plan:
    """What the ledger needs beyond table1: eager models replayed as CUDA graphs, with the eager rows beside them.

    Table 1's inference at 1024² and training at 512², 4 and 24 layers, unfused Pure InfSA included, energy for all;
    and the latencies of the ablation, 224² at batch 64.
    """
    names = (*TABLE, "infsa_pure-naive")
    linear = ["infsa_linear"]
    plan = [
        group(names, side, energy=names, mode=mode, compile=compile, **fields)
        for fields in (FOUR, DEEP)
        for side, mode in ((1024, "infer"), (512, "train"))
        for compile in ("graph", "none")
    ]
    small: dict[str, Any] = {"batch": 64, **FOUR}
    for mode in ("infer", "train"):
        plan += [group(linear, 224, mode=mode, compile=compile, **small) for compile in ("graph", "none")]
    return plan


def resolution() -> Plan:
    """Latency and memory against resolution, for the crossovers and the slopes; one size is not square.

    First what the figures show of inference, then single layers, the ends before the middle; then the rest.
    """
    names = TABLE
    quick = tuple(name for name in TABLE if name != "softmax-naive")
    plan = [group(names, side, **FOUR) for side in (512, 224, 1024, 2048)]
    plan += [group(quick, 4096, **FOUR)]
    layer: dict[str, Any] = {"part": "attention", "depth": 1, "heads": 64}
    plan += [group(quick, side, **layer) for side in (1024, 4096, 2048, 3072, 1536)]
    linear = ("infsa_linear", *PEERS)  # at the sizes so far, the launches of a call hide how they grow
    plan += [group(linear, side, **layer) for side in (8192, 12288, 6144)]
    plan += [group(names, side, mode="train", **FOUR) for side in (1024, 224, 512)]
    plan += [[Case(name, size=(1024, 2048), **FOUR) for name in ("infsa_linear", *FUSED, "infsa_pure")]]
    plan += [group(FUSED, side, **VIT_B) for side in (224, 512, 1024, 2048)]
    return [*plan, group(quick, 2048, mode="train", **FOUR)]


def limits() -> Plan:
    """The largest resolution of every mechanism, in inference; in training for some."""
    some = ("infsa_linear", "softmax-naive", "softmax-flash", "linformer", "agent")
    infer = group(TABLE, 512, limit=True, **FOUR)
    return [[case] for case in (*infer, *group(some, 512, mode="train", limit=True, **FOUR))]


def compiled() -> Plan:
    """What the table leaves out: softmax compiled in training at 4096²; other sizes; deep models and peers at 1024²."""
    return [
        group(("softmax",), 4096, mode="train", compile="default", **FOUR),
        *(group(compiled_names(), side, compile="reduce-overhead", **FOUR) for side in (512, 2048, 224)),
        group(compiled_names(), 1024, compile="reduce-overhead", **DEEP),
        group(PEERS, 1024, compile="reduce-overhead", **FOUR),
    ]


def quick() -> Plan:
    """A few minutes on a small CPU: one attention layer at growing N, and the largest image in 1 GiB.

    What is linear in N shows its growth only where its fixed costs no longer matter, so it gets the longer inputs.
    """
    small: dict[str, Any] = {"depth": 1, "heads": 2, "width": 128, "dtype": "float32"}
    square = ("softmax-naive", "softmax", "infsa_pure")
    linear = tuple(name for name in NINE if name not in square)
    plan = [group((*square, *linear), 1152, part="attention", **small)]
    for shorter, longer in ((512, 2048), (896, 3072), (384, 1536), (640, 2560)):  # every slope early
        plan += [group(linear, longer, part="attention", **small), group(square, shorter, part="attention", **small)]
    ends = ("infsa_linear", "softmax-naive", "infsa_pure")
    return plan + [[case] for case in group(ends, 512, limit=True, **small)]


PRESETS: dict[str, Callable[[], Plan]] = {
    "table1": table1,
    "resolution": resolution,
    "limits": limits,
    "compiled": compiled,
    "graphs": graphs,
    "quick": quick,
}
