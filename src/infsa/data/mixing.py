"""Mixup and cutmix of neighbours in a batch."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .random_keys import keyed_generator


def mix_pairs(
    images: Tensor,
    targets: Tensor,
    *,
    mixup: float,
    cutmix: float,
    prob: float,
    key: tuple[int, ...],
    share: tuple[int, int] = (0, 1),
) -> tuple[Tensor, Tensor]:
    """Mix each image with its neighbour: 0 with 1, 2 with 3 and so on, both ways.

    Batches come in random order, so neighbours are random partners, and they stay partners when a batch is cut
    over processes at an even place.

    Args:
        images: (B, 3, h, w), B even.
        targets: (B, classes), rows sum to 1.
        mixup, cutmix: α of the Beta distribution of the shares; 0 switches one off.
        prob: probability that a pair is mixed.
        key: what the draws depend on.
        share: (i, n) if these images are the i-th of n equal shares of a batch with this key.
    """
    batch, _, height, width = images.shape
    if batch % 2:
        raise ValueError(f"mixing pairs needs an even number of images, got {batch}")
    if not (mixup or cutmix):
        return images, targets
    draws = _draw_pairs(keyed_generator("mix", *key), batch // 2 * share[1], mixup, cutmix, prob, (height, width))
    own = draws[:, share[0] * batch // 2 : (share[0] + 1) * batch // 2]
    part, blend, top, bottom, left, right = (
        torch.from_numpy(own).to(images.device, non_blocking=True).repeat_interleave(2, 1)[..., None].unbind()
    )  # (B, 1) each
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    inside = ((rows >= top) & (rows < bottom))[:, :, None] & ((columns >= left) & (columns < right))[:, None]
    keep = torch.where(inside, 0.0, blend[..., None])[:, None].to(images.dtype)  # (B, 1, h, w)
    partner = torch.arange(batch, device=images.device) ^ 1
    return keep * images + (1 - keep) * images[partner], part * targets + (1 - part) * targets[partner]


def _draw_pairs(
    rng: np.random.Generator, pairs: int, mixup: float, cutmix: float, prob: float, size: tuple[int, int]
) -> NDArray[np.float32]:
    """Per pair: an image's own part in the target and in the blend, and the rectangle that its partner fills."""
    patchwise = rng.random(pairs) < (0.5 if mixup and cutmix else float(cutmix > 0))
    part = np.where(patchwise, rng.beta(cutmix or 1, cutmix or 1, pairs), rng.beta(mixup or 1, mixup or 1, pairs))
    part = np.where(rng.random(pairs) < prob, part, 1.0)
    edges = []
    for side in size:  # a rectangle of area 1 - part anywhere, cut off at the border; none if the images are blended
        half, centre = np.where(patchwise, np.sqrt(1 - part), 0.0) * side / 2, rng.random(pairs) * side
        edges += [np.clip(centre - half, 0, side).round(), np.clip(centre + half, 0, side).round()]
    area = (edges[1] - edges[0]) * (edges[3] - edges[2]) / (size[0] * size[1])
    blend = np.where(patchwise, 1.0, part)
    return np.stack([np.where(patchwise, 1 - area, part), blend, *edges]).astype(np.float32)
