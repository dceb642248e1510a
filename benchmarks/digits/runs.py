"""What the high-resolution study trains: one small model with several mechanisms, on growing canvases."""

from dataclasses import dataclass, replace
from typing import Any

from infsa.data import DigitSums, MegapixelDigits

STAGES = (
    (200, 4, 64, 0.2),
    (300, 10, 64, 0.3),
    (700, 24, 32, 0.15),
    (1500, 50, 16, 0.35),
)  # side, noise, batch, share of the time
STAGES_3000 = ((200, 4, 64, 0.22), (300, 10, 64, 0.31), (700, 24, 32, 0.08), (3000, 50, 8, 0.39))
STAGES_SUMS = ((256, 2, 64, 0.2), (600, 6, 32, 0.25), (1500, 24, 16, 0.2), (4000, 50, 4, 0.35))
DATA = {"megapixel-digits": MegapixelDigits, "digit-sums": DigitSums}


@dataclass(frozen=True)
class Run:
    """What is trained, on images of which side, and how."""

    attention: str = "infsa_linear"
    seconds: float = 135  # of training
    data: str = "megapixel-digits"
    endless: bool = False  # other training images in every epoch
    streamed: float = 0  # GiB within which it is trained on single images by stream_backward; 0: in memory, in batches
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


ONCE_MORE = Run(seed=1, keep=True)
AT_3000 = Run(side=3000, stages=((3000, 50, 8, 1.0),), seconds=45, lr=3e-4, tested=250, seed=1, keep=True)
AT_6000 = replace(AT_3000, side=6000, stages=((6000, 50, 2, 1.0),), seconds=180, tested=100, keep=False)
SOFTMAX, SUMS = {"attention": "softmax"}, {"data": "digit-sums", "side": 4000, "stages": STAGES_SUMS, "tested": 280}

# In the order of their worth. FLatten and MLLA's core are the fastest of the compared mechanisms at 4096² and above.
RUNS = {
    "linear": Run(keep=True, beyond=((3000, 250), (6000, 60))),
    "softmax": Run(**SOFTMAX),
    "linear-3000": Run(
        side=3000, start="linear", stages=((3000, 50, 8, 1.0),), seconds=45, lr=3e-4, tested=250, beyond=((6000, 48),)
    ),
    "softmax-3000": Run(**SOFTMAX, side=3000, stages=STAGES_3000, tested=250, beyond=((6000, 24),)),
    "linear@1": replace(ONCE_MORE, beyond=((3000, 250), (6000, 100))),
    "softmax@1": replace(ONCE_MORE, **SOFTMAX),
    "linear-patches": Run(stem="patch"),
    "softmax-patches": Run(**SOFTMAX, stem="patch"),
    "linear-224": Run(shown=224),
    "linear-512": Run(shown=512),
    "softmax-512": Run(**SOFTMAX, shown=512),
    "pure": Run(attention="infsa_pure"),
    "mean": Run(attention="mean"),
    "mlla": Run(attention="mlla"),
    "flatten": Run(attention="flatten"),
    "linear-3000@1": replace(AT_3000, start="linear@1"),
    "linear-6000@1": replace(AT_6000, start="linear-3000@1"),
    "softmax-3000@1": replace(AT_3000, **SOFTMAX, start="softmax@1"),
    "softmax-6000@1": replace(AT_6000, **SOFTMAX, start="softmax-3000@1"),
    "linear-streamed@1": replace(AT_3000, start="linear@1", streamed=4.0, seconds=420, lr=1e-4, keep=False),
    "linear-endless": Run(endless=True, scatter=False),
    "pure@1": Run(attention="infsa_pure", seed=1),
    "mean@1": Run(attention="mean", seed=1),
    "mlla@1": Run(attention="mlla", seed=1),
    "flatten@1": Run(attention="flatten", seed=1),
    "linear-sums": Run(**SUMS, seconds=300),
    "softmax-sums": Run(**SUMS, **SOFTMAX, seconds=300),
}
