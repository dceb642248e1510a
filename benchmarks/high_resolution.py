"""Does it learn at high resolution? Train one small model with several mechanisms on megapixel digits.

    python benchmarks/high_resolution.py train linear softmax --mnist MNIST --out runs/hr --seconds 240
    python benchmarks/high_resolution.py collect runs/hr               # results/high-resolution-h200.json
    python benchmarks/high_resolution.py document --mnist MNIST   # figure and tables of docs/high-resolution.md

Every run has the same stem, width, depth and GPU seconds: the speed of its first steps decides how many epochs fit, and
is part of the result. Runs at 1500² grow: the same 5,000 sets of digits are first shown on smaller canvases, at other
places in every epoch. Each run writes NAME.json and its model, the folder NAME, from which others may start. The parts
are in benchmarks/digits; the tables and the figure in benchmarks/pages/high_resolution.py.
"""

import dataclasses
import functools
import json
import resource
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from digits.runs import RUNS
from digits.training import train_run
from pages.high_resolution import accuracy_figure, page_tables
from pages.marks import write_tables

from infsa.bench.memory import cap_memory
from infsa.data import MegapixelDigits
from infsa.evaluate import load_model
from infsa.files import read_json, write_json
from infsa.provenance import provenance
from infsa.streaming import stream_backward

app = typer.Typer(add_completion=False)
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "high-resolution-h200.json"


@app.command()
def train(
    names: list[str],
    mnist: Annotated[str, typer.Option(help="Folder of MNIST's files.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    seconds: Annotated[float, typer.Option(help="Of training, for each run.")] = 240,
    length: Annotated[int, typer.Option(help="Training images.")] = 5000,
    maps: Annotated[bool, typer.Option(help="Judge where the maps lie.")] = True,
    change: Annotated[list[str] | None, typer.Option("--set", help="field=value of every run.")] = None,
) -> None:
    """Train the named runs, one after the other; a run that fails does not stop the others."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        fields = {key: _value(value) for key, value in (pair.split("=", 1) for pair in change or [])}
        began = time.perf_counter()
        try:
            result = train_run(name, dataclasses.replace(RUNS[name], **fields), mnist, out, seconds, length, maps)
            write_json(result, out / f"{name}.json")
            scores = "  ".join(f"{key} {value:.1%}" for key, value in result["test"].items())
            print(f"{name}: {scores}  {time.perf_counter() - began:.0f} s", flush=True)
        except Exception as error:  # the runs after it are worth having
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@app.command()
def stream(
    model: Path, mnist: str, to: Path, side: int = 6000, steps: int = 8, gibibytes: float = 4, seconds: float = 60
) -> None:
    """Train on single images by streaming, within a fixed memory: the GPU's where there is one, else the process's."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limit = int(gibibytes * 2**30)
    if device.type == "cuda":
        cap_memory(device, limit)
    network = load_model(model, device)
    data = MegapixelDigits(mnist, "train", side=side, length=steps)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-4)
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for index in range(steps):
        image, answers, _ = data.compose(torch.tensor([index]))
        loss = functools.partial(data.tasks.loss, targets=data.tasks.targets(answers).to(device))
        options: dict[str, Any] = {} if device.type == "cuda" else {"memory": limit}
        since = time.perf_counter()
        found = stream_backward(network, image[0].float() / 255, loss, tile=1024, **options)
        optimizer.step()
        optimizer.zero_grad()
        rows.append({"seconds": time.perf_counter() - since, "loss": float(found.loss), "strategy": found.strategy})
        print(f"streamed {side}²: {rows[-1]}", flush=True)
        if time.perf_counter() - began > seconds:
            break
    peak = torch.cuda.max_memory_reserved() if device.type == "cuda" else 1024 * resource.getrusage(0).ru_maxrss
    made = {"side": side, "limit": limit, "peak_bytes": peak, "steps": rows, "made_with": provenance(device)}
    write_json(made, to)


@app.command()
def collect(out: Path, to: Path = RESULTS) -> None:
    """Put the results of all runs in a folder into one file, beside those that it has; of the maps, the last."""
    found = read_json(to) if to.exists() else {}
    for path in sorted(out.glob("*.json")):
        row = read_json(path)
        found[path.stem] = row | ({"example": row["example"][-1:]} if "example" in row else {})
    text = json.dumps(json.loads(json.dumps(found), parse_float=lambda number: float(f"{float(number):.6g}")))
    to.write_text(text + "\n", encoding="utf-8")


@app.command()
def document(
    mnist: Annotated[str, typer.Option(help="Folder of MNIST's files; else scikit-learn's digits.")] = "",
) -> None:
    """Draw the figure and fill in the tables of docs/high-resolution.md, from the file in results/."""
    found = read_json(RESULTS)
    accuracy_figure(found, mnist, ROOT / "docs" / "images" / "high-resolution.png")
    write_tables(ROOT / "docs" / "high-resolution.md", page_tables(found))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    app()
