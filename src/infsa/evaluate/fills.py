"""What takes the place of removed patches."""

import math
from collections.abc import Callable, Sequence

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import gaussian_blur  # type: ignore[import-untyped]

FILLS = ("mean", "black", "blur", "road", "tokens")
NOISE = 0.01  # σ of the noise on imputed pixels, in units of the normalised image
RESIDUAL = 1e-4  # relative, at which imputation stops
BETWEEN_CHECKS = 20  # steps of the solver between two looks at the residual


def replacement(
    images: Tensor,
    fill: str,
    patch: tuple[int, int],
    mean: Sequence[float] = IMAGENET_DEFAULT_MEAN,
    std: Sequence[float] = IMAGENET_DEFAULT_STD,
) -> Tensor:
    """What removed pixels become under the fills that do not depend on which patches are removed: (B, C, H, W).

    Args:
        images: (B, C, H, W), normalised with ``mean`` and ``std``.
        fill: ``"mean"`` (0 after normalisation), ``"black"`` (0 before it) or ``"blur"`` (Gaussian, σ of one patch).
        patch: its height and width.
        mean: of the normalisation.
        std: of the normalisation.

    Example:
        >>> replacement(torch.randn(2, 3, 64, 64), "mean", (8, 8)).abs().max()
        tensor(0.)
    """
    if fill == "mean":
        return torch.zeros_like(images)
    if fill == "black":
        black = -torch.tensor(mean, dtype=torch.float64) / torch.tensor(std, dtype=torch.float64)
        return black.to(images)[:, None, None].expand_as(images)
    if fill == "blur":
        reach = [min(2 * patch[axis], images.shape[axis + 2] - 1) for axis in (0, 1)]
        kernel = [2 * reach[1] + 1, 2 * reach[0] + 1]  # torchvision counts width first
        return gaussian_blur(images, kernel, [float(patch[1]), float(patch[0])])
    raise ValueError(f"fill {fill!r} has no fixed replacement; 'mean', 'black' and 'blur' have")


def pixels(removed: Tensor, patch: tuple[int, int]) -> Tensor:
    """A patch mask (B, h, w) as a pixel mask (B, 1, H, W)."""
    return removed.repeat_interleave(patch[0], 1).repeat_interleave(patch[1], 2).unsqueeze(1)


def impute(images: Tensor, removed: Tensor, noise: Tensor | None = None) -> Tensor:
    """ROAD-style imputation: every removed pixel is the weighted mean of its neighbours, plus noise: (B, C, H, W).

    Neighbours across an edge weigh 1/6 and across a corner 1/12. The system is symmetric and is solved for all
    images at once by conjugate gradients. Where nothing is left to impute from, pixels become the mean, 0.

    Args:
        images: (B, C, H, W).
        removed: (B, 1, H, W), True where a pixel is to be imputed.
        noise: (B, C, H, W), added to imputed pixels.

    Example:
        >>> removed = torch.zeros(1, 1, 8, 8, dtype=torch.bool)
        >>> removed[..., 2:6, 2:6] = True
        >>> bool((impute(torch.ones(1, 3, 8, 8), removed) - 1).abs().max() < 1e-3)
        True
    """
    known = torch.where(removed, 0, images)
    total = _neighbours(torch.ones_like(known[:1, :1]))  # (1, 1, H, W): smaller at the border
    solvable = ~removed.flatten(1).all(1)[:, None, None, None]
    unknown = removed & solvable

    def system(x: Tensor) -> Tensor:
        return torch.where(unknown, total * x - _neighbours(x), 0)

    solution = _conjugate_gradients(system, torch.where(unknown, _neighbours(known), 0))
    if noise is not None:
        solution = solution + torch.where(unknown, noise, 0)
    return torch.where(removed, solution, images)


def _neighbours(x: Tensor) -> Tensor:
    """The weighted sum over the eight neighbours of every pixel; outside the image there are none."""
    across = F.pad(x, (1, 1))
    rows = across[..., :-2] + across[..., 2:]  # left + right
    middle = F.pad(x / 6 + rows / 12, (0, 0, 1, 1))
    return middle[..., :-2, :] + middle[..., 2:, :] + rows / 6


def _conjugate_gradients(system: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Solve system(x) = target for every image and channel on its own."""
    x, residual = torch.zeros_like(target), target
    direction = residual
    size = residual.square().sum((-2, -1), keepdim=True)
    goal = size * RESIDUAL**2
    for step in range(4 * math.prod(target.shape[-2:])):
        if step % BETWEEN_CHECKS == 0 and bool((size <= goal).all()):
            break
        image = system(direction)
        length = _ratio(size, (direction * image).sum((-2, -1), keepdim=True))
        x, residual = x + length * direction, residual - length * image
        before, size = size, residual.square().sum((-2, -1), keepdim=True)
        direction = residual + _ratio(size, before) * direction
    return x


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / torch.where(below > 0, below, 1), 0)
