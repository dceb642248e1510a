"""Bad tiles, wrong arguments and models that cannot be streamed."""

import threading

import numpy as np
import pytest
import torch

import infsa
from infsa.streaming import Source
from infsa.streaming.source import Colours

from .helpers import picture, relative, small

tifffile = pytest.importorskip("tifffile")


class Damaged(Source):
    """A tensor of which some windows cannot be read."""

    model_input = True
    name = "damaged"

    def __init__(self, x, bad, fails_after=0):
        self.x, self.bad, self.reads, self.fails_after = x, bad, 0, fails_after
        self.channels, self.height, self.width = x.shape
        self.itemsize = 8

    def read(self, top, left, bottom, right):
        self.reads += 1
        if (top, left) in self.bad and self.reads > self.fails_after:
            raise OSError("unreadable")
        return self.x[:, top:bottom, left:right]


BAD = {(0, 24), (48, 0)}


def test_a_bad_tile_is_named():
    with pytest.raises(ValueError, match=r"damaged: tile 1 \(pixels 0:24, 24:48\): unreadable"):
        infsa.stream(small(), Damaged(picture(), BAD), tile=24)


@pytest.mark.parametrize("fails_after", [0, 20])
def test_no_thread_lives_on_with_the_error(fails_after):
    before = threading.active_count()
    with pytest.raises(ValueError, match="unreadable") as caught:
        infsa.stream(small(), Damaged(picture(), BAD, fails_after), tile=24, strategy="recompute")
    assert threading.active_count() == before, caught


@pytest.mark.parametrize("strategy", ["recompute", "spill"])
@pytest.mark.parametrize("options", [{}, {"global_pool": "avg"}, {"attention_options": {"iterations": 2}}])
def test_skipped_tiles_are_masked_tokens(options, strategy):
    model, x = small(**options), picture()
    real = torch.ones(1, 13, 10, dtype=torch.bool)
    real[:, :3, 3:6] = False
    real[:, 6:9, :3] = False
    with torch.no_grad():
        expected = model(x[None], patch_mask=real)
    result = infsa.stream(model, Damaged(x, BAD), tile=24, on_error="skip", strategy=strategy, map=True)
    assert relative(result.logits, expected) < 1e-10
    assert [bad.tile.pixels[:2] for bad in result.skipped] == sorted(BAD)
    assert result.map.sum() == pytest.approx(1)
    assert not result.map[~real[0].numpy()].any()


def test_a_tile_that_fails_later_ends_the_stream():
    source = Damaged(picture(), {(0, 0)}, fails_after=20)
    with pytest.raises(ValueError, match="it could be read in an earlier pass"):
        infsa.stream(small(), source, tile=24, on_error="skip", strategy="recompute")


def test_nothing_readable():
    x = picture(20, 20)
    with pytest.raises(ValueError, match="no tile of damaged could be read"):
        infsa.stream(small(), Damaged(x, {(0, 0)}), on_error="skip")


def write_damaged(path, **options):
    array = np.random.default_rng(0).integers(0, 255, (128, 128, 3), np.uint8)
    tifffile.imwrite(path, array, photometric="rgb", **options)
    data = path.read_bytes()
    with tifffile.TiffFile(path) as file:
        offset, length = file.pages[0].dataoffsets[-1], file.pages[0].databytecounts[-1]
    return array, data, offset, length


@pytest.mark.parametrize(
    "options", [{"tile": (32, 32)}, {"tile": (32, 32), "compression": "zlib"}, {"rowsperstrip": 8}]
)
def test_a_truncated_tiff_names_what_is_missing(options, tmp_path):
    path = tmp_path / "cut.tif"
    _, data, offset, length = write_damaged(path, **options)
    path.write_bytes(data[: offset + length // 2])
    model = small(depth=1)
    with pytest.raises(ValueError, match=r"cut.tif: tile .*file is cut off") as caught:
        infsa.stream(model, path, tile=32)
    assert "\n" not in str(caught.value)
    result = infsa.stream(model, path, tile=32, on_error="skip")
    assert result.skipped
    assert result.skipped[-1].tile.pixels == (96, 96, 128, 128)


def test_what_is_left_of_a_truncated_strip_is_read(tmp_path):
    """All pixels in one strip, as they are: only the last rows are missing."""
    path = tmp_path / "cut.tif"
    array, data, offset, length = write_damaged(path)
    path.write_bytes(data[: offset + length // 2])
    model, real = small(depth=1), torch.ones(1, 16, 16, dtype=torch.bool)
    real[:, 8:] = False
    with torch.no_grad():
        expected = model(Colours(model)(array), patch_mask=real)
    assert relative(infsa.stream(model, path, tile=32, on_error="skip").logits, expected) < 1e-10


@pytest.mark.parametrize("version", [2, 3])
def test_damaged_chunks_are_named(version, tmp_path):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "damaged.zarr"
    zarr.create_array(str(path), shape=(64, 64, 3), chunks=(32, 32, 3), dtype="u1", zarr_format=version)[:] = 7
    chunk = path / ("1.0.0" if version == 2 else "c/1/0/0")
    chunk.write_bytes(chunk.read_bytes()[:5])
    model = small(depth=1)
    with pytest.raises(ValueError, match=r"damaged.zarr: tile 2 \(pixels 32:64, 0:32\): ") as caught:
        infsa.stream(model, path, tile=32)
    assert "\n" not in str(caught.value)
    assert [bad.tile.number for bad in infsa.stream(model, path, tile=32, on_error="skip").skipped] == [2]


def test_damaged_data_is_named(tmp_path):
    path = tmp_path / "damaged.tif"
    _, data, offset, length = write_damaged(path, tile=(32, 32), compression="zlib")
    path.write_bytes(data[:offset] + bytes(length) + data[offset + length :])
    with pytest.raises(ValueError, match=r"tile 15 \(pixels 96:128, 96:128\): tile \(3, 3\) of the file"):
        infsa.stream(small(depth=1), path, tile=32)


def test_a_truncated_jpeg(tmp_path):
    pytest.importorskip("pyvips")
    from PIL import Image

    path = tmp_path / "cut.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"cut.jpg: tile \d+ ") as caught:
        infsa.stream(small(depth=1), path, tile=32)
    assert "\n" not in str(caught.value)
    result = infsa.stream(small(depth=1), path, tile=32, on_error="skip")
    assert 0 < len(result.skipped) < 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 0}, "tile must be .* got 0"),
        ({"strategy": "guess"}, "got 'guess'"),
        ({"memory": "much"}, "got 'much'"),
        ({"memory": "1MB"}, "memory='1MB' is too small: .* need .*MiB|GiB"),
        ({"order": [0, 0]}, "order must name each of the 1 tiles once"),
        ({"on_error": "ignore"}, "got 'ignore'"),
        ({"level": 1}, "level=1"),
        ({"strategy": "recompute", "scratch": "x"}, "takes no scratch"),
        ({"map": "map.jpg"}, "got map.jpg"),
        ({"map": True, "layer": 3}, r"layer must lie in \[-3, 3\), got 3"),
        ({"map": True, "head": 4}, r"head must lie in \[0, 4\), got 4"),
        ({"state": "x", "save_every": -1}, "save_every"),
        ({"state": "."}, r"\. must be a file"),
    ],
)
def test_wrong_arguments_are_one_line(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        infsa.stream(small(), picture(), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "performer", "agent", "mean"])
def test_mechanisms_without_these_sums_are_refused(attention):
    with pytest.raises(
        ValueError, match=rf"needs Linear-InfSA \(attention='infsa_linear'\).*got attention='{attention}'"
    ):
        infsa.stream(small(attention=attention), picture())


@pytest.mark.parametrize("part", ["blocks.1", "blocks.0.attn"])
def test_hooks_that_would_not_run_are_refused(part):
    """A module that is called as it is keeps its hooks: they change a stream as they change the model."""
    model = small()
    with model.get_submodule(part).register_forward_hook(lambda module, given, out: 2 * out):
        for run in (infsa.stream, infsa.streaming.plan_stream):
            with pytest.raises(ValueError, match="would not run; remove them"):
                run(model, picture())
    with model.blocks[0].mlp.register_forward_hook(lambda module, given, out: 2 * out), torch.no_grad():
        assert torch.allclose(infsa.stream(model, picture(), tile=24).logits, model(picture()[None]))


def test_models_and_images_that_do_not_fit():
    for run in (infsa.stream, infsa.streaming.plan_stream, infsa.streaming.stream_backward):
        with pytest.raises(TypeError, match=r"got Linear; infsa\.conversion\.as_infvit"):
            run(torch.nn.Linear(2, 2), picture(), *([torch.ones(1)] if run is infsa.streaming.stream_backward else []))
    with pytest.raises(ValueError, match="multiples of the patch"):
        infsa.stream(small(dynamic_img_pad=False), picture())
    with pytest.raises(ValueError, match="dynamic_img_size=True accepts any size"):
        infsa.stream(small(dynamic_img_size=False), picture())
    with pytest.raises(ValueError, match="has 4 channels, the model takes 3"):
        infsa.stream(small(), torch.randn(4, 32, 32))
    with pytest.raises(
        ValueError, match=r"has 32 channels, the model takes 3.*; floating numbers are model input \(C, H, W\)"
    ):
        infsa.stream(small(), np.zeros((32, 32, 3), np.float32))
    with pytest.raises(ValueError, match="got ''"):
        infsa.stream(small(global_pool=""), picture())
    with pytest.raises(ValueError, match=r"call model\.eval"):
        infsa.stream(small(drop_path_rate=0.1).train(), picture())
    with pytest.raises(ValueError, match="queries=1"):
        infsa.stream(small(attention_options={"queries": 2}), picture(), on_error="skip")
    with pytest.raises(TypeError, match="floating model input"):
        infsa.stream(small(), torch.zeros(3, 32, 32, dtype=torch.uint8))


def test_strips_are_read_from_the_top_down(tmp_path):
    pytest.importorskip("pyvips")
    from PIL import Image

    Image.new("RGB", (64, 64)).save(tmp_path / "image.png")
    with pytest.raises(ValueError, match="from the top down"):
        infsa.stream(small(), tmp_path / "image.png", tile=32, order=[2, 3, 0, 1])
    infsa.stream(small(), tmp_path / "image.png", tile=32, order=[1, 0, 3, 2])
