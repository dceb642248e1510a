"""What a trained model gets right, and where its attention maps lie."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from infsa.data.boxes import patch_coverage
from infsa.models import InfViT

from .model import predict, shrunk
from .runs import Run
from .step import Digits, as_rows

MAPPED = 32  # test images whose maps are judged


@torch.no_grad()
def accuracy(model: InfViT, run: Run, data: Digits, batch: int, device: torch.device) -> dict[str, float]:
    """The share of test images that each task has right, and of the bits of the last."""
    model.eval()
    total, bits = torch.zeros(len(data.tasks), device=device), torch.zeros((), device=device)
    *_, last = data.tasks
    for indices in torch.arange(len(data), device=device).split(2 * batch):
        images, answers, _ = data.compose(indices)
        logits, rows = predict(model, run, images), as_rows(answers, data.tasks)
        total += data.tasks.hits(logits, rows).sum(0)
        own, wanted = (data.tasks.split(both)[-1] > 0 for both in (logits, rows))
        bits += (own == wanted).float().mean(-1).sum()
    model.train()
    shares = dict(zip((task.name for task in data.tasks), (total / len(data)).tolist(), strict=True))
    return shares | ({f"{last.name}_bits": float(bits) / len(data)} if last.multilabel else {})


@torch.no_grad()
def judge_maps(model: InfViT, run: Run, data: Digits, device: torch.device) -> tuple[Any, Any]:
    """Where each layer's map lies: its mass and its five highest peaks on the digits; and the maps of image 0."""
    model.eval()
    found, example = {}, []
    for layer in range(run.depth):
        rows = []
        for indices in torch.arange(min(MAPPED, len(data)), device=device).split(4):
            images, _, boxes = data.compose(indices)
            if not rows:
                first = model.attention_maps(shrunk(images[:1].float() / 255, run), layer=layer)[0]
                example.append((first / first.amax() * 255).round().int().tolist())
            for field, own in zip(
                model.attention_maps(shrunk(images.float() / 255, run), layer=layer), boxes, strict=True
            ):
                field, grid = field.float().cpu(), (field.shape[0], field.shape[1])
                side = -(-run.side // run.patch) * run.patch if not run.shown else run.side
                covered = torch.from_numpy(patch_coverage(own.cpu().numpy(), (side, side), grid))
                near = F.max_pool2d(covered[None], 3, 1, 1)[0].flatten()  # a peak may lie on the token beside
                peaks = near[highest(field, 5)].gt(0).float().mean()
                rows.append([float((field * covered.gt(0)).sum()), float(peaks), float(covered.gt(0).float().mean())])
        found[f"layer {layer + 1}"] = dict(zip(("mass", "peaks", "area"), np.mean(rows, 0).tolist(), strict=True))
    return found, example


def highest(field: Tensor, count: int) -> Tensor:
    """The places of the highest peaks of a map (h, w), no two within three tokens, (count,)."""
    left, places = field.clone(), []
    for _ in range(count):
        place = int(left.argmax())
        row, column = divmod(place, field.shape[1])
        left[max(0, row - 3) : row + 4, max(0, column - 3) : column + 4] = -1
        places.append(place)
    return torch.tensor(places)
