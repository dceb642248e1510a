"""What the pages say in words about speed follows from the committed benchmarks."""

import math
import re
import statistics
from functools import cache

import pytest
from pages.paper_table import crossover_table

from infsa.bench.scaling import groups_of_sizes, median, memory_slopes, series, slopes
from infsa.files import read_json

from .test_sentences import RESULTS, marked

PEERS = ("linformer", "performer", "soft", "flatten", "agent", "mlla")
QUADRATIC = ("softmax-naive", "softmax-flash", "softmax-cudnn")


@cache
def bench():
    return read_json(RESULTS / "bench-h200.json")["rows"]


def timed(name, side, mode="infer", config="4L-64H", compiled=""):
    row = bench()[f"model/{config}/{mode}/{side}x{side}/b1/bfloat16{compiled}/{name}"]
    return row["latency_ms"]["median"]


def joule(name, config="4L-64H"):
    return bench()[f"model/{config}/infer/1024x1024/b1/bfloat16/{name}"]["energy"]["joules_per_image"]


def graph(name, config="4L-64H"):
    return timed(name, 1024, config=config, compiled="/reduce-overhead")


def peak(name, side):
    return bench()[f"model/4L-64H/infer/{side}x{side}/b1/bfloat16/{name}"].get("peak_bytes", math.inf) / 2**30


def attention(heads, method):
    rows = [r for r in read_json(RESULTS / "kernels-h200.json")["pure"] if r["n"] == 4096 and r["heads"] == heads]
    return next(r for r in rows if r["passes"] == "forward")["times"][method]["ms"]


def sizes(part):
    """Inference of one layer or of whole models, eager, at all sizes."""
    name = {"model": "model 4L-64H", "attention": "attention 1L-64H"}[part]
    return groups_of_sizes(bench().values())[f"{name}, infer, batch 1, bfloat16"]


def fewer_macs(name, side):
    """How many times fewer multiply-adds Linear-InfSA needs, logarithmic, over how many times faster it is."""
    ours, theirs = (
        bench()[f"model/4L-64H/infer/{side}x{side}/b1/bfloat16/{which}"] for which in ("infsa_linear", name)
    )
    return math.log(theirs["macs"] / ours["macs"]) / math.log(median(theirs) / median(ours))


def layer_exponents():
    found = {name: fit.value for name, fit in slopes(sizes("attention"), 3).items()}
    quadratic = ("infsa_pure", *QUADRATIC[1:])
    return all(1.9 < found[name] < 2.1 for name in quadratic) and all(0.95 < found[name] < 1.05 for name in PEERS)


def layer_times():
    return dict(series(sizes("attention"), median)["infsa_linear"])


def older(row):
    """What was not measured again with the rest of the file."""
    case, again = row["case"], ("infsa_linear", "linformer", "flatten", "agent")
    large = case["size"][0] == 9216 and case["mechanism"] in ("infsa_pure", "softmax-cudnn")
    return (
        case["limit"]
        or case["width"] == 768
        or large
        or (case["part"], case["mechanism"] in again) == ("attention", False)
    )


def verdict(claim, target="table1"):
    rows = read_json(RESULTS / "ledger.json")["targets"][target]["rows"]
    return next(row["verdict"] for row in rows if row["claim"] == claim)


SENTENCES = {
    "older-rows-marked": lambda: all(row.get("earlier", False) == older(row) for row in bench().values()),
    "third-of-rows-uncertain": lambda: (
        0.3 < statistics.mean(r["latency_ms"]["drift"] for r in bench().values() if "latency_ms" in r) < 0.37
    ),
    "thirteen-times-unfused": lambda: (
        12 < timed("softmax-naive", 1024) / timed("infsa_linear", 1024) < 16
        and joule("softmax-naive") / joule("infsa_linear") > 16
        and verdict("Linear 4L, infer 1024², faster than softmax (unfused)") == "inconclusive"
        and verdict("Linear 4L, infer 1024², less energy than softmax (unfused)") == "larger than claimed"
    ),
    "cudnn-fastest": lambda: all(
        timed("softmax-cudnn", 1024, config=config) < timed("softmax-flash", 1024, config=config)
        for config in ("4L-64H", "24L-16H")
    ),
    "fused-eager-one-and-a-half": lambda: all(
        1.4 < timed(name, 1024) / timed("infsa_linear", 1024) < 1.7 for name in QUADRATIC[1:]
    ),
    "fused-compiled-four-energy-three": lambda: (
        3.7 < graph("softmax") / graph("infsa_linear") < 4.5
        and all(2.7 < joule(name) / joule("infsa_linear") < 3.3 for name in QUADRATIC[1:])
    ),
    "pure-fastest-eager": lambda: (
        timed("infsa_pure", 1024) < min(timed(name, 1024) for name in (*PEERS, *QUADRATIC, "infsa_linear"))
    ),
    "peers-d2-faster-than-d": lambda: all(
        max(map(time, ("performer", "flatten", "mlla"))) < min(map(time, ("linformer", "soft", "agent")))
        for time in (graph, lambda name: timed(name, 1024), joule)
    ),
    "wide-heads-suit-softmax": lambda: all(
        attention(16, method) < attention(64, method) / 3 for method in ("sdpa_flash", "sdpa_cudnn")
    ),
    "24l-fused-softmax-first": lambda: (
        max(timed(name, 1024, config="24L-16H") for name in QUADRATIC[1:])
        < min(timed(name, 1024, config="24L-16H") for name in (*PEERS, "infsa_pure", "infsa_linear"))
    ),
    "24l-compiled-two-energy-one-and-a-half": lambda: (
        1.7 < graph("softmax", "24L-16H") / graph("infsa_linear", "24L-16H") < 2.3
        and 1.3 < joule("softmax-flash", "24L-16H") / joule("infsa_linear", "24L-16H") < 1.7
    ),
    "train-512-linear-slower": lambda: (
        all(
            timed(name, 512, "train", config) > max(timed(other, 512, "train", config) for other in QUADRATIC)
            for name in (*PEERS, "infsa_linear")
            for config in ("4L-64H", "24L-16H")
        )
        and all(
            verdict(f"Linear {depth}, train 512², faster than softmax (unfused)") == "inconclusive"
            for depth in ("4L", "24L")
        )
    ),
    "linear-over-peers-large": lambda: all(
        3.4 < timed(name, side) / timed("infsa_linear", side) < 6 for name in PEERS for side in (4096, 9216)
    ),
    "pure-then-softmax-large": lambda: all(
        max(timed(name, side) for name in PEERS) < timed("infsa_pure", side) < timed("softmax-cudnn", side)
        for side in (4096, 9216)
    ),
    "train-4096-same-tiers": lambda: (
        3 * timed("infsa_linear", 4096, "train") < min(timed(name, 4096, "train") for name in PEERS)
        and 3 * max(timed(name, 4096, "train") for name in PEERS) < timed("infsa_pure", 4096, "train")
        and 2 * timed("infsa_pure", 4096, "train") < timed("softmax-cudnn", 4096, "train")
    ),
    "linformer-512-slower": lambda: timed("linformer", 512) > timed("linformer", 1024) > 1.9 * graph("linformer"),
    "40gb-only-unfused": lambda: all(
        (peak(name, 2048) > 40) == (name == "softmax-naive") for name in (*PEERS, *QUADRATIC, "infsa_pure")
    ),
    "memory-proportional": lambda: all(
        (fit.value < 1.1) == (name != "softmax-naive") and fit.value > 0.9
        for name, fit in memory_slopes(sizes("model")).items()
        if fit is not None  # measured at fewer than three sizes
    ),
    "macs-explain-less-than-half": lambda: all(fewer_macs(name, side) < 0.5 for name in PEERS for side in (4096, 9216)),
    "faster-than-peers-from-512": lambda: all(
        timed(name, side) > timed("infsa_linear", side) for name in PEERS for side in (512, 1024, 2048, 4096, 9216)
    ),
    "layer-exponents": layer_exponents,
    "linear-layer-launch-bound": lambda: layer_times()[147457] < 3 * layer_times()[4097],
    "harness-within-one-percent": lambda: all(
        abs(check["ratio"] - 1) < 0.01 for check in read_json(RESULTS / "bench-h200.json")["checks"]
    ),
    "40gb-9216-linformer": lambda: all(
        (peak(name, 9216) > 40) == (name in ("linformer", "softmax-naive"))
        for name in (*PEERS, "softmax-cudnn", "softmax-naive", "infsa_pure", "infsa_linear")
    ),
}


def kernels(part="pure", file="kernels-h200", **fields):
    rows = read_json(RESULTS / f"{file}.json")[part]
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]


def host(method, passes):
    """Microseconds that an eager call takes the host."""
    return statistics.median(row[f"{passes}_us"] for row in kernels("eager", "pure-h200", method=method))


def growth(**fields):
    return kernels("growth", "kernels-growth-h200", width=64, **fields)


def layers(impl):
    rows = read_json(RESULTS / "linear-choice-h200.json")["rows"]
    return {
        (r["n"], r["dtype"]): (r["forward_ms"], r["both_ms"]) for r in rows if (r["what"], r["impl"]) == ("layer", impl)
    }


def training(case, file="eager-h200"):
    """Time of a training step of a Linear model over that of our ViT, eager."""
    found = read_json(RESULTS / f"{file}.json")["rows"][case]
    return found["linear"]["train"]["ms"] / found["vit"]["train"]["ms"]


EAGER = ("eager-h200", "eager-busy-h200")  # the second on a host that others kept busy


def any_size():
    return read_json(RESULTS / "any-size-h200.json")


KERNELS = {
    "pure-forward-faster": lambda: (
        all(min(row["ratios"][name] for name in ("sdpa_flash", "sdpa_cudnn")) > 1 for row in kernels(passes="forward"))
        and all(row["ratio"] < 1 for row in kernels("attention", "pure-h200", passes="forward"))
    ),
    "pure-short-slower": lambda: all(
        row["times"]["sdpa_cudnn"]["ms"] < row["times"]["infsa"]["ms"] for row in growth(n=1024)
    ),
    "pure-both-faster-than-flash": lambda: all(row["ratios"]["sdpa_flash"] > 1 for row in kernels(passes="both")),
    "pure-both-cudnn": lambda: all(
        1 < row["ratio"] < 1.05 if row["width"] == 128 else row["ratio"] < 1
        for row in kernels("attention", "pure-h200", passes="both")
    ),
    "pure-memory-third": lambda: all(
        0.3 < row["memory"]["sdpa_cudnn"] < 0.36 and row["memory"]["sdpa_flash"] < 0.36
        for row in kernels(passes="both")
    ),
    "linear-fused-faster": lambda: all(
        a < b for case, ours in layers("fused").items() for a, b in zip(ours, layers("chunked")[case], strict=True)
    ),
    "pure-host-twice": lambda: (
        all(
            1.5 < host(name, passes) / host("softmax, fused (SDPA)", passes) < 2
            for name in ("Pure InfSA", "Pure InfSA, causal")
            for passes in ("forward", "both")
        )
        and all(
            1.7 < rows["pure"][passes]["us"] / rows["sdpa"][passes]["us"] < 2.5
            for rows in (read_json(RESULTS / f"{file}.json")["rows"]["attention"] for file in EAGER)
            for passes in ("forward", "both")
        )
    ),
    "eager-linear-training": lambda: (
        max(training(case, file) for case in ("24 224 64", "24 1024 4") for file in EAGER) < 0.8
        and max(training("4 224 64", file) for file in EAGER) < 1.01
        and 0.95 < training("24 512 1", EAGER[0]) < 1.05
        and 1.2 < training("24 512 1", EAGER[1]) < 1.3
    ),
    "flex-eight-times": lambda: all(
        8 < row["times"]["flex_relu"]["ms"] / row["times"]["infsa"]["ms"] < 9 for row in kernels("flex")
    ),
    "fast-new-size": lambda: any_size()["bars"]["first call of a new size, worst, s"]["value"] < 1 / 20,
    "fast-second-call": lambda: any_size()["bars"]["second call / a model of that size alone, worst"]["value"] < 1.25,
    "fast-fp8": lambda: (
        0.72 < any_size()["fixed"]["9216 fp8"]["ms"] / any_size()["fixed"]["9216"]["ms"] < 0.77
        and any_size()["fixed"]["9216 fp8"]["relative"] < 0.1
    ),
}


def fast(kind):
    """Milliseconds of inference at 1024² through ``fast``: 4 layers, the ViT with 16 heads."""
    return read_json(RESULTS / "models-h200.json")["rows"][f"{kind} fast infer 1024"]["ms"]


def crossovers():
    """One sentence on several pages: from how many tokens on Linear-InfSA is faster than fused softmax."""
    table = crossover_table(read_json(RESULTS / "bench-h200.json"))
    fused = next(cells for label, *cells in table.rows if label.startswith("softmax") and "unfused" not in label)
    deep = timed("infsa_linear", 1024, config="24L-16H")
    said = (("800²", "2,500"), ("300²", "350"), ("1100²", "5,000"))
    return all(
        f"from {size} ({tokens} tokens)" in cell for (size, tokens), cell in zip(said, fused, strict=True)
    ) and deep > max(timed(name, 1024, config="24L-16H") for name in QUADRATIC[1:])


def over_timm(case, mode):
    """Time of a Linear model over that of timm's ViT of the same depth, eager."""
    found = read_json(RESULTS / "eager-h200.json")["rows"][case]
    return found["linear"][mode]["ms"] / found["timm"][mode]["ms"]


def timm_rows():
    """The table of the FAQ: time of a Linear model over that of timm's ViT, 24 layers, by size and batch."""
    return [
        f"| {side}², {batch} | {over_timm(case, 'train'):.2f} | {over_timm(case, 'infer'):.2f} |"
        for side, batch in ((224, 64), (512, 1), (1024, 4))
        for case in (f"24 {side} {batch}",)
    ]


def uncertain(case, kind, mode):
    """The distance of repeats over their mean."""
    found = read_json(RESULTS / "eager-h200.json")["rows"][case][kind][mode]
    return found["spread"] / found["ms"]


def faster_than_timm():
    """The rows stand on the page, and above 1 are only those of one image."""
    page = (RESULTS.parents[1] / "docs" / "faq.md").read_text(encoding="utf-8")
    one = [over_timm("24 512 1", mode) for mode in ("train", "infer")]
    many = [over_timm(case, mode) for case in ("24 224 64", "24 1024 4") for mode in ("train", "infer")]
    return "\n".join(timm_rows()) in page and max(many) < 1 < min(one)


def gibibytes():
    """Peaks of GPU memory that the FAQ names: 9216² in inference, then 4096² in training."""
    rows, quick = bench(), read_json(RESULTS / "models-h200.json")["rows"]
    streamed = read_json(RESULTS / "streaming-gpu.json")["gpu"]["rows"]
    case = "{}/infer/9216x9216/b1/bfloat16/{}"
    found = [
        rows[f"model/{case.format('4L-64H', 'infsa_linear')}"]["peak_bytes"],
        quick["linear fast infer 9216"]["peak_bytes"],
        min(row["device_peak"] for row in streamed if row["dtype"] == "torch.bfloat16"),
        rows[f"model/{case.format('4L-64H', 'infsa_pure')}"]["peak_bytes"],
        quick["pure fast infer 9216"]["peak_bytes"],
        rows[f"model/{case.format('24L-16H', 'infsa_linear')}"]["peak_bytes"],
        rows["model/4L-64H/train/4096x4096/b1/bfloat16/infsa_linear"]["peak_bytes"],
        quick["linear fast train 4096"]["peak_bytes"],
    ]
    return [f"{value / 2**30:.1f}" for value in found]


def said_gibibytes():
    page = (RESULTS.parents[1] / "docs" / "faq.md").read_text(encoding="utf-8")
    return re.findall(r"([\d.]+) GiB", page.partition("## How much GPU memory")[2].partition("\n## ")[0])


CROSSOVERS = {"crossovers": crossovers}
FAQ = {
    "faster-than-timm": faster_than_timm,
    "eager-512-uncertain": lambda: min(uncertain("24 512 1", "linear", mode) for mode in ("train", "infer")) > 0.5,
    "deep-eager-against-compiled": lambda: (
        timed("infsa_linear", 1024, config="24L-16H") > 2 * timed("softmax-cudnn", 1024, config="24L-16H")
        and 1.7 < graph("softmax", "24L-16H") / graph("infsa_linear", "24L-16H") < 2.3
        and verdict("Linear 24L, infer 1024², faster than softmax (unfused)") == "inconclusive"
    ),
    "memory-9216": lambda: said_gibibytes()[:6] == gibibytes()[:6],
    "memory-train-4096": lambda: said_gibibytes()[6:] == gibibytes()[6:],
}
FRONT = {
    "thirteen-times-unfused": SENTENCES["thirteen-times-unfused"],
    "fused-compiled-four": lambda: (
        SENTENCES["fused-eager-one-and-a-half"]()
        and SENTENCES["fused-compiled-four-energy-three"]()
        and 1.8 < fast("vit") / fast("linear") < 2.3
    ),
}
PAGES = {
    "README.md": FRONT,
    "docs/benchmarks.md": SENTENCES | {"fused-compiled-four": FRONT["fused-compiled-four"]},
    "docs/kernels.md": KERNELS,
    "docs/choosing.md": CROSSOVERS,
    "docs/faq.md": FAQ,
}


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, found in PAGES.items() for name in found])
def test_sentences_hold(page, name):
    assert name in marked(page)
    assert PAGES[page][name]()
