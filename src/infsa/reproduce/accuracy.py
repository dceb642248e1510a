"""Top-1 accuracy, and accuracy against parameters."""

from functools import partial

from ..report.published import published
from .claims import Claim, Reading, Unavailable
from .conditions import SHARDS, trained
from .counts import parameters
from .quality import IMAGENET, compared
from .quality import LABELS as SHORT
from .sources import Sources, paper
from .topics import PARAMETERS


def accuracy_gap(first: str, second: str, sources: Sources) -> Reading:
    """Top-1 of one mechanism above another, mean over both shards."""
    above, below = (
        {file: [100 * run["top1"] for run in sources.file(file)[name]] for file in SHARDS} for name in (first, second)
    )
    return compared(above, below, trained(sources), ", ".join(SHARDS))


def unavailable(needs: str, sources: Sources) -> Reading:
    """No measurement, and what one needs."""
    raise Unavailable(f"needs {needs}")


def classification() -> list[Claim]:
    """Top-1 on ImageNet-1K and ImageNet-V2."""
    base = paper()["classification"]["baseline_top1"]
    rows = {row["method"]: row for row in published()["rows"]}
    names = {"InfViT-Linear (4L)": "infsa_linear", "InfViT-Pure (4L)": "infsa_pure"}
    claims = [
        Claim(f"{SHORT[name]} 4L above softmax in the same recipe, top-1", "difference",
              round(rows[method]["imagenet_1k"] - base, 1), partial(accuracy_gap, name, "softmax"), "points")
        for method, name in names.items()
    ]  # fmt: skip
    pooling = partial(accuracy_gap, "infsa_linear", "mean")
    what = "Linear is not reducible to pooling: top-1 above mean pooling"
    claims.append(Claim(what, "difference", None, pooling, "points"))
    for kind in ("Linear", "Pure"):
        four, deep = (rows[f"InfViT-{kind} ({depth})"]["imagenet_1k"] for depth in ("4L", "24L"))
        what, read = f"{kind}, 24L above 4L, top-1", partial(unavailable, IMAGENET)
        claims.append(Claim(what, "difference", round(deep - four, 1), read, "points"))
    behind = rows["RAVLT-L"]["imagenet_1k"] - rows["InfViT-Pure (24L)"]["imagenet_1k"]
    needed = partial(unavailable, IMAGENET)
    claims += [
        Claim("InfViT-Pure (24L) behind RAVLT-L, ImageNet-1K top-1", "value", round(behind, 1), needed, "points", 0.05),
        Claim("both InfViT (4L) surpass Agent Attn-B and FLatten on ImageNet-1K", "statement", 1, needed),
    ]
    for row in published()["rows"]:
        if row["family"] == "InfSA":
            for key, label in (("imagenet_1k", "ImageNet-1K"), ("imagenet_v2", "ImageNet-V2")):
                read = partial(unavailable, IMAGENET)
                group = f", {label} top-1"
                claims.append(Claim(f"{row['method']}{group}", "value", row[key], read, "%", 0.05, group))
    return claims


def accuracy_parameters() -> list[Claim]:
    """Accuracy against parameters: the parameters are counted, the accuracies need ImageNet."""
    configs = {"4L": "4L-64H", "24L": "24L-16H"}
    claims = []
    for row in published()["rows"]:
        if row["family"] == "InfSA":
            kind, _, depth = row["method"].removeprefix("InfViT-").partition(" ")
            read = partial(parameters, configs[depth.strip("()")], f"infsa_{kind.lower()}")
            half = 0.05 if row["parameters_m"] < 100 else 0.5
            depth = depth.strip("()")
            what = f"{kind} {depth}, parameters"
            same = ("table1", f"{kind} {depth}, parameters")
            claims.append(Claim(what, "value", row["parameters_m"], read, "M", half, topic=PARAMETERS, same_as=same))
    read = partial(unavailable, IMAGENET)
    return [*claims, Claim("all four InfViT exceed every baseline on ImageNet-V2", "statement", 1, read)]
