"""Tables of the GPU kernels, from the files of ``benchmarks/kernels.py`` and ``benchmarks/models.py``."""

import statistics
from typing import Any

from infsa.report.table import Table

from .kernel_figures import NAMES, Content

NOT_YET = "not yet measured\n"


def kernel_table(kernels: Content | None) -> str:
    """Times of Pure InfSA and fused softmax in Markdown, with the ratios that are asked for."""
    if kernels is None or not kernels.get("pure"):
        return NOT_YET
    others = ("sdpa_cudnn", "sdpa_flash", "plain")
    lines = []
    for row in kernels["pure"]:
        shape = f"H{row['heads']} d{row['width']} N{row['n']}, {row['passes']}"
        times = [_milliseconds(row["times"].get(name, {})) for name in ("infsa", *others)]
        ratios = [f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "–" for name in others[:2]]
        asked = ", ".join(f"{b['asked']} {'met' if b['met'] else 'missed'}" for b in row["bars"].values())
        lines.append([shape, *times, *ratios, asked or "–"])
    head = ["shape, passes", *(f"{NAMES[name]}, ms" for name in ("infsa", *others)), "cuDNN / ours", "flash / ours"]
    return Table([*head, "asked"], lines).markdown()


def pure_table(found: Content | None) -> str:
    """Times of Pure InfSA and cuDNN's softmax in Markdown, causal or not: the medians of rounds in turns."""
    if found is None:
        return NOT_YET
    lines = []
    for row in found["attention"]:
        causal = ", causal" if row["is_causal"] else ""
        times = [f"{statistics.median(row[name]):.3f}" for name in ("infsa_ms", "cudnn_ms")]
        shape = f"H{row['heads']} d{row['width']} N{row['n']}{causal}, {row['passes']}"
        lines.append([shape, *times, f"{row['ratio']:.2f}"])
    head = ["shape, passes", *(f"{NAMES[name]}, ms" for name in ("infsa", "sdpa_cudnn")), "ours / cuDNN"]
    return Table(head, lines).markdown()


def eager_table(found: Content | None) -> str:
    """Host time of one call in eager mode, in Markdown: the medians of rounds in turns."""
    if found is None:
        return NOT_YET
    names = dict.fromkeys(row["method"] for row in found["eager"])
    lines = []
    for name in names:
        rows = [row for row in found["eager"] if row["method"] == name]
        lines.append([name, *(f"{statistics.median(r[p] for r in rows):.0f}" for p in ("forward_us", "both_us"))])
    return Table(["attention", "forward, µs", "both, µs"], lines).markdown()


def linear_table(choice: Content | None) -> str:
    """Times of the Linear layer in Markdown, each implementation by its name: the file of ``linear_choice.py``."""
    if choice is None:
        return NOT_YET
    rows = [row for row in choice["rows"] if row["what"] == "layer"]
    names = list(dict.fromkeys(row["impl"] for row in rows))
    cells: dict[tuple[int, str], list[str]] = {}
    for row in rows:
        times = [f"{row[kind]:.2f}" if kind in row else "–" for kind in ("forward_ms", "both_ms")]
        cells.setdefault((row["n"], row["dtype"]), []).append(" / ".join(times))
    lines = [[f"{n}, {dtype}", *times] for (n, dtype), times in cells.items()]
    return Table(["tokens, dtype", *(f"{name}, ms" for name in names)], lines).markdown()


def memory_table(kernels: Content | None) -> str:
    """Memory beyond inputs and results over the number of tokens, at 16 heads of width 64, in Markdown."""
    if kernels is None or not kernels.get("growth"):
        return NOT_YET
    names = ("infsa", "sdpa_flash", "sdpa_cudnn")
    rows = [r for r in kernels["pure"] + kernels["growth"] if (r["heads"], r["width"]) == (16, 64)]
    lines = [
        [f"{r['n']}, {r['passes']}", *(_mebibytes(r["times"].get(name, {})) for name in names)]
        for r in sorted(rows, key=lambda r: (r["passes"] == "both", r["n"]))
    ]
    return Table(["tokens, passes", *(f"{NAMES[name]}, MiB" for name in names)], lines).markdown()


def short_table(kernels: Content | None) -> str:
    """Short inputs in Markdown: the GPU's time, and the same call from Python with its launches."""
    if kernels is None or not kernels.get("growth"):
        return NOT_YET
    names = ("infsa", "sdpa_cudnn")
    rows = [r for r in kernels["pure"] + kernels["growth"] if "call_ms" in r["times"]["infsa"] and r["width"] == 64]
    lines = []
    for r in sorted(rows, key=lambda r: (r["passes"] == "both", r["n"])):
        times = [r["times"].get(name, {}) for name in names]
        cells = [f"{t[kind]:.3f}" if kind in t else "–" for t in times for kind in ("ms", "call_ms")]
        lines.append([f"{r['n']}, {r['passes']}", *cells])
    head = [f"{NAMES[name]}, {kind}" for name in names for kind in ("GPU, ms", "from Python, ms")]
    return Table(["tokens, passes", *head], lines).markdown()


def model_table(models: Content | None) -> str:
    """Times and memory of whole models in Markdown."""
    if models is None:
        return NOT_YET
    lines = [
        [
            name,
            _milliseconds(row),
            *(f"{row[x] / 2**30:.2f}" if x in row else "–" for x in ("peak_bytes", "held_bytes")),
            f"{100 * row['distance']:.1f}" if row.get("distance") is not None else "–",
        ]
        for name, row in models["rows"].items()
        if row.get("failed") != "not run: budget"
    ]
    columns = ["model, way, mode, pixels a side", "ms", "peak memory, GiB", "held before, GiB", "distance, %"]
    return Table(columns, lines).markdown()


def bar_table(models: Content | None) -> str:
    """What was asked of whole models and what was found, in Markdown."""
    if models is None:
        return NOT_YET
    lines = [
        [name, f"{bar['asked']:.2f}", "–" if bar["found"] is None else f"{bar['found']:.2f}", str(bar["met"]).lower()]
        for name, bar in models["bars"].items()
    ]
    return Table(["bar", "asked, at least", "found", "met"], lines).markdown()


def _milliseconds(time: dict[str, Any]) -> str:
    return f"{time['ms']:.3f} ± {time['spread'] / 2:.3f}" if "ms" in time else "–"


def _mebibytes(time: dict[str, Any]) -> str:
    return f"{time['beyond_bytes'] / 2**20:.2f}" if "beyond_bytes" in time else "–"
