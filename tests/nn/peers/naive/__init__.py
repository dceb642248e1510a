"""The mechanisms as their formulas say, one image, one head and one token at a time, in float64.

Nothing here imports the implementation: only the parameters of the module under test are read.
"""

import torch

from .kernels import flatten, mlla, mlla_block, performer, soft
from .pools import energy, fastformer, infsa_linear, infsa_pure, mean
from .softmaxes import agent, linformer, softmax_attention

NAIVE = {
    "softmax": softmax_attention,
    "linformer": linformer,
    "performer": performer,
    "soft": soft,
    "flatten": flatten,
    "agent": agent,
    "mlla": mlla,
    "mlla_block": mlla_block,
    "infsa_pure": infsa_pure,
    "infsa_linear": infsa_linear,
    "mean": mean,
    "energy": energy,
    "fastformer": fastformer,
}


def attend(name, module, x, grid, num_prefix):
    """The mechanism on a batch (B, N, D)."""
    return torch.stack([NAIVE[name](module, item, grid, num_prefix) for item in x])
