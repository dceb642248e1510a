"""Every number and figure of docs/attention-quality.md, from a folder of trained weights.

    python benchmarks/attention_quality.py weights/ --data shards/     measure, then write results/ and the page
    python benchmarks/attention_quality.py                             write the page from results/

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
from pages.quality import PAPER, write_page

from infsa.data import NpzShard
from infsa.evaluate import Aligning, Boxes, Removal, Subject, study_alignment, study_quality
from infsa.models import read_weights

ROOT = Path(__file__).parents[1]
FILLS = ("black", "blur", "road", "tokens")
METHODS = ("last", "rollout", "gradient", "tokenrank", "katz", "degree")


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


def measure(
    weights: Path, data: Path, images: int, few: int, head_images: int, device: str, out: Path, results: Path
) -> None:
    """Run the four studies and keep their summaries."""
    found = [subject_of(path) for path in sorted(weights.glob("*.safetensors"))]
    if not found:
        raise typer.BadParameter(f"no SHARD-MODEL-SEED.safetensors in {weights}")
    order = {name: place for place, name in enumerate(PAPER)}
    found.sort(key=lambda pair: (order.get(pair[0].group, len(order)), pair[0].group, pair[0].name))
    subjects, shards = [subject for subject, _ in found], {subject.name: shard for subject, shard in found}
    opened = {shard: NpzShard(data / f"tiny-imagenet-{shard}.npz", "val") for shard in set(shards.values())}
    sources = {name: (f"tiny-imagenet-{shard}/val", opened[shard]) for name, shard in shards.items()}
    paper = [subject for subject in subjects if subject.group in PAPER]
    with_queries = [s for s in subjects if read_weights(s.source)[1].get("attention") in PAPER]
    started = time.perf_counter()

    def report(text: str, done: int, total: int) -> None:
        if done == total:
            print(f"{time.perf_counter() - started:7.1f} s  {text}", flush=True)

    def keep(name: str, summary: dict[str, Any]) -> None:
        results.mkdir(parents=True, exist_ok=True)
        (results / f"{name}.json").write_text(json.dumps(rounded(summary), allow_nan=False) + "\n")

    def quality(chosen: list[Subject], removals: list[Removal], boxes: Boxes, count: int, part: str) -> dict[str, Any]:
        options = {"out": out / part, "device": device, "report": report}
        return study_quality(chosen, sources, removals, boxes, images=count, **options)

    keep("attention-quality", quality(subjects, [Removal()], Boxes(), images, ""))
    keep("attention-quality-fills", quality(paper, [Removal(fill=fill) for fill in FILLS], Boxes(), few, "fills"))
    rivals = quality(paper, [Removal(methods=METHODS)], Boxes(methods=METHODS), few, "rivals")
    keep("attention-quality-rivals", rivals)
    options = {"out": out / "alignment", "device": device, "report": report}
    keep("alignment", study_alignment(with_queries, sources, Aligning(), images=head_images, **options))
    print(f"done in {time.perf_counter() - started:.0f} s")


def main(
    weights: Annotated[
        Path | None, typer.Argument(help="Folder of SHARD-MODEL-SEED.safetensors; without it nothing is measured.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of tiny-imagenet-SHARD.npz.")] = None,
    images: Annotated[int, typer.Option(help="Images of the main study.")] = 500,
    few: Annotated[int, typer.Option(help="Images of the studies over fills and over methods.")] = 100,
    head_images: Annotated[int, typer.Option(help="Images whose heads are aligned.")] = 64,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    out: Path = ROOT / "runs" / "attention-quality",
    results: Path = ROOT / "benchmarks" / "results",
    figures: Path = ROOT / "docs" / "images" / "attention-quality",
    document: Path = ROOT / "docs" / "attention-quality.md",
) -> None:
    """Measure, draw the figures, and fill in the tables of the document."""
    if weights is not None:
        if data is None:
            raise typer.BadParameter("weights need --data, the folder of tiny-imagenet-SHARD.npz")
        measure(weights, data, images, few, head_images, device, out, results)
    write_page(results, figures, document)


if __name__ == "__main__":
    typer.run(main)
