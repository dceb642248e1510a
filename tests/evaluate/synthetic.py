"""A model whose true patch importance is known, and the naive loop over images and levels."""

import torch
from torch import nn


class PatchSum(nn.Module):
    """Two classes; the logit of class 0 is Σ_i w_i · mean(patch i): linear in the content of the patches."""

    def __init__(self, weights, patch=4):
        super().__init__()
        self.register_buffer("weights", weights)  # (h, w)
        self.patch = patch

    def parts(self, images):
        """w_i · mean(patch i): (B, h, w)."""
        return nn.functional.avg_pool2d(images.mean(1, keepdim=True), self.patch).squeeze(1) * self.weights

    def forward(self, images, patch_mask=None):
        parts = self.parts(images)
        if patch_mask is not None:
            parts = parts * patch_mask
        logit = parts.sum((1, 2))
        return torch.stack([logit, torch.zeros_like(logit)], 1)


def naive_curve(model, image, order, fill_value, target, counts, patch, tokens=False):
    """One image, one level at a time, patches overwritten one by one; probabilities (K + 1,)."""
    columns = image.shape[-1] // patch
    curve = []
    for count in counts:
        changed = image.clone()
        kept = torch.ones(1, image.shape[-2] // patch, columns, dtype=torch.bool)
        for place in order[: int(count)]:
            row, column = divmod(int(place), columns)
            kept[0, row, column] = False
            if not tokens:
                area = slice(row * patch, row * patch + patch), slice(column * patch, column * patch + patch)
                changed[:, area[0], area[1]] = fill_value[:, area[0], area[1]]
        with torch.inference_mode():
            logits = model(changed[None], patch_mask=kept) if tokens else model(changed[None])
        curve.append(float(logits.softmax(-1)[0, target]))
    return torch.tensor(curve)
