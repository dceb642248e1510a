"""Attention maps: where a model looks, (B, h, w), for every mechanism with non-negative weights.

Weights come from each block's attention module, beside the fast path and not instead of it. Mechanisms whose
queries all share one row of weights (Linear-InfSA and the pooling controls) stay O(N) throughout.
"""

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..graph import AttentionGraph
from .block import Block

if TYPE_CHECKING:
    from .infvit import InfViT

METHODS = ("last", "rollout", "tokenrank", "katz", "gradient", "degree", "random")


def attention_maps(
    model: "InfViT",
    images: Tensor,
    *,
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

    A map of zeros becomes uniform; a warning counts them.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {list(METHODS)}, got {method!r}")
    depth = len(model.blocks)
    if not -depth <= layer < depth:
        raise ValueError(f"layer must lie in [{-depth}, {depth}), got {layer!r}")
    if head is not None and (isinstance(head, bool) or not 0 <= head < model.num_heads):
        raise ValueError(f"head must lie in [0, {model.num_heads}), got {head!r}")
    if target is not None and method != "gradient":
        raise ValueError(f"target needs method='gradient', got method={method!r}")
    grid = model.grid_of(images)
    if method == "random":
        generator = torch.Generator().manual_seed(seed)
        scores = torch.rand(len(images), grid[0] * grid[1], generator=generator).to(images.device)
        return _finish(scores, grid)
    training = {module: module.training for module in model.modules()}
    checkpointing = model.grad_checkpointing
    model.eval()
    model.set_grad_checkpointing(False)
    try:
        if method == "gradient":
            layers = _gradient_layers(model, images, layer % depth, head, target)
        else:
            layers = _weight_layers(model, images, layer % depth, head)
    finally:
        model.set_grad_checkpointing(checkpointing)
        for module, was_training in training.items():
            module.training = was_training
    patches = slice(model.num_prefix_tokens, None)
    if method in ("rollout", "gradient"):
        reads_class = model.has_class_token and (method == "rollout" or model.global_pool == "token")
        row = _query_row(layers[-1], model.num_prefix_tokens, reads_class)
        mix = _rollout_step if method == "rollout" else _relevance_step
        for weights in reversed(layers):
            row = mix(row, weights)
        return _finish(row[:, patches], grid)
    weights = layers[-1]
    if method == "last":
        row = _query_row(weights, model.num_prefix_tokens, model.has_class_token)
        return _finish(_spread_row(row, weights)[:, patches], grid)
    return _finish(_centrality(weights, method, model.gamma)[:, patches], grid)


def _mean_head(weights: Tensor, head: int | None) -> Tensor:
    """(B, H, R, N) -> (B, R, N), R = N or 1, at least in float32."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    return weights.mean(1) if head is None else weights[:, head]


@torch.no_grad()
def _weight_layers(model: "InfViT", images: Tensor, layer: int, head: int | None) -> list[Tensor]:
    """Mean weights of the blocks up to ``layer``: (B, N or 1, N) each."""
    layers: list[Tensor] = []
    grid = model.grid_of(images)

    def read(index: int, block: nn.Module, before: Tensor, after: Tensor) -> None:
        layers.append(_mean_head(weights_of(block, before, grid, model.num_prefix_tokens), head))

    with_map(model.blocks[0])  # refuse before anything runs
    model.run(images, visit=read, depth=layer + 1)
    return layers


def _gradient_layers(
    model: "InfViT", images: Tensor, layer: int, head: int | None, target: int | Tensor | None
) -> list[Tensor]:
    """mean_h(∇A ∘ A)₊ of the blocks up to ``layer``; ∇A = G vᵀ, with G the gradient of the head outputs."""
    if model.num_classes == 0 or model.global_pool == "":
        raise ValueError(
            "method='gradient' explains a class, "
            f"got num_classes={model.num_classes!r} and global_pool={model.global_pool!r}"
        )
    kept: list[tuple[Tensor, Tensor]] = []  # normalised block input, concatenated head outputs
    hooks = []
    for block in model.blocks[: layer + 1]:
        attn = with_map(block).attn
        entry = attn.proj if attn.extra is None else attn.extra
        inputs: list[Tensor] = []
        hooks.append(attn.register_forward_pre_hook(lambda _, args, store=inputs: store.append(args[0])))
        hooks.append(entry.register_forward_pre_hook(lambda _, args, store=inputs: kept.append((store[-1], args[0]))))
    try:
        with torch.inference_mode(False), torch.enable_grad():
            logits = model(images.detach().clone().requires_grad_())
            chosen = _classes(target, logits)
            score = logits.gather(1, chosen[:, None]).sum()
            gradients = torch.autograd.grad(score, [outputs for _, outputs in kept])
    finally:
        for hook in hooks:
            hook.remove()
    layers = []
    grid = model.grid_of(images)
    with torch.no_grad():
        for block, (x, _), gradient in zip(model.blocks, kept, gradients, strict=False):
            attn = with_map(block).attn
            weights = attn.weights(x, grid, model.num_prefix_tokens)  # (B, H, N or 1, N)
            values = attn.values(x)  # (B, H, N, d)
            if gradient.shape[1] not in (1, x.shape[1]):
                raise ValueError(f"method='gradient' needs queries=1, got queries={gradient.shape[1]}")
            per_head = gradient.unflatten(-1, (model.num_heads, -1)).transpose(1, 2)  # (B, H, N or 1, d)
            relevance = (per_head @ values.mT * weights).clamp_min(0)
            layers.append(_mean_head(relevance, head))
    return layers


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


def _query_row(weights: Tensor, num_prefix: int, class_token: bool) -> Tensor:
    """Whose view the map takes: the class token's, or the mean of the patch queries, as weights (B, N)."""
    row = weights.new_zeros(weights.shape[0], weights.shape[-1])
    if class_token:
        row[:, 0] = 1
    else:
        row[:, num_prefix:] = 1 / (weights.shape[-1] - num_prefix)
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


def _relevance_step(row: Tensor, relevance: Tensor) -> Tensor:
    """row · (I + Ē)."""
    return row + _spread_row(row, relevance)


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
