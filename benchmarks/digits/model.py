"""The model of a run, and how it reads images of uint8."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from infsa.models import InfViT

from .runs import DATA, Run


def build(run: Run, device: torch.device) -> InfViT:
    """The model of a run: one grey channel, and as many outputs as its data has answers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        decayed = {"gamma": run.gamma} if run.attention in ("infsa_linear", "infsa_pure", "mean", "energy") else {}
        outputs = DATA[run.data].tasks.outputs
        model = InfViT(
            img_size=run.shown or run.side, patch_size=run.patch, in_chans=1, num_classes=outputs, stem=run.stem,
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


def predict(model: InfViT, run: Run, images: Tensor) -> Tensor:
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
