"""Does Linear-InfSA's vector a point along the Perron vector of the operator it stands for?

Forward hooks on a trained model capture each layer's input; queries and keys follow, and from them the operator
Â = φ(q kᵀ) of every head, its leading vector, the vector a and the candidates that need no such theory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..graph.statistics import cosine, spearman
from ..nn.infsa import LinearInfSA, PureInfSA, split_heads
from ..nn.peers.core import QKVAttention
from ..ops import energies, linear_weights

POWER_STEPS = 200
RESIDUAL = 1e-6  # relative l1 residual above which a power iteration counts as not converged
SHORT = (1, 2, 3)  # steps of the short power iterations, and rounds of a beyond the first
MEMORY = 2**28  # bytes of operators held at once


class Alignment(NamedTuple):
    """One layer's agreement with the leading vector, head by head: (B, H) each.

    ``cosine`` and ``spearman`` hold one entry per candidate. ``ratio`` is |λ₂| / |λ₁|, ``residual`` that of the power
    iteration. ``degenerate`` marks heads without a leading vector to compare with; their numbers mean nothing.
    """

    cosine: dict[str, Tensor]
    spearman: dict[str, Tensor]
    ratio: Tensor
    residual: Tensor
    degenerate: Tensor

    def cpu(self) -> "Alignment":
        """The same in the memory of the CPU."""
        return tree_map(lambda values: values.cpu(), self)


def queries_and_keys(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys (B, H, N, d) of an attention layer for its input x (B, N, D)."""
    if isinstance(module, LinearInfSA | PureInfSA | QKVAttention):
        q, k, *_ = module._project(x)
        return q, k
    qkv, heads = module.get_submodule("qkv"), int(getattr(module, "num_heads"))  # noqa: B009
    q, k, _ = (split_heads(part, heads) for part in qkv(x).chunk(3, -1))  # timm's Attention
    q_norm, k_norm = (getattr(module, name, None) or nn.Identity() for name in ("q_norm", "k_norm"))
    return q_norm(q), k_norm(k)


def has_queries(module: nn.Module) -> bool:
    """Whether :func:`queries_and_keys` understands a module: this project's layers, and timm's ``Attention``."""
    known = isinstance(module, LinearInfSA | PureInfSA | QKVAttention)
    return known or (isinstance(getattr(module, "qkv", None), nn.Linear) and hasattr(module, "num_heads"))


@contextmanager
def captured(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within this context, each forward pass leaves the input of every attention layer in the returned dict.

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> with captured(model) as inputs:
        ...     logits = model(torch.rand(1, 3, 64, 64))
        >>> inputs["blocks.0.attn"].shape
        torch.Size([1, 65, 192])
    """
    layers = {name: module for name, module in model.named_modules() if has_queries(module)}
    if not layers:
        raise ValueError(f"{type(model).__name__} has no attention layer with queries and keys")
    inputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, arguments: Any) -> None:
        inputs[name] = arguments[0].detach()

    hooks = [module.register_forward_pre_hook(partial(keep, name)) for name, module in layers.items()]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def align(model: nn.Module, images: Tensor, steps: int = POWER_STEPS) -> dict[str, Alignment]:
    """The :class:`Alignment` of every attention layer of a model, by the layer's name, for images (B, C, H, W).

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> list(align(model, torch.rand(1, 3, 64, 64)))[0]
        'blocks.0.attn'
    """
    training = model.training
    model.eval()
    try:
        with captured(model) as inputs:
            model(images)
    finally:
        model.train(training)
    found = {}
    for name, x in inputs.items():
        module = model.get_submodule(name)
        q, k = queries_and_keys(module, x)
        found[name] = align_heads(q, k, activation=getattr(module, "activation", "relu"), steps=steps)
    return found


def align_heads(q: Tensor, k: Tensor, activation: str = "relu", steps: int = POWER_STEPS) -> Alignment:
    """Compare candidates with the leading left vector of Â = φ(q kᵀ), for q and k (B, H, N, d), in float64.

    The left vector says who is attended to, as a does; with tied queries and keys Â is symmetric and it is the
    paper's vector. The candidates are ``a``, ``a`` after more rounds, short power iterations (one step is the
    degree), the energy ‖q‖ and the uniform vector.

    Example:
        >>> q = torch.randn(2, 12, 65, 16)
        >>> align_heads(q, q).cosine["a"].shape
        torch.Size([2, 12])
    """
    if activation not in ("relu", "abs"):
        raise ValueError(f"activation must be 'relu' or 'abs', whose operators are non-negative, got {activation!r}")
    heads = q.shape[:2]
    tied = k is q or torch.equal(q, k)
    q, k = (x.flatten(0, 1).double() for x in (q, k))
    at_once = max(1, MEMORY // (8 * q.shape[1] * k.shape[1]))
    parts = [_align(a, b, activation, tied, steps) for a, b in zip(q.split(at_once), k.split(at_once), strict=True)]
    return tree_map(lambda *values: torch.cat(values).unflatten(0, heads), *parts)


def _align(q: Tensor, k: Tensor, activation: str, tied: bool, steps: int) -> Alignment:
    """The same for q and k (M, N, d)."""
    scores = q @ k.mT
    weights = scores.abs() if activation == "abs" else scores.clamp_min(0)
    frobenius = weights.flatten(1).norm(dim=1)[:, None, None]
    weights = weights / torch.where(frobenius > 0, frobenius, 1)
    vectors, residual = power_iteration(weights.mT, steps, keep=SHORT)
    rounds = {n: linear_weights(q[:, None], k[:, None], activation=activation, iterations=n)[:, 0] for n in SHORT}
    candidates = {
        "a": rounds[1],
        **{f"a, {n} rounds": rounds[n] for n in SHORT[1:]},
        **{f"power, {n} step{'s' if n > 1 else ''}": vectors[n] for n in SHORT},
        "energy": energies(q[:, None])[:, 0],
        "uniform": torch.ones_like(rounds[1]),
    }
    moduli = _moduli(weights, tied)
    first = moduli[:, 0]
    ratio = torch.where(first > 0, moduli[:, 1] / first, 1) if weights.shape[1] > 1 else first
    leading = vectors[steps]
    empty = (leading.sum(-1) <= 0) | (rounds[1].sum(-1) <= 0)
    return Alignment(
        {name: cosine(candidate, leading) for name, candidate in candidates.items()},
        {name: spearman(candidate, leading) for name, candidate in candidates.items()},
        ratio,
        residual,
        empty | ~(residual <= RESIDUAL),
    )


def power_iteration(weights: Tensor, steps: int, keep: tuple[int, ...] = ()) -> tuple[dict[int, Tensor], Tensor]:
    """v ← A v / ‖A v‖₁ from the uniform vector, for A (M, N, N): v after ``steps`` and after each of ``keep``.

    The second result is the relative residual ‖A v − ρ v‖₁ / ρ, (M,); NaN for a head of zeros.

    Example:
        >>> vectors, residual = power_iteration(torch.ones(1, 3, 3), steps=10)
        >>> vectors[10]
        tensor([[0.3333, 0.3333, 0.3333]])
    """
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, got {steps}")
    vector = weights.new_full((*weights.shape[:2], 1), 1 / weights.shape[1])
    kept = {}
    for step in range(1, steps + 1):
        image = weights @ vector
        total = image.sum(1, keepdim=True)
        vector = torch.where(total > 0, image / torch.where(total > 0, total, 1), 0)
        if step in keep:
            kept[step] = vector.squeeze(-1)
    kept[steps] = vector.squeeze(-1)
    image = weights @ vector
    root = image.sum(1, keepdim=True)
    residual = (image - root * vector).abs().sum((1, 2)) / root.flatten()
    return kept, residual


def _moduli(weights: Tensor, symmetric: bool) -> Tensor:
    """Moduli of the eigenvalues, largest first: (M, N)."""
    if symmetric:
        return torch.linalg.eigvalsh((weights + weights.mT) / 2).abs().sort(descending=True).values
    return torch.linalg.eigvals(weights.cpu()).abs().sort(descending=True).values.to(weights.device)
