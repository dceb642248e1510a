"""Tables of docs/kernels.md, from the files of the scripts that measure kernels and whole models."""

import statistics
from typing import Any

from infsa.report.table import Table

from .kernel_figures import Content

NONE = "–"
EARLIER = " †"
PASSES = ("forward", "both")
MODELS = {"linear": "Linear", "pure": "Pure", "vit": "softmax"}
CASES = {"infer 4096": "inference, 4096²", "infer 9216": "inference, 9216²", "train 4096": "training, 4096²"}

Shape = tuple[bool, int, int, int]  # causal, width, tokens, heads


def attention_table(kernels: Content, pure: Content) -> str:
    """Times of Pure InfSA and cuDNN's softmax by shape, in Markdown; ``pure``, marked, wins where both have a row."""
    times: dict[Shape, dict[str, tuple[float, float]]] = {}
    for row in kernels["pure"]:
        pair = (row["times"]["infsa"]["ms"], row["times"]["sdpa_cudnn"]["ms"])
        times.setdefault(_shape(row), {})[row["passes"]] = pair
    for row in pure["attention"]:
        pair = (statistics.median(row["infsa_ms"]), statistics.median(row["cudnn_ms"]))
        times.setdefault(_shape(row), {})[row["passes"]] = pair
    lines, earlier = [], {_shape(row) for row in pure["attention"]}
    for shape, found in sorted(times.items()):
        causal, width, tokens, heads = shape
        name = f"{heads} × {width}, {tokens}{', causal' if causal else ''}{EARLIER if shape in earlier else ''}"
        lines.append([name, *(cell for passes in PASSES for cell in _compared(found.get(passes)))])
    forward = ["Pure", "cuDNN", "speed-up"]
    return Table(["heads × width, tokens", *forward, *(f"{name}, fwd+bwd" for name in forward)], lines).markdown()


def linear_table(choice: Content) -> str:
    """Times of the Linear layer in Markdown, the two implementations that the package has: ``linear_choice.py``."""
    names, dtypes = ("fused", "chunked"), ("bfloat16", "float32")
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for row in choice["rows"]:
        if row["what"] == "layer" and row["impl"] in names and row["dtype"] in dtypes:
            times = [f"{row[kind]:.2f}" if kind in row else NONE for kind in ("forward_ms", "both_ms")]
            cells.setdefault((row["dtype"], row["n"]), {})[row["impl"]] = " / ".join(times)
    lines = [[dtype, str(n), *(found.get(name, NONE) for name in names)] for (dtype, n), found in sorted(cells.items())]
    return Table(["dtype", "tokens", *(f"`{name}`" for name in names)], lines).markdown()


def model_table(models: Content) -> str:
    """Peak memory of whole models in Markdown, where no CUDA graph hides it."""
    lines = []
    for case, label in CASES.items():
        rows = [models["rows"].get(f"{name} fast {case}", {}) for name in MODELS]
        lines.append([label, *(f"{row['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in row else NONE for row in rows)])
    return Table(["`fast`", *MODELS.values()], lines).markdown()


def _shape(row: dict[str, Any]) -> Shape:
    return row.get("is_causal", False), row["width"], row["n"], row["heads"]


def _compared(pair: tuple[float, float] | None) -> list[str]:
    """Two times and their ratio."""
    return [NONE] * 3 if pair is None else [f"{pair[0]:.3f}", f"{pair[1]:.3f}", f"{pair[1] / pair[0]:.2f}"]
