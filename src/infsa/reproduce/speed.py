"""Speed, memory and energy: Table 1 and the figures drawn from it."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..bench.cases import NINE, Case
from ..bench.presets import DEEP, FOUR
from ..models import create_model
from .claims import Claim, Reading, Unavailable
from .sources import Sources, paper

CONFIGS: dict[str, dict[str, Any]] = {"4L-64H": FOUR, "24L-16H": DEEP}
OURS = {name: name for name in NINE} | {"softmax": "softmax-naive"}  # the paper's is unfused
A100 = "an A100 with 40 GB"
MEMORY = 40 * 2**30  # bytes of the paper's GPU
NEAR_LINEAR = 0.1  # of the exponent of N
LARGEST_SIDES = (4096, 9216)
Row = dict[str, Any]


def bench_row(sources: Sources, mechanism: str, side: int, mode: str = "infer", **fields: Any) -> Row:
    """A finished row of the benchmark."""
    key = Case(mechanism, size=(side, side), mode=mode, **fields).key
    row = sources.bench()["rows"].get(key)
    if row is None or "latency_ms" not in row:
        why = "was not run" if row is None else row.get("reason") or row["status"]
        raise Unavailable(f"needs the row {key}, which {why}")
    return row


def machine(sources: Sources) -> str:
    """The device of the benchmark."""
    facts = sources.bench()["machines"][-1]
    return str(facts.get("gpu") or facts["cpu"])


def milliseconds(row: Row) -> float:
    """A row's median time."""
    return float(row["latency_ms"]["median"])


def joules(row: Row) -> float:
    """A row's measured energy per image."""
    energy = row.get("energy") or {}
    if not energy.get("source"):
        why = "was not asked for" if "energy" not in row else "could not be counted"
        raise Unavailable(f"needs the energy of this row, which {why}: infsa bench --energy, on a GPU that counts it")
    return float(energy["joules_per_image"])


Value = Callable[[Row], float]


def noise(row: Row) -> float:
    """The relative standard error of a row's time, from the medians of its rounds; 0 if there was one round."""
    rounds = row["latency_ms"].get("rounds", ())
    return statistics.stdev(rounds) / math.sqrt(len(rounds)) / milliseconds(row) if len(rounds) > 1 else 0.0


def marked(conditions: str, rows: Sequence[Row]) -> str:
    """The conditions, with a word if the rounds of a row differ."""
    return conditions + ("; rounds differ" if any(row["latency_ms"].get("drift") for row in rows) else "")


def ratio(over: str, under: str, value: Value, side: int, fields: Row, mode: str, sources: Sources) -> Reading:
    """How many times larger a number of one mechanism is than another's, in one run."""
    rows = [bench_row(sources, name, side, mode, **fields) for name in (over, under)]
    first, second = map(value, rows)
    conditions = marked(f"{machine(sources)}: {first:.3g} against {second:.3g}", rows)
    error = first / second * math.hypot(*map(noise, rows))
    return Reading(first / second, error, conditions, same=True, file=sources.bench_name)


def absolute(mechanism: str, value: Value, side: int, fields: Row, mode: str, sources: Sources) -> Reading:
    """A number of one mechanism, on the GPU of the result file."""
    row = bench_row(sources, mechanism, side, mode, **fields)
    gpu = machine(sources)
    same = "A100" in gpu and "40GB" in gpu
    found, conditions = value(row), marked(gpu, [row])
    return Reading(found, found * noise(row), conditions, same, sources.bench_name, A100, comparable=False)


def lead(value: Value, fields: Row, others: Sequence[str], sources: Sources) -> Reading:
    """How far Linear-InfSA is ahead of the best of the others at 1024²."""
    found = {name: value(bench_row(sources, OURS[name], 1024, **fields)) for name in others}
    best = min(found, key=found.__getitem__)
    reading = ratio(OURS[best], "infsa_linear", value, 1024, fields, "infer", sources)
    kind = " by our fused kernel" if best == "infsa_pure" else ""
    conditions = f"{reading.conditions}; best other: {best}{kind}; softmax unfused, as in the paper"
    return replace(reading, conditions=conditions)


def tier(names: Sequence[str], sources: Sources) -> Reading:
    """The mean speed-up of a tier over unfused softmax, 4 layers at 1024²."""
    found = [ratio("softmax-naive", name, milliseconds, 1024, FOUR, "infer", sources) for name in names]
    conditions = machine(sources) + ": " + ", ".join(f"{n} {x.value:.2f}" for n, x in zip(names, found, strict=True))
    mean, error = statistics.mean(x.value for x in found), math.hypot(*(x.error for x in found)) / len(found)
    return Reading(mean, error, conditions, same=True, file=sources.bench_name)


def tiers_apart(first: Sequence[str], second: Sequence[str], sources: Sources) -> Reading:
    """How many times faster a tier is than another, by the means of their speed-ups."""
    a, b = tier(first, sources), tier(second, sources)
    error = a.value / b.value * math.hypot(a.error / a.value, b.error / b.value)
    conditions = f"{a.conditions} against {b.conditions.removeprefix(machine(sources) + ': ')}"
    return Reading(a.value / b.value, error, conditions, same=True, file=sources.bench_name)


def others_run_out(side: int, sources: Sources) -> Reading:
    """Whether every mechanism but Linear-InfSA needs more than the paper's 40 GB at this resolution."""
    rows = sources.bench()["rows"]
    peaks: dict[str, float | None] = {}
    for name in (*NINE[:-1], "softmax-naive", "softmax-flash", "softmax-cudnn", "infsa_pure-triton"):
        row = rows.get(Case(name, size=(side, side), **FOUR).key)
        if row is not None and (row["status"] == "done" or row.get("ran_out")):
            peaks[name] = row.get("peak_bytes")
    if not peaks:
        raise Unavailable(f"needs rows of other mechanisms at {side}²")
    fit = sorted(name for name, peak in peaks.items() if peak is not None and peak <= MEMORY)
    conditions = f"{machine(sources)}; within 40 GiB at {side}²: {', '.join(fit) or 'none'}"
    return Reading(float(not fit), conditions=conditions, same=True, file=sources.bench_name)


def linear_completes(sources: Sources) -> Reading:
    """Whether Linear InfViT-4L infers a 9216² image within 40 GB."""
    peak = bench_row(sources, "infsa_linear", 9216, **FOUR)["peak_bytes"]
    conditions = f"{machine(sources)}, peak {peak / 2**30:.2f} GiB"
    return Reading(float(peak <= MEMORY), conditions=conditions, same=True, file=sources.bench_name)


def exponent(mechanism: str, sources: Sources) -> tuple[float, float]:
    """The exponent of N in the time of a 4-layer model between its largest sizes, and its error."""
    rows = [bench_row(sources, mechanism, side, **FOUR) for side in LARGEST_SIDES]
    growth = math.log(rows[1]["tokens"] / rows[0]["tokens"])
    return math.log(milliseconds(rows[1]) / milliseconds(rows[0])) / growth, math.hypot(*map(noise, rows)) / growth


def near_linear(sources: Sources) -> Reading:
    """Whether the time of Linear-InfSA grows about in proportion to N where launches no longer count."""
    found, _ = exponent("infsa_linear", sources)
    sides = "² to ".join(map(str, LARGEST_SIDES))
    conditions = f"{machine(sources)}: time ~ N^{found:.2f} from {sides}²"
    near = abs(found - 1) <= NEAR_LINEAR
    return Reading(float(near), conditions=conditions, same=True, file=sources.bench_name)


def parameters(config: str, mechanism: str, sources: Sources) -> Reading:
    """Counted parameters in millions, with the two extra D×D layers of ``paper_params=True``."""
    fields = CONFIGS[config]

    def count() -> dict[str, Any]:
        name = f"infvit_linear_{fields['depth']}l{fields['heads']}h_patch16_224"
        found = {}
        for kind in (True, False):
            with torch.device("meta"):
                model = create_model(name, attention=mechanism, num_heads=fields["heads"], paper_params=kind)
            found["paper" if kind else "plain"] = sum(p.numel() for p in model.parameters()) / 1e6
        return found

    found = sources.computed("parameters", {"config": config, "attention": mechanism}, count)
    known = mechanism in ("softmax", "infsa_pure", "infsa_linear")
    conditions = f"counted, width 1024, paper_params=True; plain model {found['plain']:.2f}"
    needs = "the configuration of this peer, which the paper does not give"
    return Reading(found["paper"], conditions=conditions, same=known, needs=needs)


def table1() -> list[Claim]:
    """Parameters, times against Standard ViT, energy, the largest image."""
    claims = []
    rows = paper()["table1"]["rows"]
    for config, fields in CONFIGS.items():
        printed = rows[config]
        for name, row in printed.items():
            read = partial(parameters, config, name)
            claims.append(
                Claim(f"{row['label']} {config}, parameters", "value", row["parameters_m"], read, "M", 0.05 + 1e-9)
            )
        for name, row in printed.items():
            if name == "softmax":
                continue
            for mode, side, column in (("infer", 1024, "infer_ms"), ("train", 512, "train_ms")):
                paper_ratio = printed["softmax"][column] / row[column]
                if paper_ratio <= 1.05:  # the paper itself shows no gain
                    continue
                read = partial(ratio, "softmax-naive", OURS[name], milliseconds, side, fields, mode)
                what = f"{row['label']} {config}, {mode} {side}², faster than Standard ViT"
                claims.append(Claim(what, "ratio", round(paper_ratio, 2), read, "×"))
        linear, vit = printed["infsa_linear"], printed["softmax"]
        energy = partial(ratio, "softmax-naive", "infsa_linear", joules, 1024, fields, "infer")
        fused = partial(ratio, "softmax-flash", "infsa_linear", milliseconds, 1024, fields, "infer")
        claims += [
            Claim(f"InfViT Linear {config}, less energy than Standard ViT, infer 1024²", "ratio",
                  round(vit["infer_joules"] / linear["infer_joules"], 2), energy, "×"),
            Claim(f"InfViT Linear {config}, infer 1024², faster than softmax in a fused kernel", "ratio",
                  None, fused, "×"),
            Claim(f"InfViT Linear {config}, infer 1024²", "value", linear["infer_ms"],
                  partial(absolute, "infsa_linear", milliseconds, 1024, fields, "infer"), "ms", 0.005),
            Claim(f"InfViT Linear {config}, train 512²", "value", linear["train_ms"],
                  partial(absolute, "infsa_linear", milliseconds, 512, fields, "train"), "ms", 0.005),
        ]  # fmt: skip
    return [
        *claims,
        Claim("all but Linear run out of 40 GB above 1024²", "statement", 1, partial(others_run_out, 2048)),
    ]


def dashboard() -> list[Claim]:
    """Speed-up, throughput and energy of Linear InfViT-4L at 1024²."""
    said = paper()["dashboard"]

    def throughput(row: Row) -> float:
        return 1e3 / milliseconds(row)

    times = partial(ratio, "softmax-naive", "infsa_linear", milliseconds, 1024, FOUR, "infer")
    return [
        Claim("speed-up over Standard ViT", "ratio", said["speed_up"], times, "×"),
        Claim("throughput", "value", said["images_per_s"],
              partial(absolute, "infsa_linear", throughput, 1024, FOUR, "infer"), "images/s", 0.5),
        Claim("energy per image", "value", said["joules"],
              partial(absolute, "infsa_linear", joules, 1024, FOUR, "infer"), "J", 0.005),
    ]  # fmt: skip


def tiers() -> list[Claim]:
    """Throughput and energy by claimed complexity, 4 layers at 1024²."""
    said, rows = paper()["tiers"], paper()["table1"]["rows"]["4L-64H"]
    others = [name for name in NINE if name != "infsa_linear"]
    best_ms, best_j = (min(rows[name][column] for name in others) for column in ("infer_ms", "infer_joules"))
    linear = rows["infsa_linear"]
    return [
        Claim("Linear has the highest throughput: lead over the next", "ratio",
              round(best_ms / linear["infer_ms"], 2), partial(lead, milliseconds, FOUR, others), "×"),
        Claim("Linear has the lowest energy: lead over the next", "ratio",
              round(best_j / linear["infer_joules"], 2), partial(lead, joules, FOUR, others), "×"),
        Claim("O(N d) mechanisms, faster than Standard ViT", "ratio", sum(said["speed_up_nd"]) / 2,
              partial(tier, said["nd"]), "×"),
        Claim("O(N d²) mechanisms, faster than Standard ViT", "ratio", sum(said["speed_up_nd2"]) / 2,
              partial(tier, said["nd2"]), "×"),
        Claim("O(N d) mechanisms, faster than O(N d²)", "ratio",
              round(sum(said["speed_up_nd"]) / sum(said["speed_up_nd2"]), 2),
              partial(tiers_apart, said["nd"], said["nd2"]), "×"),
    ]  # fmt: skip


def depth() -> list[Claim]:
    """Four layers against twenty-four."""
    said, rows = paper()["depth"], paper()["table1"]["rows"]["24L-16H"]
    others = [name for name in NINE if name != "infsa_linear"]
    best = min(rows[name]["infer_ms"] for name in others)

    def slower(sources: Sources) -> Reading:
        rows = [bench_row(sources, "infsa_linear", 1024, **fields) for fields in (DEEP, FOUR)]
        deep, four = map(milliseconds, rows)
        error = deep / four * math.hypot(*map(noise, rows))
        conditions = marked(f"{machine(sources)}: {deep:.3g} against {four:.3g}", rows)
        return Reading(deep / four, error, conditions, same=True, file=sources.bench_name)

    return [
        Claim("Linear, throughput of 4L over 24L", "ratio",
              round(said["images_per_s_4l"] / said["images_per_s_24l"], 2), slower, "×"),
        Claim("Linear leads at 24L too: lead over the next", "ratio", round(best / rows["infsa_linear"]["infer_ms"], 2),
              partial(lead, milliseconds, DEEP, others), "×"),
    ]  # fmt: skip


def latency() -> list[Claim]:
    """Latency against resolution."""

    def steeper(sources: Sources) -> Reading:
        (fused, first), (linear, second) = (exponent(name, sources) for name in ("softmax-cudnn", "infsa_linear"))
        conditions = f"{machine(sources)}: N^{fused:.2f} (cuDNN) against N^{linear:.2f}"
        return Reading(fused - linear, math.hypot(first, second), conditions, same=True, file=sources.bench_name)

    return [
        Claim(f"Linear InfViT scales near-linearly (exponent within {NEAR_LINEAR} of 1)", "statement", 1, near_linear),
        Claim("exponent of softmax (fused) above that of Linear", "difference", None, steeper),
    ]


def extreme() -> list[Claim]:
    """4096² training and 9216² inference."""
    said = paper()["extreme"]
    found = [
        ("Linear 4L, infer 9216²", "infer_9216_ms", milliseconds, 9216, FOUR, "infer"),
        ("Linear 4L, train 4096²", "train_4096_ms", milliseconds, 4096, FOUR, "train"),
        ("Linear 24L, infer 9216²", "infer_9216_deep_ms", milliseconds, 9216, DEEP, "infer"),
        ("Linear 4L, infer 9216², energy per image", "infer_9216_joules", joules, 9216, FOUR, "infer"),
        ("Linear 24L, infer 9216², energy per image", "infer_9216_deep_joules", joules, 9216, DEEP, "infer"),
        ("Linear 4L, train 4096², energy per image", "train_4096_joules", joules, 4096, FOUR, "train"),
    ]
    return [
        Claim("Linear 4L completes 9216² inference in 40 GB", "statement", 1, linear_completes),
        Claim("all other mechanisms run out of 40 GB at 9216²", "statement", 1, partial(others_run_out, 9216)),
        *(
            Claim(what, "value", said[key], partial(absolute, "infsa_linear", value, side, fields, mode),
                  "J" if value is joules else "ms", 0.005)
            for what, key, value, side, fields, mode in found
        ),
    ]  # fmt: skip
