"""A whole study: several models, each measured and summarised, then grouped over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data import ImageDataset
from ..models import InfViT
from ..provenance import provenance
from .measure import chosen_images, configuration, measure
from .results import Record, Results
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

    An interrupted study continues. The result holds each run and, for each group, the mean over its runs.
    """
    if normalise == "intact" and any(removal.score == "logit" for removal in removals):
        raise ValueError("score='logit' has no fixed sign: it needs normalise='none', got 'intact'")
    runs: dict[str, Summary] = {}
    plan = _Plan(data, Path(out), images, boxes.seed, report)
    for subject in subjects:
        model, (name, dataset) = subject.load(device), data[subject.name]
        if len(dataset.classes) != model.num_classes:
            raise ValueError(
                f"{subject.name} has {model.num_classes} classes, {_shown(name)} has {len(dataset.classes)}: train a "
                "model on these data (infsa train), or name data with the model's classes"
            )
        patches = model.patch_embed.num_patches
        removed = {
            removal.fill: summarise_removal(plan.records(subject, model, removal, removal.fill), patches, normalise)
            for removal in removals
        }
        found = summarise_boxes(plan.records(subject, model, boxes, "boxes"))
        runs[subject.name] = {**plan.facts(subject, model), "removal": removed, "boxes": found}
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
    """Alignment with the Perron vector of every subject, layer by layer; like :func:`study_quality`."""
    runs: dict[str, Summary] = {}
    plan = _Plan(data, Path(out), images, settings.seed, report)
    for subject in subjects:
        model = subject.load(device)
        found = summarise_alignment(plan.records(subject, model, settings, "alignment"), samples, settings.seed)
        runs[subject.name] = {**plan.facts(subject, model), **found}
    return _grouped(runs, {**vars(settings), "images": images, "samples": samples}, device)


@dataclass(frozen=True)
class _Plan:
    """Which images are measured, and where their records go."""

    data: Sources
    out: Path
    images: int | None
    seed: int
    report: Report | None

    def facts(self, subject: Subject, model: InfViT) -> Summary:
        """What a summary begins with."""
        return {"group": subject.group, "attention": model.attention, "data": self.data[subject.name][0]}

    def records(self, subject: Subject, model: InfViT, settings: Settings, kind: str) -> list[Record]:
        """What was measured, now or before; a file may hold more from an earlier, longer run."""
        name, dataset = self.data[subject.name]
        indices = chosen_images(len(dataset), self.images, self.seed)
        path = self.out / "records" / f"{subject.name}.{kind}.jsonl"
        results = Results(path, configuration(model, name, settings), next(model.parameters()).device)
        done = 0

        def progress(images: int) -> None:
            nonlocal done
            done += images
            if self.report is not None:
                self.report(f"{subject.name}: {kind}", done, len(indices))

        measure(model, dataset, indices, results, settings, progress)
        chosen = set(indices)
        return sorted((record for record in results.records if record["index"] in chosen), key=lambda r: r["index"])


def _shown(name: str) -> str:
    """A source and its split, as in ``shapes (val)``."""
    source, _, split = name.rpartition("/")
    return f"{source.removesuffix(':')} ({split})" if source else name


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
