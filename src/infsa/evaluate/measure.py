"""Measuring a model over a dataset, image by image, into results that can be taken up again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Batch, ImageDataset, Views, collate, keyed_generator, transform_for
from ..models import InfViT
from .alignment import align
from .maps import data_config, maps_of
from .perturbation import has_ties, removal_curves, removal_ranks
from .results import Record, Results, fingerprint, numbers
from .settings import Aligning, Boxes, Removal, Settings

Progress = Callable[[int], None]
BATCH = {"cpu": 32}  # images measured together
BATCH_ELSEWHERE = 256


def chosen_images(length: int, count: int | None, seed: int = 0) -> list[int]:
    """``count`` of ``length`` images (all if None), drawn by the seed alone, in ascending order.

    Example:
        >>> len(chosen_images(1000, 3))
        3
    """
    if count is not None and count < 1:
        raise ValueError(f"images must be 1 or more, got {count}")
    if count is None or count >= length:
        return list(range(length))
    return sorted(keyed_generator("images", seed).permutation(length)[:count].tolist())


def configuration(model: InfViT, data: str, settings: Settings) -> dict[str, Any]:
    """All that a measurement depends on, as plain data for :class:`Results`.

    Example:
        >>> model = infsa.evaluate.load_model("infvit_linear_tiny")
        >>> configuration(model, "shapes", Removal())["measure"]
        'Removal'
    """
    return {
        "measure": type(settings).__name__,
        **asdict(settings),
        "data": data,
        "weights": fingerprint(model),
        "attention": model.attention,
        "num_heads": model.num_heads,
    }


def measure(
    model: InfViT,
    dataset: ImageDataset,
    indices: Sequence[int],
    results: Results,
    settings: Settings,
    progress: Progress | None = None,
) -> None:
    """Measure the images ``indices`` that ``results`` does not hold yet, and add their records."""
    config = data_config(model)
    views = Views(dataset, transform_for(config, train=False))
    device = next(model.parameters()).device
    wanted = [index for index in indices if index not in results.done]
    if progress is not None:
        progress(len(indices) - len(wanted))
    for batch, kept in _batches(views, wanted, results, BATCH.get(device.type, BATCH_ELSEWHERE), progress):
        batch = batch._replace(images=batch.images.to(device))
        records = RECORDS[type(settings)](model, batch, settings)
        heads = zip(kept, batch.names, batch.labels.tolist(), records, strict=True)
        results.add(*({"index": index, "name": name, "label": label, **record} for index, name, label, record in heads))
        if progress is not None:
            progress(len(kept))


def _batches(
    views: Views, indices: Sequence[int], results: Results, size: int, progress: Progress | None
) -> Iterator[tuple[Batch, list[int]]]:
    """Batches of the images not met before; an unreadable image gives way to the next, which may be known already."""
    for start in range(0, len(indices), size):
        examples, kept, names = [], [], set(results.names)
        for index in indices[start : start + size]:
            example = views[index]
            if example.name not in names:
                names.add(example.name)
                examples.append(example)
                kept.append(index)
            elif progress is not None:
                progress(1)
        if examples:
            yield collate(examples), kept


@torch.inference_mode()
def _predict(model: InfViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """Likeliest class and its probability, (B,) each."""
    probability, predicted = model(images).float().softmax(-1).max(-1)
    return predicted, probability


def removal_records(model: InfViT, batch: Batch, settings: Removal) -> list[Record]:
    """Prediction and raw curves of every image; images outside the convention have a prediction only."""
    images = batch.images
    predicted, probability = _predict(model, images)
    kept = probability >= settings.min_probability
    if settings.only_correct:
        kept &= predicted == batch.labels.to(images.device)
    records: list[Record] = [
        {"predicted": c, "probability": p} for c, p in zip(predicted.tolist(), numbers(probability), strict=True)
    ]
    rows = kept.nonzero()[:, 0]
    if not len(rows):
        return records
    names = [batch.names[row] for row in rows.tolist()]
    curves, labels = _curves(model, images[rows], predicted[rows], names, settings)
    drawn: list[dict[str, dict[str, list[Tensor]]]] = [{} for _ in names]
    for curve, (image, method, direction) in zip(curves, labels, strict=True):
        drawn[image].setdefault(method, {}).setdefault(direction, []).append(curve)
    for row, own in zip(rows.tolist(), drawn, strict=True):
        records[row]["curves"] = {
            method: {direction: numbers(torch.stack(draws).mean(0)) for direction, draws in directions.items()}
            for method, directions in own.items()
        }
        records[row]["draws"] = {method: len(directions["morf"]) for method, directions in own.items()}
    return records


def _curves(
    model: InfViT, images: Tensor, classes: Tensor, names: list[str], settings: Removal
) -> tuple[Tensor, list[tuple[int, str, str]]]:
    """All curves (R, K + 1) of a batch, and for each its image, method and direction."""
    grid, config = model.grid_of(images), data_config(model)
    patches = grid[0] * grid[1]
    parts: list[Tensor] = []
    labels: list[tuple[int, str, str]] = []
    for method in settings.methods:
        scores = maps_of(model, images, method, names, settings.seed).flatten(1)
        draws = [settings.draws if tied else 1 for tied in has_ties(scores).tolist()]
        owners = [image for image, count in enumerate(draws) for _ in range(count)]
        key = [
            ("ties", settings.seed, names[image], draw) for image, count in enumerate(draws) for draw in range(count)
        ]
        ranks = removal_ranks(scores[owners], _uniform(key, patches, images.device))
        parts += [ranks, patches - 1 - ranks]
        labels += [(image, method, direction) for direction in ("morf", "lerf") for image in owners]
    everyone = [(image, draw) for image in range(len(images)) for draw in range(settings.random_draws)]
    key = [("random order", settings.seed, names[image], draw) for image, draw in everyone]
    parts.append(_uniform(key, patches, images.device).argsort(-1))
    labels += [(image, "random order", "morf") for image, _ in everyone]
    noise = None
    if settings.fill == "road":
        drawn = [keyed_generator("noise", settings.seed, name).standard_normal(images.shape[1:]) for name in names]
        noise = torch.from_numpy(np.stack(drawn)).to(images)
    how: dict[str, Any] = {"fill": settings.fill, "levels": settings.levels, "score": settings.score, "noise": noise}
    owner = torch.tensor([image for image, _, _ in labels])
    colours = {"mean": config["mean"], "std": config["std"]}
    curves = removal_curves(model, images, torch.cat(parts), owner, classes, grid=grid, **how, **colours)
    return curves.cpu(), labels


def _uniform(keys: Sequence[tuple[str | int, ...]], length: int, device: torch.device) -> Tensor:
    """Uniform random numbers, one row for each key: (R, length)."""
    return torch.from_numpy(np.stack([keyed_generator(*key).random(length) for key in keys])).to(device)


def box_records(model: InfViT, batch: Batch, settings: Boxes) -> list[Record]:
    """The maps and the boxes of every image; :func:`infsa.evaluate.summarise_boxes` compares them."""
    images = batch.images
    predicted, _ = _predict(model, images)
    names = dict.fromkeys([*settings.methods, "random"])
    maps = {name: maps_of(model, images, name, batch.names, settings.seed).cpu() for name in names}
    return [
        {
            "predicted": int(predicted[row]),
            "size": [images.shape[-1], images.shape[-2]],
            "grid": list(maps["random"].shape[1:]),
            "boxes": boxes.tolist(),
            "maps": {name: numbers(scores[row].flatten()) for name, scores in maps.items()},
        }
        for row, boxes in enumerate(batch.boxes)
    ]


def alignment_records(model: InfViT, batch: Batch, settings: Aligning) -> list[Record]:
    """Agreement with the Perron vector of every head of every layer for every image."""
    layers = {name: layer.cpu() for name, layer in align(model, batch.images, settings.steps).items()}
    return [
        {
            "layers": {
                name: {
                    "cosine": {key: numbers(values[row]) for key, values in layer.cosine.items()},
                    "spearman": {key: numbers(values[row]) for key, values in layer.spearman.items()},
                    "ratio": numbers(layer.ratio[row]),
                    "degenerate": layer.degenerate[row].tolist(),
                }
                for name, layer in layers.items()
            }
        }
        for row in range(len(batch.names))
    ]


RECORDS: dict[type, Callable[[InfViT, Batch, Any], list[Record]]] = {
    Removal: removal_records,
    Boxes: box_records,
    Aligning: alignment_records,
}
