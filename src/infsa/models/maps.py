"""Attention maps: where a model looks, (B, h, w), for every mechanism with non-negative weights.

Weights come from each block's attention module, beside the fast path and not instead of it. Mechanisms whose
queries all share one row of weights (Linear-InfSA and the pooling controls) stay O(N) throughout.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..graph import AttentionGraph
from ..nn.infsa import split_heads
from ..ops.checks import check_choice
from .blocks import Block

if TYPE_CHECKING:
    from .infvit import InfViT

METHODS = ("last", "rollout", "tokenrank", "katz", "gradient", "degree", "random")
OVER_LAYERS = ("rollout", "gradient")  # read every layer up to the chosen one


@dataclass(frozen=True)
class Reading:
    """Which map of a model is read; see :func:`attention_maps`."""

    method: str = "last"
    layer: int = -1
    head: int | None = None
    target: int | Tensor | None = None
    seed: int = 0

    def layers(self, model: "InfViT") -> range:
        """The blocks whose weights are read; refused unless the model has them."""
        depth, head = len(model.blocks), self.head
        check_choice("method", self.method, METHODS)
        if not -depth <= self.layer < depth:
            raise ValueError(f"layer must lie in [{-depth}, {depth}), got {self.layer!r}")
        if head is not None and (isinstance(head, bool) or not 0 <= head < model.num_heads):
            raise ValueError(f"head must lie in [0, {model.num_heads}), got {head!r}")
        if self.target is not None and self.method != "gradient":
            raise ValueError(f"target needs method='gradient', got method={self.method!r}")
        if self.method == "random":
            return range(0)
        if self.method == "gradient" and (model.num_classes == 0 or model.global_pool == ""):
            raise ValueError(
                "method='gradient' explains a class, "
                f"got num_classes={model.num_classes!r} and global_pool={model.global_pool!r}"
            )
        last = self.layer % depth
        places = range(0 if self.method in OVER_LAYERS else last, last + 1)
        for place in places:
            with_map(model.blocks[place])
        return places


def attention_maps(
    model: "InfViT",
    images: Tensor,
    layer: int = -1,
    head: int | None = None,
    method: str = "last",
    target: int | Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Maps (B, h, w) that are non-negative and sum to 1.

    Args:
        model: the model.
        images: (B, C, H, W).
        layer: the block to read, counted from the end if negative; rollout and gradient go up to it.
        head: one head, or None for the mean over heads.
        method: ``"last"`` is the paper's map, the CLS row (without CLS, the mean over patch queries);
            ``"rollout"`` multiplies (Â + I)/2 over the layers, rows normalised first; ``"gradient"`` multiplies
            I + mean_h(∇A ∘ A)₊ for one class; ``"tokenrank"``, ``"katz"`` (incoming) and ``"degree"`` (column
            sums) are centralities of the layer's graph; ``"random"`` is a baseline.
        target: ``"gradient"`` only: class per image, (B,) or one; default the predicted class.
        seed: ``"random"`` only.

    Weights that are negative after the mean over heads, as with ``activation="gelu"``, are clamped at zero. A map of
    zeros becomes uniform; a warning counts them.

    Example:
        >>> model = infsa.models.InfViT(32, 8, embed_dim=16, num_heads=2, attention="infsa_pure", activation="gelu")
        >>> model.attention_maps(torch.rand(1, 3, 32, 32)).shape
        torch.Size([1, 4, 4])
    """
    with _evaluating(model):
        scores, _ = _read(model, images, Reading(method, layer, head, target, seed), stop=True)
    return _finish(scores, model.grid_of(images))


def logits_and_maps(model: "InfViT", images: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
    """Logits (B, classes) and maps (B, h, w) of images (B, C, H, W), from one pass through the model."""
    with _evaluating(model), torch.no_grad():
        scores, tokens = _read(model, images, reading, stop=False)
        logits = model.forward_head(model.norm(tokens))
    return logits, _finish(scores, model.grid_of(images))


def layer_weights(model: "InfViT", images: Tensor, layer: int = -1, head: int | None = None) -> Tensor:
    """The attention weights of one layer, (B, N or 1, N), of one head or averaged over heads."""
    reading = Reading("last", layer, head)
    places = reading.layers(model)
    with _evaluating(model):
        kept, _, grid = _pass(model, images, places, stop=True)
        return _weights(model, reading, places[0], kept[places[0]], grid)


def _read(model: "InfViT", images: Tensor, reading: Reading, stop: bool) -> tuple[Tensor, Tensor]:
    """Scores of the patches (B, N), and the tokens after the last block; with ``stop``, after the last one read."""
    places = reading.layers(model)
    patches = slice(model.num_prefix_tokens, None)
    if reading.method == "gradient":
        scores, tokens = _gradient_scores(model, images, reading, places)
        return scores[:, patches], tokens
    kept, tokens, grid = _pass(model, images, places, stop)
    if reading.method == "random":
        generator = torch.Generator().manual_seed(reading.seed)
        return torch.rand(len(images), grid[0] * grid[1], generator=generator).to(images.device), tokens
    row = _query_row(model, tokens, model.has_class_token)
    for place in reversed(places):
        weights = _weights(model, reading, place, kept.pop(place), grid)
        if reading.method == "rollout":
            row = _rollout_step(row, weights)
        elif reading.method == "last":
            row = _spread_row(row, weights)
        else:
            row = _centrality(weights, reading.method, model.gamma)
    return row[:, patches], tokens


@contextmanager
def _evaluating(model: "InfViT") -> Iterator[None]:
    """Every module in eval mode and nothing recomputed; afterwards as it was."""
    training = {module: module.training for module in model.modules()}
    checkpointing = model.grad_checkpointing
    model.eval()
    model.grad_checkpointing = False
    try:
        yield
    finally:
        model.grad_checkpointing = checkpointing
        for module, was_training in training.items():
            module.training = was_training


@torch.no_grad()
def _pass(
    model: "InfViT", images: Tensor, places: range, stop: bool
) -> tuple[dict[int, Tensor], Tensor, tuple[int, int]]:
    """The tokens before the blocks ``places``, those after the last block (or the last of ``places``), the grid."""
    kept: dict[int, Tensor] = {}

    def keep(index: int, before: Tensor, after: Tensor) -> None:
        if index in places:
            kept[index] = before

    tokens, grid = model.embed(images)
    return kept, model.run_blocks(tokens, grid, visit=keep, depth=places.stop if stop else None), grid


@torch.no_grad()
def _weights(model: "InfViT", reading: Reading, place: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """The weights of a block for its input x (B, N, D): (B, N or 1, N)."""
    return _mean_head(weights_of(model.blocks[place], x, grid, model.num_prefix_tokens), reading.head)


def _mean_head(weights: Tensor, head: int | None) -> Tensor:
    """(B, H, R, N) -> (B, R, N), R = N or 1, at least in float32; what GELU leaves below zero becomes zero."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    return (weights.mean(1) if head is None else weights[:, head]).clamp_min(0)


def _gradient_scores(model: "InfViT", images: Tensor, reading: Reading, places: range) -> tuple[Tensor, Tensor]:
    """row · Π (I + mean_h(∇A ∘ A)₊), and the last tokens; ∇A = G vᵀ, with G the gradient of the head outputs."""
    outputs: dict[int, Tensor] = {}  # concatenated heads of each block
    hooks = []
    for place in places:
        attn = with_map(model.blocks[place]).attn
        entry = attn.proj if attn.extra is None else attn.extra
        hooks.append(entry.register_forward_pre_hook(partial(_keep_first, outputs, place)))
    kept: dict[int, Tensor] = {}

    def keep(index: int, before: Tensor, after: Tensor) -> None:
        if index in places:
            kept[index] = before.detach()

    try:
        with torch.inference_mode(False), torch.enable_grad():
            x, grid = model.embed(images.detach().clone().requires_grad_())
            tokens = model.run_blocks(x, grid, visit=keep)
            logits = model.forward_head(model.norm(tokens))
            score = logits.gather(1, _classes(reading.target, logits)[:, None]).sum()
            gradients = dict(zip(outputs, torch.autograd.grad(score, list(outputs.values())), strict=True))
    finally:
        for hook in hooks:
            hook.remove()
    row = _query_row(model, tokens, model.has_class_token and model.global_pool == "token")
    with torch.no_grad():
        for place in reversed(places):
            row = row + _spread_row(row, _relevance(model, reading, place, kept[place], gradients[place], grid))
    return row, tokens.detach()


def _keep_first(outputs: dict[int, Tensor], place: int, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Keep what a module is called with first; what a hook returns would take its place in later calls."""
    outputs.setdefault(place, inputs[0])


def _relevance(
    model: "InfViT", reading: Reading, place: int, x: Tensor, gradient: Tensor, grid: tuple[int, int]
) -> Tensor:
    """mean_h(∇A ∘ A)₊ of a block, (B, N or 1, N), from its input x and the gradient of its heads, (B, N or 1, D)."""
    if gradient.shape[1] not in (1, x.shape[1]):
        raise ValueError(f"method='gradient' needs queries=1, got queries={gradient.shape[1]}")
    block = with_map(model.blocks[place])
    x = block.norm1(x)
    weights = block.attn.weights(x, grid, model.num_prefix_tokens)  # (B, H, N or 1, N)
    per_head = split_heads(gradient, model.num_heads)  # (B, H, N or 1, d)
    return _mean_head((per_head @ block.attn.values(x).mT * weights).clamp_min(0), reading.head)


def _classes(target: int | Tensor | None, logits: Tensor) -> Tensor:
    """The class to explain for each image, (B,): the given ones, or the predicted."""
    batch, classes = logits.shape
    chosen = logits.argmax(-1) if target is None else torch.as_tensor(target, device=logits.device)
    fits = chosen.dim() <= 1 and chosen.numel() in (1, batch)
    if not fits or not 0 <= int(chosen.min()) <= int(chosen.max()) < classes:
        raise ValueError(f"target must be classes in [0, {classes}), one or one per image, got {target!r}")
    return chosen.long().expand(batch)


def with_map(block: nn.Module) -> Block:
    """The block, if its attention has non-negative weights; otherwise the reason why it has none."""
    if not isinstance(block, Block):
        raise ValueError("no attention map: this block mixes tokens by convolutions and signed weights")
    if not block.attn.has_map:
        raise ValueError(f"no attention map: {block.attn.name}: {block.attn.no_map}")
    return block


def weights_of(block: nn.Module, x: Tensor, grid: tuple[int, int], num_prefix: int) -> Tensor:
    """The attention weights of a block for its input x (B, N, D): (B, H, N or 1, N)."""
    checked = with_map(block)
    return checked.attn.weights(checked.norm1(x), grid, num_prefix)


def _query_row(model: "InfViT", tokens: Tensor, class_token: bool) -> Tensor:
    """Whose view the map takes: the class token's, or the mean of the patch queries, as weights (B, N)."""
    prefix, count = model.num_prefix_tokens, tokens.shape[1]
    row = tokens.new_zeros(tokens.shape[:2], dtype=torch.promote_types(tokens.dtype, torch.float32))
    if class_token:
        row[:, 0] = 1
    else:
        row[:, prefix:] = 1 / (count - prefix)
    return row


def _spread_row(row: Tensor, weights: Tensor) -> Tensor:
    """row · A for A (B, N, N), or (B, 1, N) if all its rows are equal."""
    if weights.shape[1] == 1:
        return row.sum(-1, keepdim=True) * weights[:, 0]
    return (row.unsqueeze(1) @ weights).squeeze(1)


def _rollout_step(row: Tensor, weights: Tensor) -> Tensor:
    """row · (Ā + I)/2, Ā with rows summing to 1; a zero row of Ā is that of the identity."""
    sums = weights.sum(-1, keepdim=True)
    stochastic = weights / torch.where(sums > 0, sums, 1)
    empty = (sums <= 0).squeeze(-1).to(row.dtype)  # (B, N or 1)
    return (_spread_row(row, stochastic) + row * empty + row) / 2


def _centrality(weights: Tensor, method: str, gamma: float) -> Tensor:
    """A centrality of each image's graph: (B, N)."""
    if weights.shape[1] > 1:
        graphs = [AttentionGraph(matrix, gamma) for matrix in weights]
        names = {"tokenrank": "tokenrank", "katz": "katz_in", "degree": "degree"}
        return torch.stack([getattr(graph, names[method])() for graph in graphs]).to(weights)
    row, n = weights[:, 0], weights.shape[-1]  # A = 1aᵀ: closed forms
    if method == "degree":
        return row
    total = row.sum(-1, keepdim=True)
    if method == "tokenrank":
        return 0.99 * row / torch.where(total > 0, total, 1) + 0.01 / n
    return 1 + gamma * row * n / (1 - gamma * total)


def _finish(scores: Tensor, grid: tuple[int, int]) -> Tensor:
    """Clamp, ℓ1-normalise, shape (B, h, w); all-zero maps become uniform and are counted."""
    scores = scores.clamp_min(0)
    totals = scores.sum(-1, keepdim=True)
    empty = int((totals == 0).sum())
    if empty:
        warnings.warn(f"{empty} of {len(scores)} attention maps were all zero and became uniform", stacklevel=4)
    scores = torch.where(totals > 0, scores / torch.where(totals > 0, totals, 1), 1 / scores.shape[-1])
    return scores.unflatten(-1, grid)
