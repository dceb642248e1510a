"""One optimiser step, replayed as a CUDA graph where possible."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from infsa.data import DigitSums, MegapixelDigits, Tasks
from infsa.models import InfViT

from .model import predict
from .runs import DATA, Run

Digits = MegapixelDigits | DigitSums


def as_rows(answers: Tensor, tasks: Tasks) -> Tensor:
    """Answers as rows of zeros and ones, (B, C) uint8, where they are the class numbers (B,) of a single task."""
    return answers if answers.dim() == 2 else F.one_hot(answers, tasks.outputs).to(torch.uint8)


def weighted_loss(run: Run, tasks: Tasks, logits: Tensor, answers: Tensor) -> Tensor:
    """The loss of rows of answers (B, C), in which *top* may count more than the others."""
    targets = tasks.targets(answers, run.smoothing)
    loss = tasks.loss(logits, targets)
    for task, own, wanted in zip(tasks, tasks.split(logits), tasks.split(targets), strict=True):
        if task.name == "top" and run.top_weight != 1:
            loss = loss + (run.top_weight - 1) * F.cross_entropy(own, wanted)
    return loss


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
        self.tasks: Tasks = DATA[run.data].tasks
        self.totals = torch.zeros(1 + len(self.tasks), device=device)  # loss and hits of each task, summed over steps

    def begin(self, data: Digits, batch: int) -> None:
        """Go on with other images."""
        self.data = data
        self.images = torch.zeros(batch, 1, data.side, data.side, dtype=torch.uint8, device=self.device)
        self.answers = torch.zeros(batch, self.tasks.outputs, dtype=torch.uint8, device=self.device)
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, indices: Tensor, epoch: int, rates: list[float]) -> None:
        """Make the images of several steps, put those of each where it reads them, and take it."""
        images, answers, _ = self.data.compose(indices, epoch)
        answers = as_rows(answers, self.tasks)
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
        logits = predict(self.model, self.run, self.images)
        loss = weighted_loss(self.run, self.tasks, logits, self.answers)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], self.run.clip, foreach=True)
        self.optimizer.step()
        self.totals += torch.cat([loss.detach()[None], self.tasks.hits(logits.detach(), self.answers).mean(0)])
