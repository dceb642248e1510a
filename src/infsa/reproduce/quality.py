"""What attention maps are worth: removal, boxes, alignment, ablations, accuracy."""

import math
from functools import partial
from typing import Any

from ..report.published import published
from .claims import Claim, Reading, Unavailable
from .sources import Sources, paper

QUALITY, ALIGNMENT, ABLATION = "attention-quality.json", "alignment.json", "ablation.json"
SHARDS = ("tiny-imagenet-a.json", "tiny-imagenet-b.json")
IMAGENET = "ImageNet-1K and 300 epochs of training for every model"
SMALL = "6 layers, 64 px, 50 classes of Tiny-ImageNet"
LABELS = {"softmax": "Standard ViT", "infsa_pure": "Pure InfSA", "infsa_linear": "Linear InfSA"}
Summary = dict[str, Any]


def measured(sources: Sources, group: str, metric: str) -> tuple[float, float]:
    """A quality number in percent and its standard error over seeds."""
    found = sources.file(QUALITY)["groups"][group]
    removal, boxes = found["removal"]["mean"]["methods"]["last"], found["boxes"]["rules"]["centre"]["methods"]["last"]
    cells = {"morf": removal["aoc"], "lerf": removal["lerf_auc"], "over_random": removal["aoc_over_random"]}
    cell = (cells | {"roc": boxes["roc"], "pr": boxes["ap"], "pointing": boxes["pointing"]})[metric]
    return 100 * cell["mean"], 100 * cell["over_runs"] / math.sqrt(found["runs"])


def value_of(group: str, metric: str, sources: Sources) -> Reading:
    """A quality number of one mechanism."""
    value, error = measured(sources, group, metric)
    conditions = f"{SMALL}, {sources.file(QUALITY)['groups'][group]['runs']} runs"
    return Reading(value, error, conditions, needs=IMAGENET, file=QUALITY)


def gap(first: str, second: str, metric: str, sources: Sources) -> Reading:
    """How far one mechanism is above another."""
    (a, a_error), (b, b_error) = (measured(sources, group, metric) for group in (first, second))
    runs = sources.file(QUALITY)["groups"][first]["runs"]
    conditions = f"{SMALL}, {runs} runs each: {a:.1f} against {b:.1f}"
    return Reading(a - b, math.hypot(a_error, b_error), conditions, needs=IMAGENET, file=QUALITY)


def quality() -> list[Claim]:
    """The bars: MoRF-AOC, ROC-AUC and PR-AUC against Standard ViT, and each against the model's own random order."""
    said = paper()["quality"]["groups"]
    names = {"morf": "MoRF-AOC", "roc": "ROC-AUC", "pr": "PR-AUC"}
    claims = []
    for group in ("infsa_linear", "infsa_pure"):
        for metric, label in names.items():
            size = round(said[group][metric] - said["softmax"][metric], 1)
            what = f"{LABELS[group]} above Standard ViT, {label}"
            claims.append(Claim(what, "difference", size, partial(gap, group, "softmax", metric), "points"))
    what = "Linear InfSA above Standard ViT, MoRF-AOC over the random order of the same model"
    return [*claims, Claim(what, "difference", None, partial(gap, "infsa_linear", "softmax", "over_random"), "points")]


def curves(metrics: dict[str, str]) -> list[Claim]:
    """The values that the curves of the supplement carry, and who leads."""
    said = paper()["quality"]["groups"]
    claims = []
    for metric, label in metrics.items():
        for group, values in said.items():
            if metric in values:
                read = partial(value_of, group, metric)
                claims.append(Claim(f"{LABELS[group]}, {label}", "value", values[metric], read, "%", 0.05))
    return claims


def morf_roc() -> list[Claim]:
    """MoRF and ROC curves; Linear leads in MoRF, Pure in ROC."""
    said = paper()["quality"]["groups"]
    leads = [
        Claim("Linear leads in MoRF-AOC: lead over Pure", "difference",
              round(said["infsa_linear"]["morf"] - said["infsa_pure"]["morf"], 1),
              partial(gap, "infsa_linear", "infsa_pure", "morf"), "points"),
        Claim("Pure leads in ROC-AUC: lead over Linear", "difference",
              round(said["infsa_pure"]["roc"] - said["infsa_linear"]["roc"], 1),
              partial(gap, "infsa_pure", "infsa_linear", "roc"), "points"),
    ]  # fmt: skip
    return curves({"morf": "MoRF-AOC", "roc": "ROC-AUC"}) + leads


def lerf_pr() -> list[Claim]:
    """LeRF and precision-recall curves; Pure leads in LeRF, Linear in PR."""
    leads = [
        Claim(f"Pure leads in LeRF-AUC: lead over {LABELS[other]}", "difference", None,
              partial(gap, "infsa_pure", other, "lerf"), "points")
        for other in ("softmax", "infsa_linear")
    ]  # fmt: skip
    said = paper()["quality"]["groups"]
    lead = Claim("Linear leads in PR-AUC: lead over Pure", "difference",
                 round(said["infsa_linear"]["pr"] - said["infsa_pure"]["pr"], 1),
                 partial(gap, "infsa_linear", "infsa_pure", "pr"), "points")  # fmt: skip
    return [*curves({"lerf": "LeRF-AUC", "pr": "PR-AUC"}), *leads, lead]


def maps() -> list[Claim]:
    """Focus on the object: how often the highest patch lies in the box."""
    return [
        Claim(f"{LABELS[group]} on the object more often than Standard ViT (pointing game)", "difference", None,
              partial(gap, group, "softmax", "pointing"), "points")
        for group in ("infsa_pure", "infsa_linear")
    ]  # fmt: skip


def alignment() -> list[Claim]:
    """Agreement of Linear-InfSA's vector with the Perron vector."""
    said = paper()["alignment"]

    def group(sources: Sources) -> Summary:
        found = sources.file(ALIGNMENT)["groups"]["infsa_linear"]
        return found["all_layers"] | {"runs": found["runs"]}

    def read(measure: str, sources: Sources) -> Reading:
        found = group(sources)
        a, uniform = (found[measure][name]["mean"] for name in ("a", "uniform"))
        error = found[measure]["a"]["over_runs"] / math.sqrt(found["runs"])
        spread = found[measure]["a"]["over_images"]
        conditions = f"{SMALL}, {found['runs']} runs, all layers; deviation over heads {spread:.3f}; "
        conditions += f"the uniform vector scores {uniform:.3f}"
        return Reading(a, error, conditions, needs=IMAGENET, file=ALIGNMENT)

    def above(sources: Sources) -> Reading:
        found = group(sources)["cosine"]
        error = math.hypot(found["a"]["over_runs"], found["uniform"]["over_runs"]) / math.sqrt(group(sources)["runs"])
        return Reading(found["a"]["mean"] - found["uniform"]["mean"], error, SMALL, file=ALIGNMENT)

    def none_degenerate(sources: Sources) -> Reading:
        found = group(sources)
        bad, all_heads = found["degenerate"]["mean"], found["samples"]["mean"]
        conditions = f"{SMALL}: {bad:.1f} of {all_heads:.0f} heads and images without a Perron vector"
        return Reading(float(bad == 0), conditions=conditions, file=ALIGNMENT)

    return [
        *(
            Claim(f"{name} of a and the Perron vector", "value", said[key]["mean"], partial(read, key),
                  tolerance=said[key]["deviation"])
            for key, name in (("cosine", "cosine"), ("spearman", "Spearman correlation"))
        ),
        Claim("a nearer to the Perron vector than the uniform vector, cosine", "difference", None, above),
        Claim("no degenerate heads", "statement", 1, none_degenerate),
    ]  # fmt: skip


def ablation() -> list[Claim]:
    """γ and activation of Linear InfViT."""
    said = paper()["ablation"]
    names = {
        "top1": "top1",
        "morf": "morf_aoc",
        "lerf": "lerf_auc",
        "roc": "roc_auc",
        "epochs": "epochs_to_convergence",
    }

    def point(sources: Sources, **wanted: Any) -> tuple[dict[str, float], dict[str, float]]:
        file = sources.file(ABLATION)
        for row in file["rows"]:
            if row["point"] == {"gamma": 0.7, "activation": "relu"} | wanted:
                return row["mean"], {key: value / math.sqrt(file["seeds"]) for key, value in row["deviation"].items()}
        raise Unavailable(f"needs {wanted} in {ABLATION}: infsa ablate")

    def lead_over(metric: str, axis: str, winner: Any, others: list[Any], sources: Sources) -> Reading:
        best, best_error = point(sources, **{axis: winner})
        found = {other: point(sources, **{axis: other}) for other in others}
        able = {other: pair for other, pair in found.items() if names[metric] in pair[0]}
        next_best = max(able, key=lambda other: able[other][0][names[metric]])
        value, error = (table[names[metric]] for table in able[next_best])
        without = [str(other) for other in others if other not in able]
        seeds = sources.file(ABLATION)["seeds"]
        conditions = f"{SMALL}, {seeds} seeds; next: {next_best}" + (
            f"; no maps: {', '.join(without)}" if without else ""
        )
        size = 100 * (best[names[metric]] - value)
        return Reading(size, 100 * math.hypot(best_error[names[metric]], error), conditions, file=ABLATION)

    def rises(sources: Sources) -> Reading:
        values = [100 * point(sources, gamma=gamma)[0]["lerf_auc"] for gamma in (0.3, 0.5, 0.7, 0.9)]
        conditions = f"{SMALL}: " + ", ".join(f"{value:.1f}" for value in values)
        return Reading(float(values == sorted(values)), conditions=conditions, file=ABLATION)

    def epochs(sources: Sources) -> Reading:
        mean, error = point(sources)
        conditions = f"{SMALL}; of {sources.file(ABLATION)['recipe']['epochs']} epochs"
        key = names["epochs"]
        return Reading(mean[key], error[key], conditions, needs=IMAGENET, file=ABLATION)

    def lead(label: str, metric: str, axis: str, winner: Any, others: list[Any]) -> Claim:
        table = said[axis]
        size = table[str(winner)][metric] - max(table[str(other)][metric] for other in others)
        read = partial(lead_over, metric, axis, winner, others)
        return Claim(f"{label}: lead over the next", "difference", round(size, 1), read, "points")

    return [
        lead("γ = 0.7 has the best top-1", "top1", "gamma", 0.7, [0.3, 0.5, 0.9]),
        lead("γ = 0.7 has the best MoRF-AOC", "morf", "gamma", 0.7, [0.3, 0.5, 0.9]),
        lead("γ = 0.9 has the best ROC-AUC", "roc", "gamma", 0.9, [0.3, 0.5, 0.7]),
        Claim("LeRF-AUC rises with γ from 0.3 to 0.9", "statement", 1, rises),
        lead("ReLU has the best top-1", "top1", "activation", "relu", ["gelu", "abs"]),
        lead("ReLU has the best MoRF-AOC", "morf", "activation", "relu", ["gelu", "abs"]),
        lead("|x| has the best LeRF-AUC", "lerf", "activation", "abs", ["relu", "gelu"]),
        lead("|x| has the best ROC-AUC", "roc", "activation", "abs", ["relu", "gelu"]),
        Claim("epochs to convergence, γ = 0.7", "value", said["gamma"]["0.7"]["epochs"], epochs, "", 0.5),
        *(
            Claim(f"{mode} at 224², batch 64, γ = 0.7", "value", said["gamma"]["0.7"][key],
                  partial(unavailable, "an A100 with 40 GB: infsa bench --resolution 224 --batch 64"), "ms", 0.5)
            for mode, key in (("train", "train_ms"), ("infer", "infer_ms"))
        ),
    ]  # fmt: skip


def accuracy_gap(first: str, second: str, sources: Sources) -> Reading:
    """Top-1 of one mechanism above another, mean over both shards."""
    gaps, variance, listed = [], 0.0, []
    for file in SHARDS:
        means = {}
        for name in (first, second):
            values = [100 * run["top1"] for run in sources.file(file)[name]]
            means[name] = sum(values) / len(values)
            squares = sum((value - means[name]) ** 2 for value in values) / (len(values) - 1)
            variance += squares / len(values) / len(SHARDS) ** 2
        gaps.append(means[first] - means[second])
        listed.append(f"{means[first]:.1f} against {means[second]:.1f}")
    conditions = f"{SMALL}, two disjoint shards: {'; '.join(listed)}"
    return Reading(sum(gaps) / len(gaps), math.sqrt(variance), conditions, needs=IMAGENET, file=", ".join(SHARDS))


def unavailable(needs: str, sources: Sources) -> Reading:
    """No measurement, and what one needs."""
    raise Unavailable(f"needs {needs}")


def classification() -> list[Claim]:
    """Top-1 on ImageNet-1K and ImageNet-V2."""
    base = paper()["classification"]["baseline_top1"]
    rows = {row["method"]: row for row in published()["rows"]}
    names = {"InfViT-Linear (4L)": "infsa_linear", "InfViT-Pure (4L)": "infsa_pure"}
    claims = [
        Claim(f"{method} above a ViT of the same recipe, top-1", "difference",
              round(rows[method]["imagenet_1k"] - base, 1), partial(accuracy_gap, name, "softmax"), "points")
        for method, name in names.items()
    ]  # fmt: skip
    for row in published()["rows"]:
        if row["family"] == "InfSA":
            for key, label in (("imagenet_1k", "ImageNet-1K"), ("imagenet_v2", "ImageNet-V2")):
                needs = IMAGENET + (", and ImageNet-V2" if key == "imagenet_v2" else "")
                what, read = f"{row['method']}, {label} top-1", partial(unavailable, needs)
                claims.append(Claim(what, "value", row[key], read, "%", 0.05))
    return claims


def accuracy_parameters() -> list[Claim]:
    """Accuracy against parameters: the parameters are counted, the accuracies need ImageNet."""
    from .speed import parameters

    configs = {"4L": "4L-64H", "24L": "24L-16H"}
    claims = []
    for row in published()["rows"]:
        if row["family"] == "InfSA":
            kind, _, depth = row["method"].removeprefix("InfViT-").partition(" ")
            read = partial(parameters, configs[depth.strip("()")], f"infsa_{kind.lower()}")
            half = 0.05 if row["parameters_m"] < 100 else 0.5
            claims.append(Claim(f"{row['method']}, parameters", "value", row["parameters_m"], read, "M", half))
    read = partial(unavailable, IMAGENET + ", and ImageNet-V2")
    return [*claims, Claim("all four InfViT exceed every baseline on ImageNet-V2", "statement", 1, read)]
