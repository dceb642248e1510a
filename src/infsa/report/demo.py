"""What ``infsa demo`` measures: the token graph of a photograph, the shipped models, nine mechanisms over growing N."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..bench.build import build
from ..bench.cases import NINE, VARIANTS, Case
from ..bench.timing import calls_for, time_calls
from ..data import decode
from ..evaluate import Explanation, align_heads, area_under, explain, model_input, removal_curves, removal_ranks
from ..evaluate import align as align_model
from ..evaluate.perturbation import level_counts
from ..graph import AttentionGraph
from ..graph.statistics import spearman
from ..models import InfViT, create_model
from ..models.presets import SHIPPED
from ..nn import LinearInfSA, PureInfSA
from ..nn.infsa import split_heads
from ..ops import linear_weights, pure_attention
from ..ops.checks import check_gamma
from ..version import __version__
from .photographs import example_images, examples, quarters

GRID, PATCH, WIDTH, HEADS = 14, 16, 64, 4
SIDE, CELLS, LEVELS = 64, 8, 12  # the shipped models: pixels and patches a side; steps of removal
CANDIDATES = {
    "a": "Linear-InfSA a",
    "power, 1 step": "one power step (degree)",
    "energy": "query norm ‖q‖",
    "uniform": "uniform",
}
UNTRAINED = {
    "a": "Linear-InfSA a",
    "a, 3 rounds": "a after 3 iterations",
    "energy": "query norm ‖q‖",
    "uniform": "uniform",
}
SIDES = (256, 512, 768, 1024)  # pixels: 257 to 4,097 tokens
SMALL: dict[str, Any] = {"depth": 1, "heads": 2, "width": 128, "dtype": "float32", "part": "attention"}


@dataclass(frozen=True)
class Demo:
    """Everything the demonstration measured."""

    image: np.ndarray  # (H, W, 3), uint8
    centralities: Mapping[str, Tensor]  # name -> (N,)
    identities: Mapping[str, float]  # claim -> largest relative difference
    truncation: list[float]  # relative distance of the K-hop sum from the closed form, K = 1, 2, ...
    alignment: Mapping[str, Mapping[str, list[tuple[float, float]]]]  # tokens -> candidate -> per head
    perron: Tensor  # (N,), head 0
    linear: Tensor  # (N,), head 0
    spectrum: Mapping[str, float]
    config: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """The numbers, as plain data."""
        katz = self.centralities["katz_in"]
        return {
            "config": dict(self.config),
            "identities": dict(self.identities),
            "truncation": self.truncation,
            "spectrum": dict(self.spectrum),
            "ranking": {
                name: {"top_tokens": top_tokens(score), "spearman_with_katz_in": float(spearman(score, katz))}
                for name, score in self.centralities.items()
            },
            "alignment": {
                tokens: {name: agreement(pairs) for name, pairs in candidates.items()}
                for tokens, candidates in self.alignment.items()
            },
        }


def agreement(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Mean and lowest (cosine, Spearman) with the Perron vector over the heads."""
    found: dict[str, float] = {}
    for name, values in zip(("cosine", "spearman"), zip(*pairs, strict=True), strict=True):
        found |= {f"{name}_mean": sum(values) / len(values), f"{name}_min": min(values)}
    return found


def top_tokens(scores: Tensor, count: int = 5) -> list[int]:
    """The highest-ranked tokens, best first."""
    return scores.topk(count).indices.tolist()


def load_image() -> np.ndarray:
    """A photograph that every installation has, cropped square: (H, W, 3)."""
    image = decode(examples()["Portrait"])
    square = image.crop((0, 0, image.width, image.width))  # taller than wide
    return np.asarray(square.resize((GRID * PATCH, GRID * PATCH), Image.Resampling.BICUBIC))


def patch_tokens(image: np.ndarray, embedding: nn.Linear) -> Tensor:
    """Patches through an embedding and LayerNorm, as the first block of a ViT sees them: (N, WIDTH)."""
    pixels = (torch.from_numpy(image.copy()).to(embedding.weight.dtype) / 255 - 0.5) / 0.25
    patches = pixels.unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).flatten(2).flatten(0, 1)
    return nn.functional.layer_norm(embedding(patches), (WIDTH,))


def token_graphs(q: Tensor, k: Tensor, gamma: float) -> list[AttentionGraph]:
    """The graph of each head, for q and k (1, H, N, d)."""
    return [AttentionGraph.from_qk(*heads, gamma) for heads in zip(q[0], k[0], strict=True)]


def align(q: Tensor) -> dict[str, list[tuple[float, float]]]:
    """Cosine and Spearman of each candidate with the Perron vector, head by head, for tied q (1, H, N, d)."""
    found = align_heads(q, q)
    return {
        label: list(zip(found.cosine[name][0].tolist(), found.spearman[name][0].tolist(), strict=True))
        for name, label in UNTRAINED.items()
    }


def run_demo(gamma: float = 0.7, seed: int = 0) -> Demo:
    """Build the token graphs of untrained layers over a photograph, check the identities, rank the tokens."""
    check_gamma(gamma)
    image = load_image()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        embedding = nn.Linear(3 * PATCH * PATCH, WIDTH).double()
        pure = PureInfSA(WIDTH, HEADS, gamma=gamma).double()
        linear = LinearInfSA(WIDTH, HEADS, gamma=gamma).double()
        x = patch_tokens(image, embedding)[None]
        q, k, v = (split_heads(part, HEADS) for part in pure.qkv(x).chunk(3, -1))  # (1, H, N, d)
        tied = split_heads(linear.q(x), HEADS)
        centred = split_heads(linear.q(x - x.mean(1, keepdim=True)), HEADS)
    graphs = token_graphs(q, k, gamma)
    closed = torch.stack([graph.neumann() @ values for graph, values in zip(graphs, v[0], strict=True)])[None]
    return Demo(
        image=image,
        centralities=graphs[0].centralities(),
        identities=_identities(q, k, v, graphs, closed, gamma),
        truncation=[_distance(pure_attention(q, k, v, gamma=gamma, hops=hops), closed) for hops in range(1, 25)],
        alignment={"tokens as a ViT sees them": align(tied), "centred tokens": align(centred)},
        perron=token_graphs(tied, tied, gamma)[0].eigenvector("right"),
        linear=linear_weights(tied, tied)[0, 0],
        spectrum={
            "spectral_radius": graphs[0].spectral_radius(),
            "spectral_ratio": graphs[0].spectral_ratio(),
            "largest_row_sum": float(graphs[0].degree("out").max()),
        },
        config={
            "gamma": gamma,
            "seed": seed,
            "tokens": GRID * GRID,
            "heads": HEADS,
            "head_width": WIDTH // HEADS,
            "image": "grace_hopper.jpg (matplotlib sample data)",
            "versions": {"infsa": __version__, "torch": torch.__version__, "matplotlib": matplotlib.__version__},
        },
    )


def _distance(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def _identities(
    q: Tensor, k: Tensor, v: Tensor, graphs: list[AttentionGraph], closed: Tensor, gamma: float
) -> dict[str, float]:
    """Relative differences between ways of computing the same thing."""
    solved = {impl: pure_attention(q, k, v, gamma=gamma, hops=math.inf, impl=impl) for impl in ("reference", "chunked")}
    visits = torch.stack([graph.fundamental_matrix() @ head for graph, head in zip(graphs, v[0], strict=True)])[None]
    first = graphs[0]
    chain = first.canonical_form(rescale=True)
    return {
        "Pure (hops=∞, dense)  =  Neumann closed form": _distance(solved["reference"], closed),
        "Pure (hops=∞, memory-linear)  =  Neumann closed form": _distance(solved["chunked"], closed),
        "Markov chain's expected visits − start  =  Neumann closed form": _distance(visits - v, closed),
        "absorption times  =  outgoing Katz centrality": _distance(first.absorption_times(), first.katz_out()),
        "rows of the absorbing chain sum to 1": float((chain.sum(1) - 1).abs().max()),
    }


@dataclass(frozen=True)
class Models:
    """What the shipped models showed."""

    images: Mapping[str, Image.Image]
    explanations: Mapping[str, Mapping[str, Explanation]]  # image -> mechanism -> map and prediction
    removed: list[float]  # share of patches, 0 to 1
    curves: Mapping[str, Mapping[str, list[float]]]  # mechanism -> order -> mean score / score of the whole image
    areas: Mapping[str, Mapping[str, float]]  # mechanism -> order -> area over the curve
    views: int
    alignment: Mapping[str, dict[str, float]]  # candidate -> cosine, Spearman

    def summary(self) -> dict[str, Any]:
        """The numbers, as plain data."""
        seen = {
            image: {name: found.predictions[0] for name, found in by_name.items()}
            for image, by_name in self.explanations.items()
        }
        return {
            "predictions": seen,
            "morf": {"views": self.views, "removed": self.removed, "curves": self.curves, "aoc": self.areas},
            "perron": self.alignment,
        }


def batch_of(model: InfViT, images: list[Image.Image]) -> Tensor:
    """Images as the model was trained to see them: (B, 3, 64, 64)."""
    return torch.cat([model_input(model, image, (SIDE, SIDE)) for image in images])


def removal(model: InfViT, batch: Tensor, seed: int) -> dict[str, Tensor]:
    """MoRF curves of the model's own maps and of a random order, (B, levels + 1), of the class it predicts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        classes = model(batch).argmax(-1)
        maps = model.attention_maps(batch).flatten(1)
    noise = torch.rand(2, *maps.shape, generator=generator)
    ranks = torch.cat([removal_ranks(maps, noise[0]), removal_ranks(torch.zeros_like(maps), noise[1])])
    owner = torch.arange(len(batch)).repeat(2)
    found = removal_curves(model, batch, ranks, owner, classes, grid=(CELLS, CELLS), levels=LEVELS)
    first, second = (found / found[:, :1]).chunk(2)
    return {"map": first, "random order": second}


def look_at(images: Mapping[str, Image.Image] | None = None, seed: int = 0) -> Models:
    """Classify and explain photographs, remove patches, compare with the Perron vector."""
    images = example_images() if images is None else images
    models = {label: create_model(name, pretrained=True).eval() for name, label in SHIPPED.items()}
    views = [view for image in images.values() for view in quarters(image)]
    curves: dict[str, dict[str, list[float]]] = {}
    areas: dict[str, dict[str, float]] = {}
    for label, model in models.items():
        found = removal(model, batch_of(model, views), seed)
        curves[label] = {order: curve.mean(0).tolist() for order, curve in found.items()}
        areas[label] = {order: 1 - float(area_under(curve, CELLS**2).mean()) for order, curve in found.items()}
    linear = models["Linear-InfSA"]
    layers = align_model(linear, batch_of(linear, list(images.values())))
    good = torch.cat([~layer.degenerate.flatten() for layer in layers.values()])

    def mean(measure: str, name: str) -> float:
        values = torch.cat([getattr(layer, measure)[name].flatten() for layer in layers.values()])
        return float(values[good].mean())

    return Models(
        images,
        {image: {label: explain(model, photo) for label, model in models.items()} for image, photo in images.items()},
        (level_counts(CELLS**2, LEVELS) / CELLS**2).tolist(),
        curves,
        areas,
        len(views),
        {label: {m: mean(m, name) for m in ("cosine", "spearman")} for name, label in CANDIDATES.items()},
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread meanwhile: small layers gain nothing from two, and lose much where a core is taken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def time_mechanisms(
    sides: Sequence[int] = SIDES,
    seconds: float = 0.15,
    report: Callable[[str, int, int], None] = lambda text, done, total: None,
) -> dict[str, Any]:
    """Milliseconds of one attention layer, by mechanism, for square images: the fastest of several calls."""
    times: dict[str, list[float]] = {VARIANTS[name].label: [] for name in NINE}
    cases = [Case(name, size=(side, side), **SMALL) for side in sides for name in NINE]
    device = torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        for done, case in enumerate(cases):
            report("Timing", done, len(cases))
            call = build(case, device).call
            call()  # the first one does not count
            (once,) = time_calls(call, device, 1)
            more = time_calls(call, device, max(2, calls_for(seconds, once, most=50)))
            times[case.variant.label].append(min(once, *more))
    report("Timing", len(cases), len(cases))
    tokens = [case.tokens for case in cases[:: len(NINE)]]
    return {"tokens": tokens, "milliseconds": times, "threads": torch.get_num_threads(), "layer": SMALL}
