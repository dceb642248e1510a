"""Which start, which optimiser, which decay: small trainings on both shards of Tiny-ImageNet together, 100 classes.

    python benchmarks/experiments.py split DATA shards --parts 3         whole classes in archives of a third
    python benchmarks/experiments.py train start shards runs/start benchmarks/results/start.json --minutes 9
    python benchmarks/experiments.py train wide shards runs/wide benchmarks/results/wide.json --minutes 9 --beside 3
    python benchmarks/experiments.py measure shards runs/wide benchmarks/results --minutes 9
    python benchmarks/experiments.py train decay shards runs/decay benchmarks/results/decay.json --minutes 9
    python benchmarks/experiments.py train ship shards runs/ship benchmarks/results/ship.json --minutes 9 --seeds 0,1
    python benchmarks/tiny_imagenet.py ship runs/ship                    the best seeds become the package's weights

`start`: initialisation × optimiser × mechanism. `wide`: 4 layers of width 1024 with the paper's recipe, whose maps
`measure` compares with boxes, by removal and with the Perron vector. `decay`: what γ does. `ship`: the three models of
the package. The same command continues: a run that was cut off goes on from its checkpoint, a run that the result file
holds is not trained again. Seeds come one after the other, so that an unfinished experiment is balanced.
"""

import dataclasses
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from safetensors import safe_open

from infsa.cli.recipe_options import parse_value
from infsa.data import NpzShard
from infsa.evaluate import Aligning, Boxes, Removal, Subject, study_alignment, study_quality
from infsa.files import read_json, write_json
from infsa.report.quality_tables import alignment_table, box_table, removal_table
from infsa.report.table import Table
from infsa.train import RECIPES, Recipe, list_checkpoints, read_recipe
from infsa.train import train as train_recipe
from infsa.train.resume import check_same_run

Fields = dict[str, Any]
Result = dict[str, list[Fields]]
KEPT = ("top1", "top5", "val_loss", "parameters", "seconds", "history", "recipe", "made_with")
GRACE = 20.0  # seconds before the end: runs save a checkpoint
IMAGES, HEAD_IMAGES = 500, 64  # for the maps, and for the alignment of heads

# The paper's recipe at 64 pixels: hue is left out, which views on the device do not have, and the warm-up has the
# paper's share of the epochs
PAPER: Fields = {
    "image_size": 64, "val_resize": 64, "jitter": [0.4, 0.4, 0.4], "interpolation": "bilinear", "loader": "resident",
    "precision": "bf16-mixed", "compile": True, "epochs": 30, "warmup_epochs": 1, "val_every": 5, "save_every": 2000,
    "keep": 1, "log_every": 200,
}  # fmt: skip
SMALL = PAPER | {"epochs": 20, "batch_size": 256, "lr": 1e-3}  # 4 images where the paper has 1: twice its rate
OPTIMIZERS: dict[str, Fields] = {
    "adamw": {},
    "muon": {"optimizer": "nmuon", "lr": 2e-3, "weight_decay": 0.2, "beta2": 0.95, "clip_norm": 1.0},
}
TINY = {"softmax": "vit_tiny", "infsa_pure": "infvit_pure_tiny", "infsa_linear": "infvit_linear_tiny"}
WIDE = {
    "softmax": "vit_4l16h_patch16_224",
    "infsa_pure": "infvit_pure_4l16h_patch16_224",
    "infsa_linear": "infvit_linear_4l64h_patch16_224",
}
DECAYS: dict[str, Fields] = {
    "constant": {},
    "learned": {"learn_gamma": True},
    "geometric": {"decay": "geometric"},
    "series": {"readout": "series"},
    "series_learned": {"readout": "series", "learn_gamma": True},
    "all_hops": {"attention_options": {"hops": "inf"}},  # Pure alone: Linear-InfSA has one hop
}


def points(experiment: str) -> dict[str, Fields]:
    """The fields of the recipe at every point of an experiment."""
    if experiment == "start":
        return {
            f"{name}_{start}_{optimizer}": SMALL | changes | {"model": model, "weight_init": start}
            for start in ("normal", "xavier", "preserving")
            for optimizer, changes in OPTIMIZERS.items()
            for name, model in TINY.items()
        }
    if experiment == "wide":  # the authors start from Xavier weights
        wide = {"model_options": {"patch_size": 8}, "weight_init": "xavier", "save_every": 5000}
        return {name: PAPER | wide | {"model": model} for name, model in WIDE.items()}
    if experiment == "decay":
        return {
            f"{name}_{decay}": SMALL | {"model": TINY[name], "model_options": options}
            for name in ("infsa_pure", "infsa_linear")
            for decay, options in DECAYS.items()
            if decay != "all_hops" or name == "infsa_pure"
        }
    changes = read_recipe(Path(__file__).with_name("tiny_imagenet.toml")) | {"data": "npz:"}
    strong = RECIPES["tiny"].override(changes).as_dict()
    return {name: strong | {"model": model, "epochs": 100, "val_every": 5} for name, model in TINY.items()}


EXPERIMENTS = ("start", "wide", "decay", "ship")
app = typer.Typer(add_completion=False)


def recipe_of(experiment: str, name: str, seed: int, shards: Path, changes: list[str]) -> Recipe:
    """The recipe of one run."""
    fields = points(experiment)[name] | {"data": f"npz:{shards}", "seed": seed}
    for change in changes:
        field, _, value = change.partition("=")
        fields[field] = parse_value(value)
    return RECIPES["paper"].override(fields)


def without_place(recipe: Recipe) -> Recipe:
    """The recipe as a result file has it: the data by name, wherever they lie."""
    return dataclasses.replace(recipe, data="npz:" + Path(recipe.data.removeprefix("npz:")).name)


def finished(rows: Result, name: str, recipe: Recipe) -> bool:
    """Whether the result file holds this run; a run of another recipe is refused."""
    for row in rows.get(name, ()):
        if row["recipe"]["seed"] == recipe.seed:
            check_same_run(without_place(recipe), row["recipe"])
            return True
    return False


def collect(rows: Result, name: str, folder: Path) -> None:
    """Add a finished run to the result file's content, seeds in order."""
    result = read_json(folder / "result.json")
    row = {key: result[key] for key in KEPT}
    row["recipe"] = without_place(Recipe().override(result["recipe"])).as_dict()
    row["classes"] = len(result["classes"])
    if gammas := learned_decays(folder / "model" / "model.safetensors"):
        row["gammas"] = gammas
    found = [other for other in rows.get(name, ()) if other["recipe"]["seed"] != row["recipe"]["seed"]]
    rows[name] = sorted([*found, row], key=lambda other: other["recipe"]["seed"])


def learned_decays(weights: Path) -> list[list[float]]:
    """γ of every head, layer by layer, where it is learned."""
    with safe_open(weights, "pt") as file:
        names = [name for name in file.keys() if name.endswith("decay.logit")]  # noqa: SIM118
        names.sort(key=lambda name: int(name.split(".")[1]))
        return [[round(value, 4) for value in file.get_tensor(name).float().sigmoid().tolist()] for name in names]


def table(rows: Result, names: list[str], seeds: int) -> str:
    """Accuracy of every point, mean and deviation over its seeds."""
    lines = []
    for name in names:
        values = [100 * row["top1"] for row in rows.get(name, ())]
        mean = f"{statistics.fmean(values):.2f}" if values else ""
        spread = f"{statistics.stdev(values):.2f}" if len(values) > 1 else ""
        lines.append([name, mean, spread, f"{len(values)} of {seeds}"])
    return Table(["point", "top-1, %", "deviation", "seeds"], lines).markdown()


@app.command()
def split(data: Path, out: Path, parts: int = 3) -> None:
    """Write a folder of archives again as so many, whole classes each, in the same order of classes."""
    files = sorted(data.glob("*.npz"))
    chosen: list[tuple[dict[str, Any], int]] = []
    for file in files:
        with np.load(file) as archive:
            arrays = {name: archive[name] for name in archive.files}
        chosen += [(arrays, label) for label in range(len(arrays["name"]))]
    if not 1 <= parts <= len(chosen):
        raise typer.BadParameter(f"--parts must lie in [1, {len(chosen)}], the classes of {data}, got {parts}")
    out.mkdir(parents=True, exist_ok=True)
    for part in range(parts):
        first, last = len(chosen) * part // parts, len(chosen) * (part + 1) // parts
        blobs, columns = [], {name: [] for name in ("label", "box", "is_val", "wnid", "name")}
        for new, (arrays, label) in enumerate(chosen[first:last]):
            rows = np.flatnonzero(arrays["label"] == label)
            blobs += [arrays["jpeg"][arrays["offset"][row] : arrays["offset"][row + 1]] for row in rows]
            columns["label"].append(np.full(len(rows), new, np.int16))
            for name in ("box", "is_val"):
                columns[name].append(arrays[name][rows])
            for name in ("wnid", "name"):
                columns[name].append(arrays[name][label : label + 1])
        joined = {name: np.concatenate(values) for name, values in columns.items()}
        offset = np.cumsum([0, *map(len, blobs)])
        path = out / f"part-{part}.npz"
        np.savez(path, jpeg=np.concatenate(blobs), offset=offset, **joined)
        print(f"{path}: {last - first} classes, {len(blobs)} images, {path.stat().st_size / 2**20:.0f} MiB")


@app.command()
def train(
    experiment: str,
    shards: Annotated[Path, typer.Argument(help="Folder of npz archives.")],
    out: Annotated[Path, typer.Argument(help="Folder of the runs.")],
    to: Annotated[Path, typer.Argument(help="Result file, read and written.")],
    minutes: Annotated[float, typer.Option(help="Time for this call.")] = 9.0,
    beside: Annotated[int, typer.Option(help="Runs at a time.")] = 12,
    seeds: Annotated[str, typer.Option(help="With commas.")] = "0,1,2",
    only: Annotated[str, typer.Option(help="Names of points, with commas; all if empty.")] = "",
    change: Annotated[list[str] | None, typer.Option("--set", help="field=value of every recipe.")] = None,
) -> None:
    """Train an experiment's runs beside each other until they are done or the time is over."""
    deadline = time.monotonic() + 60 * minutes - GRACE
    if experiment not in EXPERIMENTS:
        raise typer.BadParameter(f"experiment must be one of {list(EXPERIMENTS)}, got {experiment!r}")
    names = only.split(",") if only else list(points(experiment))
    if unknown := set(names) - set(points(experiment)):
        raise typer.BadParameter(f"--only must name points of {experiment}, got {sorted(unknown)}")
    changes, numbers = change or [], [int(seed) for seed in seeds.split(",")]
    rows: Result = read_json(to) if to.exists() else {}
    wanted = [(name, seed) for seed in numbers for name in names]
    waiting = [
        run for run in wanted if not finished(rows, run[0], recipe_of(experiment, *run, shards=shards, changes=changes))
    ]
    total, failed, stopping = len(wanted), 0, set[int]()
    running: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
    out.mkdir(parents=True, exist_ok=True)
    while running or (waiting and time.monotonic() < deadline):
        late = time.monotonic() >= deadline
        while waiting and not late and len(running) < beside:
            name, seed = waiting.pop(0)
            command = [sys.executable, __file__, "run", experiment, name, str(seed), str(shards), str(out)]
            with open(out / f"{name}-{seed}.log", "ab") as log:
                sets = [f"--set={item}" for item in changes]
                running[name, seed] = subprocess.Popen([*command, *sets], stdout=log, stderr=log)
        for (name, seed), child in list(running.items()):
            if child.poll() is not None:
                del running[name, seed]
                folder = out / f"{name}-{seed}"
                if (folder / "result.json").exists():
                    collect(rows, name, folder)
                    write_json(rows, to)
                elif child.returncode and child.pid not in stopping:  # some end before they heed the signal
                    failed += 1
                    last = (out / f"{folder.name}.log").read_text(errors="replace").strip().splitlines()[-1:]
                    print(f"{folder.name} failed: {' '.join(last)}", flush=True)
            elif late and child.pid not in stopping:
                child.send_signal(signal.SIGTERM)  # it saves a checkpoint and ends
                stopping.add(child.pid)
            elif time.monotonic() >= deadline + GRACE:
                child.kill()
        time.sleep(0.5)
    done = sum(row["recipe"]["seed"] in numbers for name in names for row in rows.get(name, ()))
    print(table(rows, names, len(numbers)))
    print(f"{done} of {total} runs are in {to}" + ("; the same command continues" if done < total else ""))
    if failed:
        raise SystemExit(1)


@app.command()
def run(
    experiment: str,
    name: str,
    seed: int,
    shards: Path,
    out: Path,
    change: Annotated[list[str] | None, typer.Option("--set")] = None,
) -> None:
    """Train one run, from its checkpoint if it has one."""
    recipe, folder = recipe_of(experiment, name, seed, shards, change or []), out / f"{name}-{seed}"
    if (folder / "result.json").exists():
        check_same_run(recipe, read_json(folder / "result.json")["recipe"])
        return
    train_recipe(recipe, folder, resume=bool(list_checkpoints(folder / "checkpoints")))


class TimeOver(Exception):
    """The time of a call is over; what was measured is kept."""


@app.command()
def measure(
    shards: Path,
    out: Annotated[Path, typer.Argument(help="Folder of finished runs.")],
    results: Annotated[Path, typer.Argument(help="Folder of quality-wide.json and alignment-wide.json.")],
    minutes: Annotated[float, typer.Option(help="Time for this call.")] = 9.0,
    images: Annotated[int, typer.Option(help="Images for the maps.")] = IMAGES,
    head_images: Annotated[int, typer.Option(help="Images whose heads are aligned.")] = HEAD_IMAGES,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    """Removal, boxes and alignment of every finished run; records of images stay beside the runs."""
    deadline = time.monotonic() + 60 * minutes
    folders = sorted(path.parent for path in out.glob("*/result.json"))
    if not folders:
        raise typer.BadParameter(f"{out} holds no finished run")
    subjects = [Subject(f.name, f.name.rpartition("-")[0], str(f / "model")) for f in folders]
    data = dict.fromkeys((subject.name for subject in subjects), (f"{shards.name}/val", NpzShard(shards, "val")))

    def report(text: str, done: int, whole: int) -> None:
        if time.monotonic() > deadline:
            raise TimeOver

    options: Fields = {"device": device, "report": report}
    results.mkdir(parents=True, exist_ok=True)
    try:
        quality = study_quality(subjects, data, [Removal()], Boxes(), images=images, out=out / "quality", **options)
        write_json(quality, results / "quality-wide.json")
        found = study_alignment(subjects, data, Aligning(), images=head_images, out=out / "alignment", **options)
        write_json(found, results / "alignment-wide.json")
    except TimeOver:
        print("the time is over; the same command continues")
        return
    for text in (removal_table(quality, "mean"), box_table(quality, "centre"), alignment_table(found)):
        print(text.markdown())


if __name__ == "__main__":
    app()
