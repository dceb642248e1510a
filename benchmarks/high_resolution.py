"""Does it learn at high resolution? Train one small model with several mechanisms on megapixel digits.

    python benchmarks/high_resolution.py train linear softmax --mnist MNIST --out runs/hr --seconds 240
    python benchmarks/high_resolution.py collect runs/hr benchmarks/results/high-resolution-h200.json
    python benchmarks/high_resolution.py document                 # figure and tables of docs/high-resolution.md

Every run has the same stem, width, depth and GPU seconds: the speed of its first steps decides how many epochs fit, and
is part of the result. Runs at 1500² grow: the same 5,000 sets of digits are first shown on smaller canvases, at other
places in every epoch. Each run writes NAME.json and its model, the folder NAME, from which others may start.
"""

import dataclasses
import functools
import itertools
import json
import math
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pages.marks import write_tables
from torch import Tensor, nn
from torch.nn import functional as F

from infsa.bench.energy import find_meter, open_gpu
from infsa.bench.memory import cap_memory
from infsa.data.boxes import patch_coverage
from infsa.data.megapixel import MegapixelDigits
from infsa.data.order import Order
from infsa.evaluate import load_model
from infsa.files import read_json, write_json
from infsa.models import InfViT, read_weights, save_weights
from infsa.provenance import provenance
from infsa.report.figures import BLUE, GREY, INK, ORANGE, RED
from infsa.report.table import Table
from infsa.streaming import stream_backward

app = typer.Typer(add_completion=False)
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "high-resolution-h200.json"
LABELS = {
    "linear": "Linear-InfSA", "pure": "Pure InfSA", "softmax": "softmax", "mean": "mean (control)", "agent": "Agent",
    "flatten": "FLatten",
}  # fmt: skip
MARKS = 4  # times in a stage that accuracy is measured
TRIAL = 20  # steps at the beginning of a stage, whose time decides how many epochs it has
TOGETHER = 4  # steps whose images are made at once
MAPPED = 32  # test images whose maps are judged


STAGES = (
    (200, 4, 64, 0.2),
    (300, 10, 64, 0.3),
    (700, 24, 32, 0.15),
    (1500, 50, 16, 0.35),
)  # side, noise, batch, share of the time


STAGES_3000 = ((200, 4, 64, 0.22), (300, 10, 64, 0.31), (700, 24, 32, 0.08), (3000, 50, 8, 0.39))


@dataclass(frozen=True)
class Run:
    """What is trained, on images of which side, and how."""

    attention: str = "infsa_linear"
    tested: int = 1000  # test images
    keep: bool = False  # whether the model is written, for others to start from
    beyond: tuple[tuple[int, int], ...] = ()  # further sides on which it is tested, and on how many images
    stem: str = "conv"
    side: int = 1500
    shown: int = 0  # the model sees the image shrunk to this side; 0: as it is
    start: str = ""  # the run whose weights it starts from
    stages: tuple[tuple[int, int, int, float], ...] = STAGES
    lr: float = 1e-3
    warmup: float = 0.02  # share of the run in which the rate rises
    flat: float = 0.5  # until when it stays
    weight_decay: float = 0.05
    smoothing: float = 0.05
    clip: float = 1.0
    top_weight: float = 2.0  # of the loss of the hardest task; the others have 1
    augment: float = 1.0
    scatter: bool = True
    dim: int = 128
    depth: int = 4
    heads: int = 8
    mlp_ratio: float = 2.0
    gamma: float = 0.7
    pool: str = "avg"
    waves: float = 3.0  # amplitude of the positions: smooth waves that stay as they are
    patch: int = 16
    mask: bool = False  # whether patches that are all black are hidden from the attention
    options: tuple[tuple[str, Any], ...] = ()  # of the mechanism
    seed: int = 0


RUNS = {
    "linear": Run(keep=True, beyond=((3000, 250), (6000, 60))),
    "pure": Run(attention="infsa_pure"),
    "softmax": Run(attention="softmax"),
    "mean": Run(attention="mean"),
    "agent": Run(attention="agent"),
    "flatten": Run(attention="flatten"),
    "linear-patches": Run(stem="patch"),
    "softmax-patches": Run(attention="softmax", stem="patch"),
    "linear-224": Run(shown=224),
    "linear-512": Run(shown=512),
    "linear-3000": Run(
        side=3000, start="linear", stages=((3000, 50, 8, 1.0),), lr=3e-4, tested=250, beyond=((6000, 48),)
    ),
    "softmax-3000": Run(attention="softmax", side=3000, stages=STAGES_3000, tested=250, beyond=((6000, 24),)),
}


def build(run: Run, device: torch.device) -> InfViT:
    """The model of a run: one grey channel, forty outputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        decayed = {"gamma": run.gamma} if run.attention in ("infsa_linear", "infsa_pure", "mean", "energy") else {}
        model = InfViT(
            img_size=run.shown or run.side, patch_size=run.patch, in_chans=1, num_classes=40, stem=run.stem,
            embed_dim=run.dim, depth=run.depth, num_heads=run.heads, mlp_ratio=run.mlp_ratio, attention=run.attention,
            attention_options=dict(run.options), pos_embed="learn", global_pool=run.pool, dynamic_img_pad=True,
            **decayed,
        )  # fmt: skip
    model.patch_embed.to(memory_format=torch.channels_last)
    assert model.pos_embed is not None
    table = run.waves * smooth_waves(model.patch_embed.grid_size, run.dim)
    model.pos_embed = nn.Parameter(F.pad(table, (0, 0, model.num_prefix_tokens, 0))[None], requires_grad=False)
    return model.to(device)


def smooth_waves(grid: tuple[int, int], dim: int) -> Tensor:
    """Sines and cosines of rows and columns, a quarter to three periods over the image: (h·w, D)."""
    waves = []
    for size in grid:
        angle = (torch.arange(size) + 0.5)[:, None] / size * torch.linspace(0.5, 6, dim // 4) * math.pi
        waves.append(torch.cat([angle.sin(), angle.cos()], 1))  # (size, D/2)
    down, across = waves
    both = [down[:, None].expand(-1, grid[1], -1), across[None].expand(grid[0], -1, -1)]
    return torch.cat(both, -1).flatten(0, 1)


class Step:
    """One optimiser step on images that are composed on the device, replayed as a CUDA graph where that works."""

    def __init__(self, run: Run, model: InfViT, device: torch.device) -> None:
        self.run, self.model, self.device = run, model, device
        decayed = [p for p in model.parameters() if p.dim() > 1 and p.requires_grad]
        plain = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": run.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.rate = torch.zeros((), device=device)
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98), fused=cuda, capturable=cuda)
        self.totals = torch.zeros(5, device=device)  # loss and hits of the four tasks, summed over steps

    def begin(self, data: MegapixelDigits, batch: int) -> None:
        """Go on with other images."""
        self.data = data
        self.images = torch.zeros(batch, 1, data.side, data.side, dtype=torch.uint8, device=self.device)
        self.answers = torch.zeros(batch, 40, dtype=torch.uint8, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, indices: Tensor, epoch: int, rates: list[float]) -> None:
        """Make the images of several steps, put those of each where it reads them, and take it."""
        images, answers, _ = self.data.compose(indices, epoch)
        parts = zip(images.split(len(self.images)), answers.split(len(self.images)), rates, strict=True)
        for own, wanted, rate in parts:
            self.images.copy_(own)
            self.answers.copy_(wanted)
            self.rate.fill_(rate)
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()

    def capture(self) -> str:
        """Record the step after a few plain ones; returns why not if it cannot be recorded."""
        if self.device.type != "cuda":
            return "no GPU"
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step()
        except RuntimeError as error:
            return str(error).splitlines()[0]
        self.graph = graph
        return ""

    def _step(self) -> None:
        tasks = self.data.tasks
        logits = seen(self.model, self.run, self.images)
        targets = tasks.targets(self.answers, self.run.smoothing)
        loss = tasks.loss(logits, targets)
        if self.run.top_weight != 1:
            loss = loss + (self.run.top_weight - 1) * F.cross_entropy(logits[:, 20:30], targets[:, 20:30])
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], self.run.clip, foreach=True)
        self.optimizer.step()
        self.totals += torch.cat([loss.detach()[None], tasks.hits(logits.detach(), self.answers).mean(0)])


def seen(model: InfViT, run: Run, images: Tensor) -> Tensor:
    """Logits of images (B, 1, S, S) uint8, in bfloat16 on GPUs."""
    cuda = images.is_cuda
    pixels = images.to(torch.bfloat16 if cuda else torch.float32) / 255
    pixels, mask = shrunk(pixels, run), None
    if run.mask:
        pad = -pixels.shape[-1] % run.patch
        mask = F.max_pool2d(F.pad(pixels, (0, pad, 0, pad)), run.patch)[:, 0] > 0
    with torch.autocast(images.device.type, torch.bfloat16, enabled=cuda):
        return model(pixels, mask).float()


def shrunk(pixels: Tensor, run: Run) -> Tensor:
    """Images at the side that the model sees."""
    return F.interpolate(pixels, (run.shown, run.shown), mode="area") if run.shown else pixels


@torch.no_grad()
def accuracy(model: InfViT, run: Run, data: MegapixelDigits, batch: int, device: torch.device) -> dict[str, float]:
    """The share of test images that each task has right, and of the bits of the last."""
    model.eval()
    total, bits = torch.zeros(len(data.tasks), device=device), torch.zeros((), device=device)
    for indices in torch.arange(len(data), device=device).split(2 * batch):
        images, answers, _ = data.compose(indices)
        logits = seen(model, run, images)
        total += data.tasks.hits(logits, answers).sum(0)
        bits += ((logits[:, -10:] > 0) == (answers[:, -10:] > 0)).float().mean(-1).sum()
    model.train()
    shares = (torch.cat([total, bits[None]]) / len(data)).tolist()
    return dict(zip([*(task.name for task in data.tasks), "multi_bits"], shares, strict=True))


@torch.no_grad()
def judge_maps(model: InfViT, run: Run, data: MegapixelDigits, device: torch.device) -> tuple[Any, Any]:
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


def rate_at(run: Run, done: float) -> float:
    """A linear rise, the highest rate, then half a cosine to zero, over the share of the run that is done."""
    if done < run.warmup:
        return run.lr * done / run.warmup
    return run.lr * (1 + math.cos(math.pi * min(1.0, max(0.0, done - run.flat) / (1 - run.flat)))) / 2


def batched(parts: list[Any]) -> list[list[Any]]:
    """Steps in groups whose images are made at once."""
    return [parts[start : start + TOGETHER] for start in range(0, len(parts), TOGETHER)]


def take_steps(
    step: Step, order: Order, first_epoch: int, before: float, share: float, start: int, end: int, total: int
) -> float:
    """Take steps ``start`` to ``end`` of the ``total`` of a stage that has a share of the run; returns the seconds."""
    since, place = time.perf_counter(), start
    for epoch, group in itertools.groupby(order.parts(start, end), key=lambda part: part[0]):
        for some in batched([images for _, images in group]):
            rates = [rate_at(step.run, before + share * (place + i) / total) for i in range(len(some))]
            step(torch.from_numpy(np.concatenate(some)).to(step.device), first_epoch + epoch, rates)
            place += len(some)
    if step.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - since


def train_run(name: str, run: Run, mnist: str, out: Path, seconds: float, length: int, maps: bool) -> dict[str, Any]:
    """Train for so many seconds, stage by stage, and return everything that is reported."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    test = MegapixelDigits(mnist, "val", side=run.side, length=min(run.tested, length), seed=run.seed)
    model = build(run, device).train()
    if run.start:
        table, weights = model.pos_embed, read_weights(out / run.start)[0]
        model.load_state_dict(weights | {"pos_embed": table})  # its waves span the larger grid
    step = Step(run, model, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    gpu = open_gpu(device) if device.type == "cuda" else ""
    meter = None if isinstance(gpu, str) else find_meter(device, gpu)
    began, joules = time.perf_counter(), meter.joules() if meter else 0.0
    history: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []
    before = 0.0  # share of the run that is done
    for number, (side, noise, batch, share) in enumerate(run.stages):
        shown: dict[str, Any] = {"side": side, "noise": noise, "seed": run.seed}
        data = MegapixelDigits(mnist, "train", length=length, augment=run.augment, scatter=run.scatter, **shown)
        here = MegapixelDigits(mnist, "val", length=min(1000, length), **shown)
        order = Order(len(data), batch, run.seed)
        per_epoch, first_epoch = order.steps_per_epoch, 1000 * number
        step.begin(data, batch)
        go = functools.partial(take_steps, step, order, first_epoch, before, share)
        guess = 10**6 if number else 10**5  # steps: the first ones are at the rate where the stage begins
        stage_began = time.perf_counter()
        go(0, 3, guess)
        eager = go(3, 8, guess) / 5
        refused = step.capture()
        go(8, 10, guess)
        per_step = go(10, TRIAL, guess) / (TRIAL - 10)
        left = seconds * (before + share) - (time.perf_counter() - began)
        total = TRIAL + max(1, round(left / per_step / 1.03))
        stages.append({
            "side": side, "noise": noise, "batch": batch, "epochs": total / per_epoch, "steps": total,
            "ms_per_step": 1e3 * per_step, "ms_per_eager_step": 1e3 * eager, "graph": refused or "yes",
        })  # fmt: skip
        print(f"{name}: {stages[-1]}", flush=True)
        last, taken = number + 1 == len(run.stages), TRIAL
        seen_before = 0
        for mark in range(1, MARKS + 1):
            end = TRIAL + (total - TRIAL) * mark // MARKS
            go(taken, end, total)
            means = (step.totals / max(1, end - seen_before)).tolist()
            taken = seen_before = end
            step.totals.zero_()
            row = {"stage": number, "epoch": end / per_epoch, "seconds": time.perf_counter() - began, "loss": means[0]}
            row |= {"train": means[1:], "here": None, "test": None}
            if side != run.side:
                row["here"] = accuracy(model, run, here, batch, device)
            if (last and mark in (MARKS // 2, MARKS)) or (mark == MARKS and number + 2 == len(run.stages)):
                row["test"] = accuracy(model, run, test, run.stages[-1][2], device)
            row["here"] = row["here"] or row["test"]
            history.append(row)
            found = {"train": dict(enumerate(means[1:])), "here": row["here"] or {}, "test": row["test"] or {}}
            told = " | ".join(f"{key} " + " ".join(f"{v:.3f}" for v in own.values()) for key, own in found.items())
            print(
                f"{name} {side} {end / per_epoch:6.1f} {row['seconds']:5.0f} s loss {means[0]:.3f} {told}", flush=True
            )
        stages[-1]["seconds"] = time.perf_counter() - stage_began
        before += share
    result = {
        "run": dataclasses.asdict(run),
        "images": [length, len(test)],
        "stages": stages,
        "seconds": time.perf_counter() - began,
        "joules": meter.joules() - joules if meter else None,
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "test": history[-1]["test"],
        "history": history,
        "made_with": provenance(device),
    }
    try:
        if run.keep:
            save_weights(model, out / name)
        for side, images in run.beyond:
            larger = MegapixelDigits(mnist, "val", side=side, length=min(images, length), seed=run.seed)
            result.setdefault("beyond", {})[side] = accuracy(model, run, larger, 2, device)
        if maps:
            result["maps"], result["example"] = judge_maps(model, run, test, device)
    except (ValueError, RuntimeError) as error:
        result["maps"] = str(error).splitlines()[0]
    return result


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
def document(mnist: str = "") -> None:
    """Draw the figure and fill in the tables of docs/high-resolution.md, from the file in results/."""
    found = read_json(RESULTS)
    accuracy_figure(found, mnist, ROOT / "docs" / "images" / "high-resolution.png")
    tables = {"results": results_table(found), "maps": maps_table(found), "larger": larger_table(found)}
    tables |= {"streamed": streamed_table(found["stream"])} if "stream" in found else {}
    write_tables(ROOT / "docs" / "high-resolution.md", {name: table.markdown() for name, table in tables.items()})


def named(found: dict[str, Any], side: int = 1500) -> dict[str, Any]:
    """The runs that end at a side, in the order of ``RUNS``, by what a reader calls them."""
    own = [name for name in RUNS if name in found and found[name]["run"]["side"] == side]
    return {LABELS[name.partition("-")[0]]: found[name] for name in own}


def results_table(found: dict[str, Any]) -> Table:
    """A row per run: right answers on 1,000 test images, and what the training took."""
    rows = []
    for name, row in named(found).items():
        test, last = row["test"], row["stages"][-1]
        shares = [f"{100 * test[key]:.1f}" for key in ("majority", "max", "top", "multi", "multi_bits")]
        cost = [f"{row['seconds']:.0f}", f"{last['epochs']:.1f}", f"{last['ms_per_step']:.1f}"]
        cost += [f"{row['joules'] / 1e3:.0f}" if row["joules"] else "", f"{row['peak_bytes'] / 2**30:.1f}"]
        rows.append([name, *shares, *cost])
    head = ["mechanism", "majority", "max", "top", "multi", "bits", "GPU s", "epochs at full size", "ms a step there"]
    return Table([*head, "kJ", "GiB"], rows)


def maps_table(found: dict[str, Any]) -> Table:
    """Where the maps of every layer lie."""
    rows = []
    for name, row in named(found).items():
        for layer, own in row["maps"].items() if isinstance(row.get("maps"), dict) else ():
            shares = [f"{100 * own[key]:.1f}" for key in ("area", "mass", "peaks")]
            rows.append([name, layer.removeprefix("layer "), *shares])
    return Table(["mechanism", "layer", "tokens on digits, %", "mass on them, %", "five highest peaks, %"], rows)


def larger_table(found: dict[str, Any]) -> Table:
    """Larger images: by weights that never saw them, and after some seconds on them."""
    keys = ("majority", "max", "top", "multi")
    rows = []

    def add(name: str, trained: str, side: Any, scores: dict[str, float], cost: str = "") -> None:
        rows.append([name, trained, f"{side}²", *(f"{100 * scores[key]:.1f}" for key in keys), cost])

    for last in (1500, 3000):
        for name, row in named(found, last).items():
            stage = row["stages"][-1]
            if last > 1500:
                unseen = next(
                    (own for own in row["history"] if own["test"] and own["stage"] < len(row["stages"]) - 1), None
                )
                if unseen:
                    add(name, f"{row['stages'][-2]['side']}²", last, unseen["test"])
                cost = f"{stage['ms_per_step'] / stage['batch']:.1f}"
                add(name, f"{last}², {stage['steps']:,} steps in {stage['seconds']:.0f} s", last, row["test"], cost)
            for side, scores in row.get("beyond", {}).items():
                add(name, f"{last}²", side, scores)
    return Table(["mechanism", "trained up to", "tested at", *keys, "ms per training image"], rows)


def streamed_table(row: dict[str, Any]) -> Table:
    """Training steps on single images by streaming."""
    seconds = sorted(own["seconds"] for own in row["steps"])[len(row["steps"]) // 2]
    cells = [f"{row['side']}²", f"{row['limit'] / 2**30:.0f}", f"{row['peak_bytes'] / 2**30:.1f}", f"{seconds:.1f}"]
    cells += [f"{row['side'] ** 2 / seconds / 1e6:.0f}", row["steps"][0]["strategy"]]
    return Table(
        ["image", "allowed GiB", "used GiB", "s per image, forward and backward", "megapixels/s", "strategy"], [cells]
    )


def accuracy_figure(found: dict[str, Any], mnist: str, path: Path) -> None:
    """Right answers over the seconds of training; the first test image, and what the runs' last maps make of it."""
    runs = named(found)
    figure = Figure(figsize=(3.4 * (len(runs) + 2.6), 3.6), layout="constrained")
    curves, picture, *fields = figure.subplots(1, 2 + len(runs), width_ratios=[1.6, *[1] * (1 + len(runs))])
    for colour, (name, row) in zip((BLUE, INK, RED, ORANGE, GREY), runs.items(), strict=False):
        for style, task in (("-", "majority"), (":", "top")):
            points = [(own["seconds"], 100 * own["here"][task]) for own in row["history"] if own["here"]]
            curves.plot(*zip(*points, strict=True), style, color=colour, label=f"{name}, {task}", linewidth=1.6)
    curves.set(xlabel="GPU seconds", ylabel="right on test images of the stage's side, %", ylim=(0, 101))
    curves.legend(frameon=False, fontsize=7)
    image, _, boxes = MegapixelDigits(mnist or None, "val", length=1).compose(torch.tensor([0]))
    picture.imshow(F.max_pool2d(image.float(), 6)[0, 0], cmap="gray")
    picture.set_title("test image, digits framed", fontsize=9)
    for x, y, *_ in (boxes[0] / 6).tolist():
        picture.add_patch(Rectangle((x - 5, y - 5), 28 / 6 + 10, 28 / 6 + 10, fill=False, edgecolor=ORANGE))
    for axes, (name, row) in zip(fields, runs.items(), strict=True):
        axes.imshow(np.array(row["example"][-1]), cmap="magma")
        axes.set_title(f"{name}: last map", fontsize=9)
    for axes in (picture, *fields):
        axes.set_axis_off()
    figure.savefig(path, dpi=110)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    app()
