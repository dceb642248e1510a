"""Attention maps at the patch grid, computed tile by tile and written while they come."""

import math
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from ..files import write_atomically
from ..ops.linear.state import key_scores
from .engine import Engine
from .network import Network, attention
from .ome_tiff import BLOCK, as_tiles, is_ome, write_ome
from .placement import Placement
from .places import MARK
from .readers import needed
from .tiles import Tile

if TYPE_CHECKING:
    from ..parallel import Ranks

OVERVIEW = 1024  # longest side of the overview

Map = NDArray[Any]  # float64 where the model is, otherwise float32; files hold float32


class MapPass:
    """One more pass over the tiles: a_j of a layer, as ``InfViT.attention_maps(method="last")`` gives it.

    The sum over all patches is known before the pass from the sums of the layer, so every tile is final when it comes.

    Args:
        engine: after its run.
        layer: the block to read, from the end if negative.
        head: one head, or None for their mean.
    """

    def __init__(self, engine: Engine, layer: int = -1, head: int | None = None) -> None:
        self.engine, self.network = engine, engine.network
        self.layer, self.head = check_map(self.network, layer, head), head
        self.dtype = torch.promote_types(self.network.dtype, torch.float32)
        self.values: Map | None = None  # once it was asked for as a whole

    @torch.no_grad()
    def tiles(self) -> Iterator[tuple[Tile, Map]]:
        """Tiles of this process, row by row, with their part of the map, (rows, columns); zeros for skipped ones."""
        total = self._total()
        tiling, numbers = self.network.tiling, sorted(self.engine.order)
        bad = {entry.tile.number for entry in self.engine.skipped}
        patches = math.prod(self.network.grid) - sum(tiling[number].tokens for number in bad)
        if total == 0:
            warnings.warn("the attention map was all zero and became uniform", stacklevel=2)
        found = self.engine.tokens(self.layer, [number for number in numbers if number not in bad])
        for done, number in enumerate(numbers, start=1):
            if number in bad:
                tile = tiling[number]
                yield tile, torch.zeros(tile.rows, tile.columns, dtype=self.dtype).numpy()
                continue
            tile, x = next(found)
            part = self._weights(x) / total if total else torch.full_like(x[0, :, 0], 1 / patches)
            self.engine.announce(done, len(numbers), tile, "map")
            yield tile, part.to(self.dtype).cpu().numpy().reshape(tile.rows, tile.columns)

    def blocks(self) -> Iterator[Map]:
        """The map as blocks of ``BLOCK`` whole rows, from the top; the last may be shorter."""
        if self.values is not None:
            yield from (self.values[row : row + BLOCK] for row in range(0, len(self.values), BLOCK))
            return
        width = self.network.grid[1]
        waiting: list[Map] = []
        band: Map | None = None
        for tile, part in self.tiles():
            if band is None:
                band = np.empty((tile.rows, width), part.dtype)
            band[:, tile.column : tile.column + tile.columns] = part
            if tile.column + tile.columns < width:
                continue
            waiting, band = [*waiting, band], None
            rows = np.concatenate(waiting)
            for start in range(0, len(rows) - BLOCK + 1, BLOCK):
                yield rows[start : start + BLOCK]
            waiting = [rows[len(rows) // BLOCK * BLOCK :]]
        if waiting and len(waiting[0]):
            yield waiting[0]

    def array(self) -> Map:
        """The whole map in memory, (h, w)."""
        if self.values is None:
            ranks = self.engine.ranks
            self.values = np.concatenate(list(self.blocks())) if ranks is None else self._of_all(ranks)
        return self.values

    def _of_all(self, ranks: "Ranks") -> Map:
        """The map with the tiles of all ranks."""
        own = torch.zeros(self.network.grid, dtype=self.dtype)
        for tile, part in self.tiles():
            own[tile.in_grid] = torch.from_numpy(part)
        found: Map = ranks.add(own.to(self.network.device))[0].cpu().numpy()
        return found

    def placement(self) -> Placement:
        """Where its patches lie in the image."""
        return Placement.of(self.engine.feed.source, self.network.tiling.patch)

    def write(self, path: str | Path) -> Path:
        """Write the map as OME-TIFF, tiled TIFF or Zarr, by the ending, with an overview beside it; return its path."""
        path = Path(path)
        try:
            return self._write(path, Overview(self.network.grid))
        except OSError as error:
            if error.errno is None or error.filename is not None:
                raise
            raise OSError(error.errno, error.strerror, str(path)) from error

    def _write(self, path: Path, overview: "Overview") -> Path:
        if path.suffix == ".zarr":
            self._write_zarr(path, overview)
        elif is_ome(path):
            write_ome(path, overview.along(self.blocks()), self.network.grid, self.placement())
        else:
            self._write_tiff(path, overview)
        mark = PngInfo()
        mark.add_text("Software", MARK)
        write_atomically(path.with_suffix(".png"), lambda aside: overview.picture().save(aside, pnginfo=mark))
        return path

    def _write_tiff(self, path: Path, overview: "Overview") -> None:
        tifffile = needed("tifffile", "tifffile", f"writing {path.name}")
        height, width = self.network.grid

        def write(aside: Path) -> None:
            with tifffile.TiffWriter(aside, bigtiff=height * width * 4 > 2**31) as file:
                options: dict[str, Any] = {"shape": (height, width), "dtype": np.float32, "tile": (BLOCK, BLOCK)}
                file.write(
                    as_tiles(overview.along(self.blocks())),
                    **options,
                    compression="zlib",
                    photometric="minisblack",
                    software=MARK,
                )

        write_atomically(path, write)

    def _write_zarr(self, path: Path, overview: "Overview") -> None:
        zarr = needed("zarr", "zarr", f"writing {path.name}")
        height, width = self.network.grid
        aside, older = (path.with_name(f".{path.name}.{end}") for end in ("part", "old"))
        shutil.rmtree(aside, ignore_errors=True)
        try:
            chunks = (min(BLOCK, height), min(BLOCK, width))
            array = zarr.create_array(str(aside), shape=(height, width), chunks=chunks, dtype="float32")
            array.attrs["software"] = MARK
            for index, block in enumerate(overview.along(self.blocks())):
                array[index * BLOCK : index * BLOCK + len(block)] = block
            if path.exists():  # an older map, which makes room in one step
                path.rename(older)
            aside.rename(path)
        finally:
            for folder in (aside, older):
                shutil.rmtree(folder, ignore_errors=True)

    def _weights(self, x: Tensor) -> Tensor:
        """Weights of tokens (1, n, D) as the map's row sees them, before their sum is divided out: (n,)."""
        block = self.network.model.blocks[self.layer]
        attn, code = attention(block), self.engine.code
        _, k = attn._project(block.norm1(x))  # type: ignore[operator]
        with torch.autocast(x.device.type, enabled=False):
            scores = key_scores(code.centrals[self.layer], k, activation=attn.activation)  # (1, H, m, n)
        return self._row(scores / (code.absolute[self.layer] + attn.eps).unsqueeze(-1).to(scores))

    def _row(self, weights: Tensor) -> Tensor:
        """The class token's row of weights (1, H, m, n), or the mean over patches; one head or the mean: (n,)."""
        count = weights.shape[2]
        share = self.network.group_shares(count)
        if self.network.model.has_class_token:
            share = torch.zeros_like(share)
            share[0] = 1
        mixed = (weights * share.to(weights)[:, None]).sum(2)[0]  # (H, n)
        return mixed.mean(0) if self.head is None else mixed[self.head]

    def _total(self) -> float:
        """The sum of the map over all patches before it is divided out: that of all tokens without the prefix."""
        attn, code = attention(self.network.model.blocks[self.layer]), self.engine.code
        mass = code.signed[self.layer] / (code.absolute[self.layer] + attn.eps)
        total = self._row(mass.unsqueeze(-1)).sum()
        x = self.engine.prefix(self.layer)
        return float(total if x is None else total - self._weights(x).sum())


class Overview:
    """A small picture of a map, from its blocks."""

    def __init__(self, grid: tuple[int, int]) -> None:
        self.grid, self.row = grid, 0
        self.factor = max(1, math.ceil(max(grid) / OVERVIEW))
        self.sums = np.zeros([-(-side // self.factor) for side in grid])

    def add(self, block: Map) -> None:
        """The next rows of the map."""
        padded = np.pad(block, ((0, 0), (0, -block.shape[1] % self.factor)))
        columns = padded.reshape(len(block), -1, self.factor).sum(2)
        np.add.at(self.sums, (self.row + np.arange(len(block))) // self.factor, columns)
        self.row += len(block)

    def along(self, blocks: Iterator[Map]) -> Iterator[Map]:
        """The blocks of a map, each added as it passes, in the type of files."""
        for block in blocks:
            self.add(block)
            yield block.astype(np.float32, copy=False)

    def picture(self) -> Image.Image:
        """Grey values up to the 99.9th percentile."""
        rows, columns = (np.diff(np.minimum(np.arange(0, side + self.factor, self.factor), side)) for side in self.grid)
        means = self.sums / np.outer(rows, columns)
        top = np.percentile(means, 99.9) or means.max() or 1.0
        return Image.fromarray((np.clip(means / top, 0, 1) * 255).round().astype(np.uint8))


def check_map(network: Network, layer: int, head: int | None) -> int:
    """Refuse a map that does not exist; the number of its layer from the front."""
    depth, heads = network.depth, network.model.num_heads
    if not -depth <= layer < depth:
        raise ValueError(f"layer must lie in [{-depth}, {depth}), got {layer!r}")
    if head is not None and (isinstance(head, bool) or not 0 <= head < heads):
        raise ValueError(f"head must lie in [0, {heads}), got {head!r}")
    if attention(network.model.blocks[layer]).activation == "gelu":
        raise ValueError("a streamed map needs weights of at least 0, got activation='gelu': use model.attention_maps")
    return layer % depth
