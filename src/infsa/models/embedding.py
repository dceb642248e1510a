"""Patches embedded by one matrix product, which adds the resized positions of a single image in passing."""

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..nn.peers.layout import resizing
from .gelu import HALF
from .infvit import InfViT
from .patches import disjoint, project, unfold

MOST_CELLS = 256  # of the base grid, filled up: more would make the product longer than resizing by itself takes
STEP = 16  # numbers that GPUs take at a time in such a product; both axes of the base grid are filled up to it
OWN = ("positions", "with_positions", "with_prefix")  # what a subclass must not have changed


def embed_by_product(model: InfViT, images: Tensor) -> Tensor:
    """``model.embed``, the positions resized by the product that embeds the patches, where nothing more embeds them.

    A resized position is a product, of cubic weights with the table: in half precision the weights stand beside
    the patch's pixels, the table beside the convolution's weight. Both do so twice, for the leading bits of the cubic
    weights and for the others, so that only the sum of patch and position is rounded.
    """
    layer, grid = model.patch_embed, model.grid_of(images)
    if not disjoint(layer):
        return model.embed(images)[0]
    x = unfold(layer, images)
    table = _alongside(model, x, grid)
    if table is None:
        return model.with_positions(project(layer, x), grid)
    prefix, (rows, columns) = model.num_prefix_tokens, layer.grid_size
    spare = (0, -columns % STEP, 0, -rows % STEP)
    cubic = cubic_cells(layer.grid_size, grid, x.device)
    high = _cut(cubic, x.dtype)
    steps = [part.to(x.dtype).unflatten(2, (-1, STEP)).flatten(1, 2) for part in (x[0], high, cubic - high)]
    x = torch.cat(steps, 1).flatten(1)  # laid side by side in whole steps, compiled code reads each at once
    cells = nn.functional.pad(table[0, prefix:].T.unflatten(1, layer.grid_size), spare).flatten(1)  # (D, cells)
    weight = torch.cat([layer.proj.weight.flatten(1), cells, cells], 1)
    patches = nn.functional.linear(x, weight, layer.proj.bias)
    return model.with_prefix(patches.unsqueeze(0), table[:, :prefix])


def cubic_cells(base: tuple[int, int], grid: tuple[int, int], device: torch.device) -> Tensor:
    """The weights that resize positions bicubically from a base grid: (h·w, h0, w0), float32, h0 and w0 filled up."""
    like = torch.empty(0, device=device)
    weights = (resizing(size, b, like) for size, b in zip(grid, base, strict=True))
    down, across = (nn.functional.pad(w, (0, -w.shape[1] % STEP)) for w in weights)
    return (down[:, None, :, None] * across[None, :, None, :]).flatten(0, 1)


def _cut(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The leading bits of float32 numbers, as many as a half type holds; a compiler may leave out a cast to and fro."""
    kept = -(2 ** (16 if dtype == torch.bfloat16 else 13))
    return (x.view(torch.int32) & kept).view(torch.float32)


def _alongside(model: InfViT, x: Tensor, grid: tuple[int, int]) -> Tensor | None:
    """The learned positions, if they are to be resized for one image, in half precision and from few cells."""
    layer, table = model.patch_embed, model.pos_embed
    (rows, columns), weight = layer.grid_size, layer.proj.weight
    cells = (rows + -rows % STEP) * (columns + -columns % STEP)
    if table is None or cells > MOST_CELLS or x.shape[3] % STEP or not isinstance(layer.norm, nn.Identity):
        return None
    if any(getattr(type(model), name) is not getattr(InfViT, name) or name in vars(model) for name in OWN):
        return None
    as_it_is = statically_known_true(grid[0] == rows) and statically_known_true(grid[1] == columns)
    plain = all(type(t) in (Tensor, nn.Parameter) and t.dtype == x.dtype for t in (table, weight))
    one = statically_known_true(x.shape[0] == 1)
    return table if one and plain and x.dtype in HALF and not as_it_is else None
