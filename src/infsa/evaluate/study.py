"""A whole study: several models, each measured and summarised, then grouped over seeds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..data import ImageDataset
from ..provenance import provenance
from .measure import chosen_images, configuration, measure
from .results import Results
from .settings import Aligning, Boxes, Removal, Settings
from .subjects import Subject
from .summary import Summary, over_runs, summarise_alignment, summarise_boxes, summarise_removal

Report = Callable[[str, int, int], None]  # what is measured, images done, images in all
Sources = Mapping[str, tuple[str, ImageDataset]]  # subject → what its data is called, and the data


def study_quality(
    subjects: Sequence[Subject],
    data: Sources,
    removals: Sequence[Removal],
    boxes: Boxes,
    *,
    out: str | Path,
    images: int | None = 500,
    normalise: str = "intact",
    device: torch.device | str = "cpu",
    report: Report | None = None,
) -> Summary:
    """MoRF and LeRF under every fill, and boxes, for every subject; records go to ``out/records``.

    Taken up again where it was interrupted. The result holds each run and, for each group, the mean over its runs.

    Example:
        >>> subject = Subject.of("runs/softmax-0.safetensors")
        >>> data = {subject.name: ("npz:shard.npz", NpzShard("shard.npz", "val"))}
        >>> study_quality([subject], data, [Removal()], Boxes(), out="runs/quality")["groups"]["softmax"]
    """
    if normalise == "intact" and any(removal.score == "logit" for removal in removals):
        raise ValueError("score='logit' has no fixed sign: it needs normalise='none', got 'intact'")
    runs: dict[str, Summary] = {}
    for subject in subjects:
        model = subject.load(device)
        name, dataset = data[subject.name]
        if len(dataset.classes) != model.num_classes:
            raise ValueError(f"{subject.name} knows {model.num_classes} classes, {name} has {len(dataset.classes)}")
        indices = chosen_images(len(dataset), images, boxes.seed)
        summary: Summary = {"group": subject.group, "attention": model.attention, "data": name, "removal": {}}
        for removal in removals:
            results = _measured(subject, model, name, dataset, indices, removal, removal.fill, out, report)
            patches = model.patch_embed.num_patches
            records = _of(results, indices)
            summary["removal"][removal.fill] = summarise_removal(records, patches, normalise)
        results = _measured(subject, model, name, dataset, indices, boxes, "boxes", out, report)
        summary["boxes"] = summarise_boxes(_of(results, indices))
        runs[subject.name] = summary
    settings = {
        "removal": {removal.fill: vars(removal) for removal in removals},
        "boxes": vars(boxes),
        "images": images,
        "normalise": normalise,
    }
    return _grouped(runs, settings, device)


def study_alignment(
    subjects: Sequence[Subject],
    data: Sources,
    settings: Aligning,
    *,
    out: str | Path,
    images: int | None = 64,
    samples: int | None = 512,
    device: torch.device | str = "cpu",
    report: Report | None = None,
) -> Summary:
    """Alignment with the Perron vector of every subject, layer by layer; like :func:`study_quality`.

    Example:
        >>> study_alignment([subject], data, Aligning(), out="runs/align")["groups"]["infsa_linear"]["all_layers"]
    """
    runs: dict[str, Summary] = {}
    for subject in subjects:
        model = subject.load(device)
        name, dataset = data[subject.name]
        indices = chosen_images(len(dataset), images, settings.seed)
        results = _measured(subject, model, name, dataset, indices, settings, "alignment", out, report)
        summary = summarise_alignment(_of(results, indices), samples, settings.seed)
        runs[subject.name] = {"group": subject.group, "attention": model.attention, "data": name, **summary}
    return _grouped(runs, {**vars(settings), "images": images, "samples": samples}, device)


def _measured(
    subject: Subject,
    model: Any,
    data: str,
    dataset: ImageDataset,
    indices: Sequence[int],
    settings: Settings,
    kind: str,
    out: str | Path,
    report: Report | None,
) -> Results:
    """The records of one subject, measured now or read back."""
    device = next(model.parameters()).device
    path = Path(out) / "records" / f"{subject.name}.{kind}.jsonl"
    results = Results(path, configuration(model, data, settings), device)
    done = 0

    def progress(images: int) -> None:
        nonlocal done
        done += images
        if report is not None:
            report(f"{subject.name}: {kind}", done, len(indices))

    measure(model, dataset, indices, results, settings, progress)
    return results


def _of(results: Results, indices: Sequence[int]) -> list[dict[str, Any]]:
    """The records of the chosen images; a file may hold more from an earlier, longer run."""
    chosen = set(indices)
    return sorted((record for record in results.records if record["index"] in chosen), key=lambda r: r["index"])


def _grouped(runs: dict[str, Summary], settings: Mapping[str, Any], device: torch.device | str) -> Summary:
    groups: dict[str, list[Summary]] = {}
    for run in runs.values():
        groups.setdefault(run["group"], []).append(run)
    return {
        "config": dict(settings),
        "made_with": provenance(device),
        "runs": runs,
        "groups": {name: {**over_runs(members), "runs": len(members)} for name, members in groups.items()},
    }
