"""Patches of images of any size embedded by one matrix product; what resizes the positions also adds them."""

import torch
from torch import Tensor, nn

from .infvit import InfViT
from .kernels import kernels_run
from .patches import disjoint
from .tokenwise import chunks

OWN = ("embed", "embed_patches", "patch_positions", "positions", "with_positions", "with_prefix")  # as InfViT has them
MOST_CELLS = 128  # in a row of the base grid; more would take too much of a processor
AT_ONCE = 16896  # patches, in whole lines, that are unfolded, multiplied and placed while they are in the cache


def embed(model: InfViT, images: Tensor) -> Tensor:
    """``model.embed``: tokens (B, N, D) in memory of their own; by kernels where nothing else embeds them."""
    grid = model.grid_of(images)
    if not _by_kernels(model, images):
        return model.embed(images)[0]
    from .token_kernels import CHANNELS, COLUMNS, PATCHES, PIXELS, launcher, padded, position_kernel, unfold_kernel

    layer, table, prefix = model.patch_embed, model.pos_embed, model.num_prefix_tokens
    assert table is not None
    (height, width), (down, across), (base_h, base_w) = grid, layer.patch_size, layer.grid_size
    spare = (0, width * across - images.shape[3], 0, height * down - images.shape[2])
    images = (nn.functional.pad(images, spare) if any(spare) else images).contiguous()
    lines, dim, pixels = images.shape[0] * height, model.embed_dim, model.in_chans * down * across
    weight, bias = layer.proj.weight.reshape(dim, pixels).t(), layer.proj.bias
    x = images.new_empty(images.shape[0], prefix + height * width, dim)
    if prefix:
        tokens: list[Tensor] = [token for token in (model.cls_token, model.reg_token) if token is not None]
        x[:, :prefix] = torch.cat(tokens, 1) + table[:, :prefix]
    block, parts = min(PIXELS, padded(pixels)), list(chunks(lines, max(1, AT_ONCE // width)))
    most = max(part.stop - part.start for part in parts) * width
    unfolded, patches = images.new_empty(most, pixels), images.new_empty(most, dim)
    sizes = {"CHANS": model.in_chans, "DOWN": down, "ACROSS": across, "PATCHES": PATCHES, "BLOCK": block}
    unfold = launcher(unfold_kernel, images, **sizes, num_warps=4)
    sizes = {"DIM": dim, "PREFIX": prefix, "BASE_H": base_h, "BASE_W": base_w, "CELLS": max(16, padded(base_w))}
    sizes |= {"COLUMNS": COLUMNS, "CHANNELS": CHANNELS, "num_warps": 4}
    precision = "tf32" if images.dtype == torch.bfloat16 else "tf32x3"
    place = launcher(position_kernel, images, **sizes, PRECISION=precision)
    steps = (base_h / height, base_w / width)
    for part in parts:
        count = part.stop - part.start
        rows = count * width
        programs = (-(-rows // PATCHES), -(-pixels // block), 1)
        unfold(programs, (images, unfolded), rows, part.start * width, height, width)
        if bias is None:
            torch.mm(unfolded[:rows], weight, out=patches[:rows])
        else:
            torch.addmm(bias, unfolded[:rows], weight, out=patches[:rows])
        programs = (count, -(-dim // CHANNELS), 1)
        place(programs, (patches, table, x), height, width, x.shape[1], part.start, *steps)
    return x


def _by_kernels(model: InfViT, images: Tensor) -> bool:
    """Whether disjoint patches get resized positions and nothing else happens to them, in one type on one device."""
    layer, table = model.patch_embed, model.pos_embed
    if table is None or not (kernels_run(table) and disjoint(layer)) or layer.grid_size[1] > MOST_CELLS:
        return False
    kind = type(model)
    changed = any(getattr(kind, name, None) is not getattr(InfViT, name, None) or name in vars(model) for name in OWN)
    parts = [table, *layer.proj.parameters(), *(t for t in (model.cls_token, model.reg_token) if t is not None)]
    alike = all(p.dtype == images.dtype and p.device == images.device and p.is_contiguous() for p in parts)
    return alike and not changed and type(layer.norm) is nn.Identity
