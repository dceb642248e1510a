"""One image file that several processes stream: each reads its own tiles, all receive the whole."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
import torch.distributed as dist

import infsa
from tests.parallel.checks import assert_near, check, small

OPTIONS = ({}, {"global_pool": "avg"}, {"global_pool": "avgmax"}, {"attention_options": {"iterations": 2}})


class Watched:
    """Remembers which rows of a source are read."""

    def __init__(self, file):
        self.source, self.rows = infsa.streaming.open_source(file), set()
        read = self.source.read
        self.source.read = lambda *window: self.rows.update(range(window[0], window[2])) or read(*window)


def shared_folder():
    """A folder that all ranks know."""
    names = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(names)
    return Path(names[0])


@check(2, 4)
def a_streamed_file():
    folder, rank, world = shared_folder(), dist.get_rank(), dist.get_world_size()
    pixels = np.random.default_rng(0).integers(0, 256, (155, 85, 3), np.uint8)
    if rank == 0:
        tifffile.imwrite(folder / "image.tif", pixels, tile=(32, 32), photometric="rgb")
    dist.barrier()
    for options in OPTIONS:
        model = small(dynamic_img_pad=True, **options).eval()
        expected = infsa.stream(model, pixels, tile=40, map=True)
        for strategy in ("recompute", "spill"):
            watched = Watched(folder / "image.tif")
            files = {"map": folder / "map.ome.tif", "regions": folder / "hot.geojson", "code": folder / "c.safetensors"}
            found = infsa.stream(
                model, watched.source, tile=40, strategy=strategy, group=dist.group.WORLD, overwrite=True, **files
            )
            assert_near(found.logits, expected.logits)
            assert_near(torch.from_numpy(found.map), torch.from_numpy(expected.map), 1e-6)
            assert_near(torch.cat(found.code.rows), torch.cat(expected.code.rows))
            first, last = (12 * place // world // 3 for place in (rank, rank + 1))
            assert watched.rows == set(range(40 * first, min(40 * last, 155)))
            dist.barrier()
            assert_near(torch.from_numpy(tifffile.imread(files["map"])), torch.from_numpy(expected.map), 1e-6)
            assert json.loads(files["regions"].read_text())["features"]
            dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)


@check(2)
def what_a_group_cannot_stream():
    model, image = small(dynamic_img_pad=True).eval(), torch.randn(3, 40, 40, dtype=torch.float64)
    options = {"tile": 16, "group": dist.group.WORLD}
    with pytest.raises(ValueError, match=r"group cannot be combined with state='job'"):
        infsa.stream(model, image, state="job", **options)
    with pytest.raises(ValueError, match=r"group cannot be combined with on_error='skip'"):
        infsa.stream(model, image, on_error="skip", **options)
    with pytest.raises(ValueError, match="2 ranks need a tile each, got 1"):
        infsa.stream(model, image, tile=40, group=dist.group.WORLD)
    with pytest.raises(
        ValueError, match=r"the same image size and tiles, got .* \[\[40, 40, 2, 2\], \[40, 40, 3, 3\]\]"
    ):
        infsa.stream(model, image, tile=16 + 8 * dist.get_rank(), group=dist.group.WORLD)
