"""Position embeddings as a function of absolute coordinates, so that any tile can compute its own.

A model knows a base grid (h0, w0). Patch (i, j) of an (h, w) image sits at ((i + ½) h0/h − ½, (j + ½) w0/w − ½)
in base-grid units: the convention of bicubic resizing with align_corners=False and without antialiasing.
"""

import torch
from torch import Tensor

from ..nn.peers.layout import resizing

CUBIC = -0.75  # the free coefficient of the cubic kernel, as in torch.nn.functional.interpolate


def base_coordinates(size: int, base: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Where ``size`` patches lie on an axis of ``base`` grid cells: (size,)."""
    return (torch.arange(size, device=device, dtype=dtype) + 0.5) * (base / size) - 0.5


def cubic_weights(coordinates: Tensor, base: int) -> Tensor:
    """Rows of bicubic weights over the base axis, clamped at the border: (n,) -> (n, base)."""
    first = coordinates.floor()
    offsets = torch.arange(-1, 3, device=coordinates.device)
    neighbours = first[:, None] + offsets  # (n, 4)
    t = (coordinates[:, None] - neighbours).abs()
    near = ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1
    far = ((CUBIC * t - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC
    weights = torch.where(t <= 1, near, far)
    columns = torch.arange(base, device=coordinates.device)
    hit = neighbours.long().clamp(0, base - 1)[..., None] == columns  # (n, 4, base)
    return (weights[..., None] * hit).sum(1)


def resize_positions(table: Tensor, base: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Bicubic resizing of learned positions, (h0·w0, D) -> (h·w, D), in float32 (float64 for float64)."""
    dtype = torch.promote_types(table.dtype, torch.float32)
    with torch.autocast(table.device.type, enabled=False):
        table = table.to(dtype).unflatten(0, base)  # (h0, w0, D)
        rows, columns = (resizing(size, b, table) for size, b in zip(grid, base, strict=True))
        table = torch.einsum("ia,abd->ibd", rows, table)
        return torch.einsum("jb,ibd->ijd", columns, table).flatten(0, 1)


def resize_table(table: Tensor, base: tuple[int, int], grid: tuple[int, int], num_prefix: int) -> Tensor:
    """Resize the patch rows of a position table (1, prefix + h0·w0, D); the prefix rows stay."""
    prefix, patches = table.split([num_prefix, base[0] * base[1]], dim=1)
    return torch.cat([prefix, resize_positions(patches[0], base, grid).to(table.dtype).unsqueeze(0)], 1)


def sincos_positions(
    base: tuple[int, int],
    grid: tuple[int, int],
    dim: int,
    dtype: torch.dtype,
    device: torch.device,
    temperature: float = 10000.0,
) -> Tensor:
    """Fixed sines and cosines of the base coordinates, half the channels per axis: (h·w, D)."""
    dtype = torch.promote_types(dtype, torch.float32)
    steps = torch.arange(dim // 4, device=device, dtype=dtype)
    frequency = temperature ** (-4 * steps / dim)
    waves = []
    for size, b in zip(grid, base, strict=True):
        angle = base_coordinates(size, b, dtype, device)[:, None] * frequency
        waves.append(torch.cat([angle.sin(), angle.cos()], 1))  # (size, D/2)
    by_row = waves[0][:, None, :].expand(-1, grid[1], -1)
    by_column = waves[1][None, :, :].expand(grid[0], -1, -1)
    return torch.cat([by_row, by_column], -1).flatten(0, 1)
