"""MoRF and LeRF: remove patches in the order of a map, most or least relevant first, and follow the score.

All levels of all orders of a batch of images go through the model together, in chunks of bounded size. The two ends
of a curve, nothing and everything removed, are the same for every order of an image and run once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from ..models import InfViT
from ..ops.checks import check_choice
from .fills import FILLS, NOISE, impute, pixels, replacement

POSITION_FREE = ("softmax", "infsa_pure", "infsa_linear", "mean", "energy")  # see a set of tokens, not a grid
SCORES = ("probability", "logit", "top1")
CHUNK = {"cpu": 64}  # images per forward pass
CHUNK_ELSEWHERE = 2048


def level_counts(patches: int, levels: int = 20) -> Tensor:
    """How many of the patches are removed at each level: round(k N / K) for k = 0 … K, (K + 1,).

    Example:
        >>> level_counts(64, 4)
        tensor([ 0, 16, 32, 48, 64])
    """
    if levels < 1:
        raise ValueError(f"levels must be 1 or more, got {levels}")
    return torch.tensor([(2 * k * patches + levels) // (2 * levels) for k in range(levels + 1)])


def removal_ranks(scores: Tensor, tie_break: Tensor) -> Tensor:
    """The place of every patch in the order of removal, most relevant first (0 goes first): (B, N).

    Equal scores are ordered by ``tie_break`` (B, N), random numbers. ``N - 1 - ranks`` is least relevant first.

    Example:
        >>> removal_ranks(torch.tensor([[0.2, 0.5, 0.3]]), torch.zeros(1, 3))
        tensor([[2, 0, 1]])
    """
    shuffled = tie_break.argsort(-1)
    order = scores.gather(-1, shuffled).argsort(stable=True, dim=-1, descending=True)
    return shuffled.gather(-1, order).argsort(-1)


def has_ties(scores: Tensor) -> Tensor:
    """Whether two patches of a map have the same score: (B, N) -> (B,)."""
    ordered = scores.sort(-1).values
    return (ordered[:, 1:] == ordered[:, :-1]).any(-1)


def can_shorten(model: nn.Module) -> TypeGuard[InfViT]:
    """Whether tokens can be left out of a model's sequence; otherwise its ``patch_mask`` hides them."""
    return isinstance(model, InfViT) and set(model.attentions) <= set(POSITION_FREE)


@torch.inference_mode()
def removal_curves(
    model: nn.Module,
    images: Tensor,
    ranks: Tensor,
    owner: Tensor,
    classes: Tensor,
    *,
    grid: tuple[int, int],
    fill: str = "mean",
    levels: int = 20,
    score: str = "probability",
    mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
    std: Sequence[float] = IMAGENET_DEFAULT_STD,
    noise: Tensor | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The score at every level of removal, (R, levels + 1), for R orders of B images.

    Args:
        model: images (B, C, H, W) to logits, in eval mode; with ``fill="tokens"`` it also takes ``patch_mask``
            (B, h, w).
        images: (B, C, H, W), normalised.
        ranks: (R, N), the place of every patch in each order; see :func:`removal_ranks`.
        owner: (R,), the image that each order belongs to.
        classes: (B,), the class whose score is followed.
        grid: (h, w), N = h·w patches.
        fill: what removed patches become; ``"tokens"`` takes them out of the model's input exactly.
        levels: K; see :func:`level_counts`.
        score: ``"probability"``, ``"logit"`` or ``"top1"`` (1 while the class is predicted).
        mean: of the normalisation, for ``fill="black"``.
        std: of the normalisation, for ``fill="black"``.
        noise: (B, C, H, W), standard normal, for ``fill="road"``; without it imputation is noiseless.
        chunk: images per forward pass; by default 64 on the CPU and 2048 elsewhere.

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> images, classes = torch.rand(2, 3, 64, 64), torch.zeros(2, dtype=torch.long)
        >>> ranks = removal_ranks(model.attention_maps(images).flatten(1), torch.rand(2, 64))
        >>> removal_curves(model, images, ranks, torch.arange(2), classes, grid=(8, 8)).shape
        torch.Size([2, 21])
    """
    check_choice("fill", fill, FILLS)
    check_choice("score", score, SCORES)
    if noise is not None and fill != "road":
        raise ValueError(f"noise needs fill='road', got fill={fill!r}")
    patch, patches = _patch(images, grid), grid[0] * grid[1]
    if ranks.shape != (len(owner), patches):
        raise ValueError(f"ranks must be ({len(owner)}, {patches}), got {tuple(ranks.shape)}")
    counts, owner = level_counts(patches, levels), owner.to(images.device)
    size = chunk or CHUNK.get(images.device.type, CHUNK_ELSEWHERE)
    fixed = None if fill in ("road", "tokens") else replacement(images, fill, patch, mean, std)
    removal = _Removal(model, images, grid, patch, fill, fixed, noise)
    curves = torch.empty(len(owner), levels + 1, device=images.device)
    for place, end in ((0, removal.intact(size)), (levels, removal.empty(size))):
        curves[:, place] = _score(end, classes, score)[owner]
    steps = removal.shorter if fill == "tokens" and can_shorten(model) else removal.filled
    for order, level, logits in steps(ranks, owner, counts, size):
        curves[order, level] = _score(logits, classes[owner[order]], score)
    return curves


@dataclass(frozen=True)
class _Removal:
    """A batch of images and what takes the place of their patches."""

    model: nn.Module
    images: Tensor
    grid: tuple[int, int]
    patch: tuple[int, int]
    fill: str
    fixed: Tensor | None  # (B, C, H, W): what removed pixels become, where that is known beforehand
    noise: Tensor | None

    def logits(self, removed: Tensor, rows: Tensor) -> Tensor:
        """Logits of the images ``rows`` (r,) without the patches ``removed`` (r, N)."""
        mask, batch = removed.unflatten(-1, self.grid), self.images[rows]
        if self.fill == "tokens":
            return self.model(batch, patch_mask=~mask)
        if self.fixed is None:
            noise = None if self.noise is None else NOISE * self.noise[rows]
            batch = impute(batch, pixels(mask, self.patch), noise)
        else:
            batch = torch.where(pixels(mask, self.patch), self.fixed[rows], batch)
        return self.model.classify(*self.model.embed(batch)) if isinstance(self.model, InfViT) else self.model(batch)

    def intact(self, size: int) -> Tensor:
        """Logits of the whole images, (B, classes)."""
        return torch.cat([self._all(False, rows) for rows in self._every(size)])

    def empty(self, size: int) -> Tensor:
        """Logits without any patch, (B, classes); one pass serves all unless something of each image is left."""
        if self.fill == "blur":
            return torch.cat([self._all(True, rows) for rows in self._every(size)])
        return self._all(True, self._every(1)[0]).expand(len(self.images), -1)

    def filled(
        self, ranks: Tensor, owner: Tensor, counts: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Chunks of the inner levels of all orders: which order (r,), which level (r,), its logits."""
        counts = counts.to(self.images.device)
        inner = len(counts) - 2
        for flat in torch.arange(len(owner) * inner, device=self.images.device).split(size):
            order, level = flat // inner, flat % inner + 1
            yield order, level, self.logits(ranks[order] < counts[level, None], owner[order])

    def shorter(
        self, ranks: Tensor, owner: Tensor, counts: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The same without the removed tokens, level by level: a level's sequences have one length."""
        assert can_shorten(self.model)
        tokens, order = self.model.embed(self.images)[0], ranks.argsort(-1)
        for level, count in enumerate(counts.tolist()[1:-1], start=1):
            for part in torch.arange(len(owner), device=self.images.device).split(size):
                if count == ranks.shape[1]:
                    found = self.empty(size)[owner[part]]
                else:
                    found = self._without(tokens[owner[part]], order[part, count:])
                yield part, torch.full_like(part, level), found

    def _without(self, tokens: Tensor, kept: Tensor) -> Tensor:
        """Logits of embedded tokens (r, N, D) of which only the prefix and the patches ``kept`` (r, n) remain."""
        assert isinstance(self.model, InfViT)
        prefix = self.model.num_prefix_tokens
        first = torch.arange(prefix, device=kept.device).expand(len(kept), -1)
        places = torch.cat([first, kept + prefix], 1)  # patches keep the positions of the whole image
        return self.model.classify(
            tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[-1])), (1, kept.shape[1])
        )

    def _every(self, size: int) -> tuple[Tensor, ...]:
        return torch.arange(len(self.images), device=self.images.device).split(size)

    def _all(self, gone: bool, rows: Tensor) -> Tensor:
        patches = self.grid[0] * self.grid[1]
        return self.logits(torch.full((len(rows), patches), gone, device=self.images.device), rows)


def _patch(images: Tensor, grid: tuple[int, int]) -> tuple[int, int]:
    height, width = images.shape[-2:]
    if height % grid[0] or width % grid[1]:
        raise ValueError(f"images of {height} × {width} pixels do not divide into a grid of {grid[0]} × {grid[1]}")
    return height // grid[0], width // grid[1]


def _score(logits: Tensor, classes: Tensor, score: str) -> Tensor:
    if score == "top1":
        return (logits.argmax(-1) == classes).float()
    values = logits.float() if score == "logit" else logits.float().softmax(-1)
    return values.gather(-1, classes[:, None]).squeeze(-1)


def area_under(curves: Tensor, patches: int) -> Tensor:
    """The trapezoid area under curves (..., K + 1) over the fraction of patches removed, 0 to 1: (...).

    Example:
        >>> area_under(torch.tensor([1.0, 0.5, 0.0]), patches=64)
        tensor(0.5000)
    """
    fraction = level_counts(patches, curves.shape[-1] - 1).to(curves) / patches
    return torch.trapezoid(curves, fraction, dim=-1)
