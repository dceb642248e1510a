"""Train softmax, Pure, Linear and the mean control on a shard of Tiny-ImageNet with one recipe, several seeds each.

    python benchmarks/tiny_imagenet.py train shard.npz runs/a     # all runs beside each other on one GPU
    python benchmarks/tiny_imagenet.py collect runs/a benchmarks/results/tiny-imagenet-a.json
    python benchmarks/tiny_imagenet.py ship runs/a                # the best seeds become the package's weights
    infsa ablate --config benchmarks/tiny_imagenet.toml --epochs 30 --data npz:shard.npz --quality-images 400
    python benchmarks/tiny_imagenet.py document                   # figures and table of docs/training.md

A run that was cut off goes on where it stopped. `collect` keeps every number that the table and the curves are drawn
from: configuration, versions, machine, accuracy per seed and epoch.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pages.marks import write_tables
from pages.training import draw_comparison
from safetensors.torch import save_file

import infsa
from infsa.cli.recipe_options import parse_pairs
from infsa.files import read_json, write_atomically, write_json
from infsa.models import read_weights
from infsa.models.presets import SHIPPED, shipped_weights
from infsa.models.weights import read_data_config
from infsa.report.ablation import draw_ablation
from infsa.train import RECIPES, list_checkpoints, read_recipe
from infsa.train import train as train_recipe

MECHANISMS: dict[str, dict[str, Any]] = {
    "softmax": {"model": "vit_tiny"},
    "infsa_pure": {"model": "infvit_pure_tiny"},
    "infsa_linear": {"model": "infvit_linear_tiny"},
    "mean": {"model": "vit_tiny", "model_options": {"attention": "mean"}},
    "softmax_12h": {"model": "vit_tiny", "model_options": {"num_heads": 12}},
    "infsa_pure_12h": {"model": "infvit_pure_tiny", "model_options": {"num_heads": 12}},
    "infsa_linear_3h": {"model": "infvit_linear_tiny", "model_options": {"num_heads": 3}},
}
REPORTED = ("top1", "top5", "val_loss", "parameters", "seconds", "history", "recipe", "made_with")
app = typer.Typer(add_completion=False)


@app.command()
def train(
    shard: Path,
    out: Path,
    only: Annotated[str, typer.Option(help="Names of mechanisms, with commas.")] = ",".join(MECHANISMS),
    seeds: Annotated[str, typer.Option(help="With commas.")] = "0,1,2",
    change: Annotated[list[str] | None, typer.Option("--set", help="field=value of the recipe.")] = None,
) -> None:
    """Train every mechanism with every seed, each run in a process of its own."""
    names = [(name, int(seed)) for name in only.split(",") for seed in seeds.split(",")]
    if len(names) > 1:
        head = [sys.executable, __file__, "train", str(shard), str(out)]
        sets = [f"--set={item}" for item in change or []]
        runs = [subprocess.Popen([*head, "--only", name, "--seeds", str(seed), *sets]) for name, seed in names]
        sys.exit(max(run.wait() for run in runs))
    (name, seed), folder = names[0], out / f"{names[0][0]}-{names[0][1]}"
    fields = read_recipe(Path(__file__).with_suffix(".toml")) | parse_pairs(change or [])
    recipe = RECIPES["tiny"].override(fields | MECHANISMS[name] | {"data": f"npz:{shard}", "seed": seed})
    run = train_recipe(recipe, folder, resume=bool(list_checkpoints(folder / "checkpoints")))
    found = "stopped" if run.stopped else f"top-1 {run.result['top1']:.2%} after {run.result['seconds']:.0f} s"
    print(f"{folder.name}: {found}", flush=True)


@app.command()
def collect(out: Path, to: Path) -> None:
    """Join the results of all finished runs into one file and print their accuracies."""
    rows: dict[str, list[dict[str, object]]] = {}
    for path in sorted(out.glob("*/result.json")):
        result = read_json(path)
        result["recipe"]["data"] = "npz:" + Path(result["recipe"]["data"]).name
        rows.setdefault(path.parent.name.rsplit("-", 1)[0], []).append({key: result[key] for key in REPORTED})
    write_json(rows, to)
    for name, runs in rows.items():
        print(f"{name:16s}", "  ".join(f"{run['top1']:.2%}" for run in runs))


@app.command()
def document() -> None:
    """Draw the figures and fill in the table of docs/training.md, from the files in results/."""
    root = Path(__file__).parents[1]
    results, images = root / "benchmarks" / "results", root / "docs" / "images"
    shards = {path.stem[-1]: read_json(path) for path in sorted(results.glob("tiny-imagenet-?.json"))}
    draw_comparison(shards, images / "tiny-imagenet.png")
    draw_ablation(read_json(results / "ablation.json"), images / "ablation.png")
    write_tables(root / "docs" / "training.md", {"results": results_table(shards)})


def results_table(shards: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Mean and deviation of every mechanism on every shard, in Markdown."""
    lines = ["| attention | heads | parameters |" + "".join(f" shard {shard} |" for shard in shards)]
    lines.append("| --- | --- | --- |" + " --- |" * len(shards))
    for name in [name for name in MECHANISMS if any(name in rows for rows in shards.values())]:
        cells = []
        for rows in shards.values():
            values = [100 * run["top1"] for run in rows.get(name, [])]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.fmean(values):.1f} ± {spread:.1f} (n = {len(values)})" if values else "not run")
        first = next(rows[name][0] for rows in shards.values() if name in rows)
        fields = MECHANISMS[name]
        heads = infsa.create_model(fields["model"], **fields.get("model_options", {})).num_heads
        label = {"mean": "mean (control)"}.get(name, name)
        lines.append(f"| {label} | {heads} | {first['parameters']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@app.command()
def ship(out: Path) -> None:
    """Write the best seed of each shipped model into the package, in half precision, with the names of its classes."""
    found = {}
    for name, fields in MECHANISMS.items():
        if "model_options" in fields or fields["model"] not in SHIPPED:
            continue
        found[fields["model"]] = {path.parent: read_json(path) for path in out.glob(f"{name}-[0-9]*/result.json")}
        if not found[fields["model"]]:
            raise typer.BadParameter(f"{out} holds no finished run of {name}")
    for model, results in found.items():
        best = max(sorted(results), key=lambda folder, results=results: results[folder]["top1"])
        weights, arguments = read_weights(best / "model")
        half = {key: value.half() if value.is_floating_point() else value for key, value in weights.items()}
        header = {
            "format": "pt",
            "infsa": json.dumps(arguments | {"drop_path_rate": 0.0}),
            "data": json.dumps({**read_data_config(best / "model"), "label_names": results[best]["classes"]}),
        }
        write_atomically(shipped_weights(model), lambda aside, half=half, header=header: save_file(half, aside, header))
        print(f"{model}: {best.name}, top-1 {results[best]['top1']:.2%}")


if __name__ == "__main__":
    app()
