"""Speed, memory and energy: Table 1 and the figures drawn from it."""

import math
from functools import partial
from typing import Any

from ..bench.cases import NINE, PEERS, Case
from ..bench.presets import DEEP, FOUR, FUSED
from .bench_rows import (
    OURS,
    Row,
    absolute,
    bench_row,
    divided,
    joules,
    lead,
    lead_over_last,
    machine,
    milliseconds,
    noise,
    quotient,
    ratio,
    tier,
)
from .claims import Claim, Reading, Unavailable
from .counts import CONFIGS, parameters
from .sources import Sources, paper
from .topics import LARGEST, PARAMETERS, SPEED

MEMORY = 40 * 2**30  # bytes of the paper's GPU
NEAR_LINEAR = 0.1  # of the exponent of N
LARGEST_SIDES = (4096, 9216)
CEILING = 60_000  # tokens: "about 50k", generously
LABELS = {"softmax": "softmax", "infsa_pure": "Pure", "infsa_linear": "Linear"}  # the paper: Standard ViT, InfViT
FASTER = "faster than softmax (unfused)"
OTHERS = [name for name in NINE if name != "infsa_linear"]


def others_run_out(side: int, sources: Sources) -> Reading:
    """Whether every mechanism but Linear-InfSA needs more than the paper's 40 GB at this resolution."""
    rows = sources.bench()["rows"]
    peaks: dict[str, float | None] = {}
    for name in (*NINE[:-1], "softmax-naive", *FUSED, "infsa_pure-naive"):
        row = rows.get(Case(name, size=(side, side), **FOUR).key)
        if row is not None and (row["status"] == "done" or row.get("ran_out")):
            peaks[name] = row.get("peak_bytes")
    if not peaks:
        raise Unavailable(f"needs rows of other mechanisms at {side}²")
    fit = sorted(name for name, peak in peaks.items() if peak is not None and peak <= MEMORY)
    detail, note = f"within 40 GiB: {', '.join(fit) or 'none'}", f"{len(fit)} others fit" if fit else ""
    return Reading(float(not fit), 0.0, machine(sources), detail, same=True, file=sources.bench_name, note=note)


def fused_ceiling(sources: Sources) -> Reading:
    """Whether softmax in a fused kernel, 4 layers, stops at about 50,000 tokens within 40 GB."""
    rows = sources.bench()["rows"]
    found = [rows.get(Case(name, size=(side, side), **FOUR).key) for name in FUSED for side in (2048, *LARGEST_SIDES)]
    done = [row for row in found if row is not None and row["status"] == "done"]
    if not done:
        raise Unavailable("needs rows of fused softmax above 1024²")
    reached = max((row["tokens"] for row in done if row["peak_bytes"] <= MEMORY), default=0)
    detail = f"{reached:,} tokens fit"
    return Reading(float(reached <= CEILING), 0.0, machine(sources), detail, same=True, file=sources.bench_name)


def fits(side: int, mode: str, fields: Row, sources: Sources) -> Reading:
    """Whether Linear InfViT runs within 40 GB."""
    peak = bench_row(sources, "infsa_linear", side, mode, **fields)["peak_bytes"]
    detail = f"peak {peak / 2**30:.2f} GiB"
    return Reading(float(peak <= MEMORY), 0.0, machine(sources), detail, same=True, file=sources.bench_name)


def exponent(mechanism: str, sources: Sources) -> tuple[float, float]:
    """The exponent of N in the time of a 4-layer model between its largest sizes, and its error."""
    rows = [bench_row(sources, mechanism, side, **FOUR) for side in LARGEST_SIDES]
    growth = math.log(rows[1]["tokens"] / rows[0]["tokens"])
    return math.log(milliseconds(rows[1]) / milliseconds(rows[0])) / growth, math.hypot(*map(noise, rows)) / growth


def near_linear(sources: Sources) -> Reading:
    """Whether the time of Linear-InfSA grows about in proportion to N where launches no longer count."""
    found, _ = exponent("infsa_linear", sources)
    detail = f"time ~ N^{found:.2f} from {'² to '.join(map(str, LARGEST_SIDES))}²"
    near = float(abs(found - 1) <= NEAR_LINEAR)
    return Reading(near, 0.0, machine(sources), detail, same=True, file=sources.bench_name)


def table1() -> list[Claim]:
    """Parameters, times against softmax (unfused), energy, the largest image."""
    claims = []
    for config, fields in CONFIGS.items():
        printed, depth = paper()["table1"]["rows"][config], config.split("-")[0]
        labels = {name: LABELS.get(name, row["label"]) for name, row in printed.items()}
        group = f"{depth}, parameters"
        for name, row in printed.items():
            read = partial(parameters, config, name)
            claims.append(
                Claim(f"{labels[name]} {group}", "value", row["parameters_m"], read, "M", 0.05, group, PARAMETERS)
            )
        for mode, side, column in (("infer", 1024, "infer_ms"), ("train", 512, "train_ms")):
            shared = f"{depth}, {mode} {side}², {FASTER}"
            for name, row in printed.items():
                size = printed["softmax"][column] / row[column]
                if size > 1.05:  # otherwise the paper itself shows no gain
                    read = partial(ratio, "softmax-naive", OURS[name], milliseconds, side, fields, mode)
                    claims.append(Claim(f"{labels[name]} {shared}", "ratio", round(size, 2), read, "×", group=shared))
        linear, vit = printed["infsa_linear"], printed["softmax"]
        for mode, side in (("infer", 1024), ("train", 512)):
            size = vit[f"{mode}_joules"] / linear[f"{mode}_joules"]
            read = partial(ratio, "softmax-naive", "infsa_linear", joules, side, fields, mode)
            what = f"Linear {depth}, {mode} {side}², less energy than softmax (unfused)"
            claims.append(Claim(what, "ratio", round(size, 2), read, "×"))
        for mode, side in (("infer", 1024), ("train", 512)):
            read = partial(absolute, "infsa_linear", milliseconds, side, fields, mode)
            what = f"Linear {depth}, {mode} {side}²"
            claims.append(Claim(what, "value", linear[f"{mode}_ms"], read, "ms", 0.005))
    rows = paper()["table1"]["rows"]["4L-64H"]
    times = [rows[name]["infer_ms"] / rows["infsa_linear"]["infer_ms"] for name in PEERS]
    return [
        *claims,
        Claim("Linear 4L, infer 1024², faster than the best sub-quadratic peer", "ratio", round(min(times), 2),
              partial(lead, milliseconds, FOUR, PEERS), "×"),
        Claim("Linear 4L, infer 1024², faster than the slowest sub-quadratic peer", "ratio", round(max(times), 2),
              partial(lead_over_last, milliseconds, FOUR, PEERS), "×"),
        Claim("all but Linear run out of 40 GB above 1024²", "statement", 1, partial(others_run_out, 2048),
              topic=LARGEST),
    ]  # fmt: skip


def dashboard() -> list[Claim]:
    """Speed-up, throughput and energy of Linear InfViT-4L at 1024²."""
    said = paper()["dashboard"]

    def throughput(row: Row) -> float:
        return 1e3 / milliseconds(row)

    times = partial(ratio, "softmax-naive", "infsa_linear", milliseconds, 1024, FOUR, "infer")
    return [
        Claim("speed-up over softmax (unfused)", "ratio", said["speed_up"], times, "×",
              same_as=("table1", f"Linear 4L, infer 1024², {FASTER}")),
        Claim("throughput", "value", said["images_per_s"],
              partial(absolute, "infsa_linear", throughput, 1024, FOUR, "infer"), "images/s", 0.5,
              same_as=("table1", "Linear 4L, infer 1024²")),
        Claim("energy per image", "value", said["joules"],
              partial(absolute, "infsa_linear", joules, 1024, FOUR, "infer"), "J", 0.005),
    ]  # fmt: skip


def tiers() -> list[Claim]:
    """Throughput and energy by claimed complexity, 4 layers at 1024²."""
    said, rows = paper()["tiers"], paper()["table1"]["rows"]["4L-64H"]
    best_ms, best_j = (min(rows[name][column] for name in OTHERS) for column in ("infer_ms", "infer_joules"))
    linear = rows["infsa_linear"]
    return [
        Claim("Linear has the highest throughput: lead over the next", "ratio",
              round(best_ms / linear["infer_ms"], 2), partial(lead, milliseconds, FOUR, OTHERS), "×",
              same_as=("table1", "Linear 4L, infer 1024², faster than the best sub-quadratic peer")),
        Claim("Linear has the lowest energy: lead over the next", "ratio",
              round(best_j / linear["infer_joules"], 2), partial(lead, joules, FOUR, OTHERS), "×"),
        Claim("O(N d) mechanisms, speed-up", "ratio", sum(said["speed_up_nd"]) / 2,
              partial(tier, said["nd"]), "×"),
        Claim("O(N d²) mechanisms, speed-up", "ratio", sum(said["speed_up_nd2"]) / 2,
              partial(tier, said["nd2"]), "×"),
        Claim("O(N d) mechanisms, faster than O(N d²)", "ratio",
              round(sum(said["speed_up_nd"]) / sum(said["speed_up_nd2"]), 2),
              lambda sources: divided(tier(said["nd"], sources), tier(said["nd2"], sources)), "×"),
    ]  # fmt: skip


def depth() -> list[Claim]:
    """Four layers against twenty-four."""
    said, tables = paper()["depth"], paper()["table1"]["rows"]
    rows = tables["24L-16H"]
    best_ms, best_j = (min(rows[name][column] for name in OTHERS) for column in ("infer_ms", "infer_joules"))
    four, deep = (tables[c]["softmax"]["infer_ms"] / tables[c]["infsa_linear"]["infer_ms"] for c in CONFIGS)
    extreme_sizes = paper()["extreme"]

    def slower(side: int, sources: Sources) -> Reading:
        wanted = [("infsa_linear", side, "infer", fields) for fields in (DEEP, FOUR)]
        return quotient(wanted, milliseconds, sources)

    def narrows(sources: Sources) -> Reading:
        speed_ups = [
            ratio("softmax-naive", "infsa_linear", milliseconds, 1024, fields, "infer", sources)
            for fields in (FOUR, DEEP)
        ]
        return divided(*speed_ups)

    return [
        Claim("Linear, throughput of 4L over 24L", "ratio",
              round(said["images_per_s_4l"] / said["images_per_s_24l"], 2), partial(slower, 1024), "×"),
        Claim("Linear at 9216², time of 24L over 4L", "ratio",
              round(extreme_sizes["infer_9216_deep_ms"] / extreme_sizes["infer_9216_ms"], 2),
              partial(slower, 9216), "×"),
        Claim("Linear leads at 24L too: lead over the next", "ratio",
              round(best_ms / rows["infsa_linear"]["infer_ms"], 2), partial(lead, milliseconds, DEEP, OTHERS), "×"),
        Claim("Linear 24L, lowest energy: lead over the next", "ratio",
              round(best_j / rows["infsa_linear"]["infer_joules"], 2), partial(lead, joules, DEEP, OTHERS), "×"),
        Claim("the speed-up over softmax (unfused) narrows with depth: 4L over 24L", "ratio", round(four / deep, 2),
              narrows, "×"),
    ]  # fmt: skip


def latency() -> list[Claim]:
    """Latency against resolution."""

    def steeper(sources: Sources) -> Reading:
        (fused, first), (linear, second) = (exponent(name, sources) for name in ("softmax-cudnn", "infsa_linear"))
        detail, error = f"N^{fused:.2f} (cuDNN) against N^{linear:.2f}", math.hypot(first, second)
        return Reading(fused - linear, error, machine(sources), detail, same=True, file=sources.bench_name)

    wanted: list[tuple[str, int, str, dict[str, Any]]] = [
        (name, 9216, "infer", FOUR) for name in ("softmax-cudnn", "infsa_linear")
    ]
    return [
        Claim(f"Linear scales near-linearly (exponent within {NEAR_LINEAR} of 1)", "statement", 1, near_linear),
        Claim("exponent of softmax (fused, cuDNN) above that of Linear", "difference", None, steeper),
        Claim("softmax (fused, cuDNN) at 332k tokens: times slower than Linear", "ratio", None,
              partial(quotient, wanted, milliseconds), "×"),
        Claim("softmax (fused) stops at about 50,000 tokens", "statement", 1, fused_ceiling, topic=LARGEST),
    ]  # fmt: skip


def extreme() -> list[Claim]:
    """4096² training and 9216² inference."""
    said = paper()["extreme"]
    found = [
        (f"Linear {depth}, {mode} {side}²", f"{mode}_{side}{suffix}", side, fields, mode)
        for depth, mode, side, fields, suffix in (
            ("4L", "infer", 9216, FOUR, ""), ("4L", "train", 4096, FOUR, ""), ("24L", "infer", 9216, DEEP, "_deep"),
        )
    ]  # fmt: skip
    measures = (("ms", milliseconds, "ms", "time, ms"), ("joules", joules, "J", "energy per image, J"))
    return [
        Claim("Linear 4L completes 9216² inference in 40 GB", "statement", 1, partial(fits, 9216, "infer", FOUR)),
        Claim("Linear 24L completes 9216² inference in 40 GB", "statement", 1, partial(fits, 9216, "infer", DEEP)),
        Claim("Linear 4L trains at 4096² in 40 GB", "statement", 1, partial(fits, 4096, "train", FOUR)),
        Claim("all other mechanisms run out of 40 GB at 9216²", "statement", 1, partial(others_run_out, 9216)),
        *(
            Claim(f"{what}, {label}", "value", said[f"{key}_{name}"],
                  partial(absolute, "infsa_linear", value, side, fields, mode), unit, 0.005, f", {label}", SPEED)
            for what, key, side, fields, mode in found
            for name, value, unit, label in measures
        ),
    ]  # fmt: skip
