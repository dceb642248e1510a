"""What the high-resolution study trains: one small model with several mechanisms, on growing canvases."""

from dataclasses import dataclass
from typing import Any

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
