"""Every number and figure of docs/attention-quality.md, from a folder of trained weights.

    python benchmarks/attention_quality.py weights/ --data shards/

The weights are called SHARD-MODEL-SEED.safetensors (`a-softmax-0.safetensors`); SHARD finds the data,
`tiny-imagenet-SHARD.npz`, and the runs of a MODEL over shards and seeds are its repetitions. An interrupted run goes on
where it stopped; records of single images stay in `--out`, summaries and figures go where the document reads them.
"""

import json
import re
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from pages.gallery import draw_gallery
from pages.marks import write_tables

from infsa.data import NpzShard
from infsa.evaluate import Aligning, Boxes, Removal, Subject, chosen_images, explain, study_alignment, study_quality
from infsa.models import read_weights
from infsa.report.quality_figures import draw_alignment_bars, draw_quality
from infsa.report.quality_tables import alignment_table, box_table, removal_table

PAPER = ("softmax", "infsa_pure", "infsa_linear")  # compared under every fill and method, and in the gallery
RIVALS = ("last", "rollout", "gradient", "tokenrank", "katz", "degree")
FILLS = ("black", "blur", "road", "tokens")
ROOT = Path(__file__).parents[1]


def subject_of(path: Path) -> tuple[Subject, str]:
    """The subject of a file, and its shard."""
    match = re.fullmatch(r"([^-]+)-(.+)-(\d+)", path.stem)
    if match is None:
        raise ValueError(f"weights must be called SHARD-MODEL-SEED.safetensors, got {path.name}")
    return Subject(path.stem, match[2], str(path)), match[1]


def rounded(value: Any, digits: int = 5) -> Any:
    """Plain data with shorter numbers, for files that are kept."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(entry, digits) for key, entry in value.items()}
    return [rounded(entry, digits) for entry in value] if isinstance(value, list | tuple) else value


def gallery(subjects: list[Subject], shards: dict[str, str], data: dict[str, Any], path: Path, device: str) -> None:
    """The first seed of the three mechanisms on six images of one shard."""
    shard = shards[subjects[0].name]
    first = {name: next((s for s in subjects if s.group == name and shards[s.name] == shard), None) for name in PAPER}
    models = {name: subject.load(device) for name, subject in first.items() if subject is not None}
    dataset = data[subjects[0].name][1]
    samples = [dataset[index] for index in chosen_images(len(dataset), 6, seed=1)]
    found = [{name: explain(model, sample.image) for name, model in models.items()} for sample in samples]
    for explanations in found:
        for explanation in explanations.values():
            names = dataset.classes
            explanation.predictions[:] = [(_short(names, label), share) for label, share in explanation.predictions]
    draw_gallery([s.image for s in samples], found, path, [dataset.classes[s.label].split(",")[0] for s in samples])


def _short(names: list[str], label: str) -> str:
    number = label.removeprefix("class ")
    return (names[int(number)] if number.isdigit() else label).split(",")[0]


def main(
    weights: Annotated[Path, typer.Argument(help="Folder of SHARD-MODEL-SEED.safetensors.")],
    data: Annotated[Path, typer.Option(help="Folder of tiny-imagenet-SHARD.npz.")],
    images: Annotated[int, typer.Option(help="Images of the main study.")] = 500,
    few: Annotated[int, typer.Option(help="Images of the studies over fills and over methods.")] = 100,
    head_images: Annotated[int, typer.Option(help="Images whose heads are aligned.")] = 64,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    out: Path = ROOT / "runs" / "attention-quality",
    results: Path = ROOT / "benchmarks" / "results",
    figures: Path = ROOT / "docs" / "images" / "attention-quality",
    document: Path = ROOT / "docs" / "attention-quality.md",
) -> None:
    """Measure, summarise, draw, and fill in the tables of the document."""
    found = [subject_of(path) for path in sorted(weights.glob("*.safetensors"))]
    if not found:
        raise typer.BadParameter(f"no SHARD-MODEL-SEED.safetensors in {weights}")
    order = {name: place for place, name in enumerate(PAPER)}
    found.sort(key=lambda pair: (order.get(pair[0].group, len(order)), pair[0].group, pair[0].name))
    subjects, shards = [subject for subject, _ in found], {subject.name: shard for subject, shard in found}
    opened = {shard: NpzShard(data / f"tiny-imagenet-{shard}.npz", "val") for shard in set(shards.values())}
    sources = {name: (f"tiny-imagenet-{shard}/val", opened[shard]) for name, shard in shards.items()}
    paper = [subject for subject in subjects if subject.group in PAPER]
    started, common = time.perf_counter(), {"out": out, "device": device}

    def report(text: str, done: int, total: int) -> None:
        if done == total:
            print(f"{time.perf_counter() - started:7.1f} s  {text}", flush=True)

    def keep(name: str, summary: dict[str, Any]) -> dict[str, Any]:
        results.mkdir(parents=True, exist_ok=True)
        kept = rounded(summary)
        (results / f"{name}.json").write_text(json.dumps(kept, allow_nan=False) + "\n")
        return kept

    figures.mkdir(parents=True, exist_ok=True)
    main_study = keep(
        "attention-quality",
        study_quality(subjects, sources, [Removal()], Boxes(), images=images, report=report, **common),
    )
    draw_quality(main_study, figures)
    common["out"] = out / "fills"
    removals = [Removal(fill=fill) for fill in FILLS]
    fills = study_quality(paper, sources, removals, Boxes(), images=few, report=report, **common)
    keep("attention-quality-fills", fills)
    common["out"] = out / "rivals"
    rivals = study_quality(
        paper, sources, [Removal(methods=RIVALS)], Boxes(methods=RIVALS), images=few, report=report, **common
    )
    keep("attention-quality-rivals", rivals)
    common["out"] = out / "alignment"
    with_queries = [s for s in subjects if read_weights(s.source)[1].get("attention") in PAPER]
    aligned = study_alignment(with_queries, sources, Aligning(), images=head_images, report=report, **common)
    keep("alignment", aligned)
    draw_alignment_bars(aligned, figures / "alignment.png")
    gallery(paper, shards, sources, figures / "gallery.png", device)
    tables = {
        "removal": removal_table(main_study, "mean"),
        "boxes": box_table(main_study),
        "boxes-area": box_table(main_study, "area"),
        **{f"fill-{fill}": removal_table(fills, fill) for fill in FILLS},
        "rivals": removal_table(rivals, "mean"),
        "rivals-boxes": box_table(rivals),
        "alignment": alignment_table(aligned),
        "alignment-layers": alignment_table(aligned, layers=True),
    }
    where = figures.relative_to(document.parent) if figures.is_relative_to(document.parent) else figures
    shown = {
        "figures": "".join(f"![{name}]({where}/{name}.png)\n" for name in ("morf", "lerf", "roc", "pr", "summary")),
        "gallery": f"![maps of three mechanisms on six images]({where}/gallery.png)\n",
        "alignment-figure": f"![agreement with the Perron vector]({where}/alignment.png)\n",
    }
    write_tables(document, {**{name: table.markdown() for name, table in tables.items()}, **shown})
    print(f"done in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    typer.run(main)
