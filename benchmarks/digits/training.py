"""Train one run for a fixed number of seconds, stage by stage."""

import dataclasses
import functools
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infsa.bench.energy import find_meter, open_gpu
from infsa.data.order import Order
from infsa.models import InfViT, read_weights, save_weights
from infsa.provenance import provenance

from .model import build
from .runs import DATA, Run
from .step import Digits, Step
from .streamed import streamed_steps
from .testing import accuracy, judge_maps

MARKS = 4  # times in a stage that accuracy is measured
TRIAL = 20  # steps at the beginning of a stage, whose time decides how many epochs it has
LARGEST_MAPPED = 1500  # side of the images whose maps are judged
TOGETHER = 4  # steps whose images are made at once


def rate_at(run: Run, done: float) -> float:
    """Linear warm-up, constant rate, then cosine decay to zero; ``done`` is the finished share of the run."""
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


class Training:
    """A run on one device: its model, the time it has, and what was measured so far."""

    def __init__(self, name: str, run: Run, mnist: str, out: Path, seconds: float, length: int) -> None:
        self.name, self.run, self.mnist, self.out = name, run, mnist, out
        self.seconds, self.length = seconds, length
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.test = self.images("val", side=run.side, length=min(run.tested, length))
        self.model = self.begin()
        self.step = Step(run, self.model, self.device)
        self.history: list[dict[str, Any]] = []
        self.stages: list[dict[str, Any]] = []
        self.done = 0.0  # share of the run
        self.began = time.perf_counter()

    def images(self, split: str, **options: Any) -> Digits:
        """The data of the run."""
        return DATA[self.run.data](self.mnist, split, seed=self.run.seed, **options)

    def begin(self) -> InfViT:
        """The model, with the weights of the run that this one starts from."""
        model = build(self.run, self.device).train()
        if self.run.start:
            table, weights = model.pos_embed, read_weights(self.out / self.run.start)[0]
            model.load_state_dict(weights | {"pos_embed": table})  # its waves span the larger grid
        return model

    def elapsed(self) -> float:
        """Seconds since training began."""
        return time.perf_counter() - self.began

    def stage(self, number: int) -> None:
        """Train one stage: time the first steps, then take as many as fit."""
        side, noise, batch, share = self.run.stages[number]
        shown: dict[str, Any] = {"side": side, "noise": noise}
        options: dict[str, Any] = {
            "augment": self.run.augment,
            "scatter": self.run.scatter,
            "endless": self.run.endless,
        }
        data = self.images("train", length=self.length, **options, **shown)
        here = self.images("val", length=min(1000, self.length), **shown)
        order = Order(len(data), batch, self.run.seed)
        self.step.begin(data, batch)
        go = functools.partial(take_steps, self.step, order, 1000 * number, self.done, share)
        guess = 10**6 if number else 10**5  # steps: the first ones are at the rate where the stage begins
        stage_began = time.perf_counter()
        go(0, 3, guess)
        eager = go(3, 8, guess) / 5
        refused = self.step.capture()
        go(8, 10, guess)
        per_step = go(10, TRIAL, guess) / (TRIAL - 10)
        left = self.seconds * (self.done + share) - self.elapsed()
        total = TRIAL + max(1, round(left / per_step / 1.03))
        self.stages.append({
            "side": side, "noise": noise, "batch": batch, "epochs": total / order.steps_per_epoch, "steps": total,
            "ms_per_step": 1e3 * per_step, "ms_per_eager_step": 1e3 * eager, "graph": refused or "yes",
        })  # fmt: skip
        print(f"{self.name}: {self.stages[-1]}", flush=True)
        taken, counted = TRIAL, 0
        for mark in range(1, MARKS + 1):
            end = TRIAL + (total - TRIAL) * mark // MARKS
            go(taken, end, total)
            self.measure(number, mark, end / order.steps_per_epoch, end - counted, here)
            taken = counted = end
        self.stages[-1]["seconds"] = time.perf_counter() - stage_began
        self.done += share

    def measure(self, number: int, mark: int, epoch: float, steps: int, here: Digits) -> None:
        """Accuracy at a mark of a stage: at the side of the stage, and near the end of the run at its own."""
        side, _, batch, _ = self.run.stages[number]
        means = (self.step.totals / max(1, steps)).tolist()
        self.step.totals.zero_()
        row: dict[str, Any] = {"stage": number, "epoch": epoch, "seconds": self.elapsed(), "loss": means[0]}
        row |= {"train": means[1:], "here": None, "test": None}
        if side != self.run.side:
            row["here"] = accuracy(self.model, self.run, here, batch, self.device)
        after = len(self.run.stages) - number - 1  # stages
        if (after == 0 and mark in (MARKS // 2, MARKS)) or (after == 1 and mark == MARKS):
            row["test"] = accuracy(self.model, self.run, self.test, self.run.stages[-1][2], self.device)
        row["here"] = row["here"] or row["test"]
        self.history.append(row)
        found = {"train": dict(enumerate(means[1:])), "here": row["here"] or {}, "test": row["test"] or {}}
        told = " | ".join(f"{key} " + " ".join(f"{v:.3f}" for v in own.values()) for key, own in found.items())
        print(f"{self.name} {side} {epoch:6.1f} {row['seconds']:5.0f} s loss {means[0]:.3f} {told}", flush=True)

    def after(self, maps: bool) -> dict[str, Any]:
        """Save the weights if others start from them, and test on larger images and the maps."""
        found: dict[str, Any] = {}
        try:
            if self.run.keep:
                save_weights(self.model, self.out / self.name)
            for side, images in self.run.beyond:
                larger = self.images("val", side=side, length=min(images, self.length))
                found.setdefault("beyond", {})[side] = accuracy(self.model, self.run, larger, 2, self.device)
            if maps and self.run.side <= LARGEST_MAPPED and self.run.data == "megapixel-digits":
                found["maps"], found["example"] = judge_maps(self.model, self.run, self.test, self.device)
        except (ValueError, RuntimeError) as error:
            found["maps"] = str(error).splitlines()[0]
        return found


def train_run(name: str, run: Run, mnist: str, out: Path, seconds: float, length: int, maps: bool) -> dict[str, Any]:
    """Train for so many seconds, stage by stage, and return everything that is reported."""
    torch.backends.cudnn.benchmark = True
    training = Training(name, run, mnist, out, seconds, length)
    device, cuda = training.device, training.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    gpu = open_gpu(device) if cuda else ""
    meter = None if isinstance(gpu, str) else find_meter(device, gpu)
    training.began, joules = time.perf_counter(), meter.joules() if meter else 0.0
    if run.streamed:
        before = accuracy(training.model, run, training.test, run.stages[-1][2], device)
        training.began = time.perf_counter()
        row = streamed_steps(run, training.model, training.images("train", side=run.side, length=length), seconds)
        training.stages.append(row)
        after = accuracy(training.model, run, training.test, run.stages[-1][2], device)
        training.history += [{"stage": 0, "seconds": 0.0, "here": before, "test": before}]
        training.history += [{"stage": 0, "seconds": row["seconds"], "here": after, "test": after}]
    for number in range(0 if run.streamed else len(run.stages)):
        training.stage(number)
    result = {
        "run": dataclasses.asdict(run),
        "images": [length, len(training.test)],
        "stages": training.stages,
        "seconds": training.elapsed(),
        "joules": meter.joules() - joules if meter else None,
        "peak_bytes": training.stages[-1].get("peak_bytes", torch.cuda.max_memory_allocated()) if cuda else None,
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "test": training.history[-1]["test"],
        "history": training.history,
        "made_with": provenance(device),
    }
    return result | training.after(maps)
