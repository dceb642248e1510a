"""Builders and inputs shared by the tests of the compared mechanisms."""

import torch

from infsa.nn.peers import ATTENTIONS, MLLABlock, create_attention

DIM, HEADS = 16, 2
BASE = (3, 5)  # the grid of construction
LARGER = (6, 4)  # another one: every position table is resized
NAMES = tuple(ATTENTIONS)
SMALL = {"linformer": {"rank": 6}, "soft": {"landmarks": 2}, "agent": {"agents": 9}}  # sizes that suit 15 patches
NO_POSITION = ("softmax", "performer", "infsa_pure", "infsa_linear", "mean", "energy", "fastformer")
MASKABLE = tuple(name for name in NAMES if name != "soft")
MAPPED = tuple(name for name in NAMES if ATTENTIONS[name].has_map)
BLOCK = "mlla_block"


def generator(seed):
    return torch.Generator().manual_seed(seed)


def build(name, *, num_prefix=1, dim=DIM, heads=HEADS, grid=BASE, dtype=torch.float64, start=0, noise=0.1, **options):
    """A mechanism, or the MLLA block, with small sizes and every parameter moved off its starting value.

    ``start`` seeds the parameters.
    """
    options = {**SMALL.get(name, {}), **options}
    torch.manual_seed(start)
    if name == BLOCK:
        module = MLLABlock(dim, heads, grid=grid, num_prefix=num_prefix, dtype=dtype, mlp_ratio=1.5, **options)
    else:
        module = create_attention(name, dim, heads, grid=grid, num_prefix=num_prefix, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator(start + 1)).to(dtype)
    return module


def tokens(grid=BASE, num_prefix=1, *, batch=2, dim=DIM, dtype=torch.float64, seed=3):
    """Normal x (B, num_prefix + h·w, D)."""
    shape = (batch, num_prefix + grid[0] * grid[1], dim)
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def heads_of(x, heads=HEADS):
    """(B, N, D) -> (B, H, N, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x):
    """(B, H, N, d) -> (B, N, D)."""
    return x.transpose(1, 2).flatten(2)


def gradients(out, inputs, seed=7):
    """The gradients of ⟨w, out⟩ for a fixed random w."""
    w = torch.randn(out.shape, generator=generator(seed), dtype=torch.float64).to(out.dtype)
    return torch.autograd.grad(out, inputs, w)
