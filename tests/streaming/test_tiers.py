"""Integers on the device, decoding ahead, tokens in tiers, the plan and the clock: none of them changes a result."""

import threading

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import infsa
from infsa.streaming import open_source, plan_stream, stream_backward
from infsa.streaming.engine import Engine
from infsa.streaming.feed import BadTile
from infsa.streaming.plan import Plan, gpu_side
from infsa.streaming.run import prepare
from infsa.streaming.source import Colours
from infsa.streaming.spill import FileSpill, Spill, Tiers
from infsa.streaming.timing import STAGES, Profile, table

from .helpers import picture, relative, small
from .test_sources import pixels

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.mark.parametrize("stem", ["patch", "conv"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [0, 1, 2, 3, 4])
def test_pixels_stream_like_their_model_input(channels, kind, stem):
    """Grey, colours and opacity, of sides that are no multiple of the patch: logits, and gradients of the weights."""
    array = pixels(channels, kind, height=61, width=45)
    for dtype, bound in BOUNDS.items():
        model = small(dtype, depth=1, stem=stem)
        model(Colours(model)(array.reshape(61, 45, -1))).logsumexp(1).sum().backward()
        expected = {name: p.grad for name, p in model.named_parameters() if "patch_embed" in name}
        model.zero_grad()
        with torch.no_grad():
            logits = model(Colours(model)(array.reshape(61, 45, -1)))
        assert relative(infsa.stream(model, array, tile=24).logits, logits) < bound
        stream_backward(model, array, lambda logits: logits.logsumexp(1).sum(), tile=24)
        found = {name: p.grad for name, p in model.named_parameters() if "patch_embed" in name}
        together = [torch.cat([g[name].flatten() for name in sorted(expected)]) for g in (found, expected)]
        assert relative(*together) < bound


def test_a_full_opacity_is_left_out():
    array = np.concatenate([pixels(), np.full((101, 150, 1), 255, np.uint8)], -1)
    assert Colours(small()).raw(array).shape == (101, 150, 3)
    found = infsa.stream(small(), array, tile=32).logits
    assert torch.equal(found, infsa.stream(small(), array[..., :3], tile=32).logits)


def test_a_hooked_patch_embedding_sees_normalised_pixels():
    model, seen = small(depth=1), []
    expected = infsa.stream(model, pixels(), tile=32).logits
    model.patch_embed.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    assert relative(infsa.stream(model, pixels(), tile=32).logits, expected) < 1e-12
    assert seen[0].dtype == torch.float64


def test_readers_convert_nothing():
    """A conversion in a reader thread would run on that thread's stream of a GPU."""
    x = picture()
    _, feed = prepare(small(torch.float32), open_source(x), 32)
    for _, window in feed([0, 1, 2]):
        assert window.dtype == torch.float64
        assert window.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize("depth", [1, 3, 16])
def test_decoding_ahead_keeps_the_order_and_its_limit(depth, monkeypatch):
    source = open_source(pixels())
    _, feed = prepare(small(), source, 16)
    read, under_way, most, lock = source.read, 0, 0, threading.Lock()

    def counted(*window):
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        try:
            return read(*window)
        finally:
            with lock:
                under_way -= 1

    monkeypatch.setattr(source, "read", counted)
    feed.depth = depth
    numbers = list(range(len(feed.tiling)))
    assert [tile.number for tile, _ in feed(numbers)] == numbers
    assert most <= depth
    assert feed.held(16) > feed.held(1)


def test_strips_are_read_by_several_threads(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    array = pixels()
    tifffile.imwrite(tmp_path / "strips.tif", array, photometric="rgb", rowsperstrip=7, compression="zlib")
    source = open_source(tmp_path / "strips.tif")
    network, feed = prepare(small(), source, 40)
    assert (source.bands, source.unit) == (True, 7)
    expected = infsa.stream(small(), array, tile=40, strategy="recompute").logits
    for depth in (1, 3, 8):
        feed.depth = depth
        assert torch.equal(Engine(network, feed, range(len(network.tiling))).run()[0], expected)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 4, "opaque"])
def test_a_tile_that_all_threads_read_is_the_same(channels, kind, tmp_path):
    """As on a GPU, whose tiles are few: of a tiled TIFF, in parts that begin with its tiles."""
    array = pixels(4 if channels == "opaque" else channels, kind)
    if channels == "opaque":
        array[..., 3] = np.iinfo(kind).max
    extra = {"extrasamples": ["unassalpha"]} if array.shape[2:] == (4,) else {}
    colours = "rgb" if array.shape[2] > 1 else "minisblack"
    pytest.importorskip("tifffile").imwrite(tmp_path / "a.tif", array, tile=(16, 32), photometric=colours, **extra)
    _, alone = prepare(small(), open_source(tmp_path / "a.tif"), 56)
    _, shared = prepare(small(), open_source(tmp_path / "a.tif"), 56)
    shared.together, shared.depth = True, 3
    read, tops = shared.source.read, set()
    shared.source.read = lambda *window: tops.add(window[0]) or read(*window)
    numbers = range(len(alone.tiling))
    for (tile, window), (other, expected) in zip(shared(numbers), alone(numbers), strict=True):
        assert tile == other
        assert torch.equal(window, expected)
    assert {top for top in tops if top % 56} == {16, 32, 64, 80}


def test_damage_in_one_part_is_the_tile_s(monkeypatch):
    source = open_source(pixels())
    _, feed = prepare(small(), source, 24)
    read = source.read

    def damaged(top, left, bottom, right):
        if top <= 50 < bottom and left <= 30 < right:
            raise OSError("unreadable")
        return read(top, left, bottom, right)

    monkeypatch.setattr(source, "read", damaged)
    feed.together, feed.depth = True, 4
    found = list(feed(range(len(feed.tiling))))
    bad = [window for _, window in found if isinstance(window, BadTile)]
    assert [str(entry) for entry in bad] == ["tile 15 (pixels 48:72, 24:48): unreadable"]
    assert len(found) == len(feed.tiling)


def test_tiers_fill_one_after_the_other_and_change_nothing(tmp_path):
    model, x = small(), picture()
    expected = infsa.stream(model, x, tile=16, strategy="recompute").logits
    network, feed = prepare(model, open_source(x), 16)
    file = FileSpill(tmp_path, network.tiling, 32, torch.float64)
    tiers = Tiers([Spill(5000), Spill(3000), file])
    assert torch.equal(Engine(network, feed, range(len(network.tiling)), tiers).run()[0], expected)
    held = [len(store.layers) for store in tiers.stores]
    assert sum(held) == len(network.tiling)
    assert all(held)
    assert tiers.slow(len(network.tiling) - 1)
    tiers.close()


def test_tokens_stay_where_they_are_unless_more_would_stay_with_them():
    spill, x = Spill(1 << 20), torch.randn(1, 40, 8)
    spill.put(0, 0, x)
    spill.put(1, 0, x[:, :20])
    spill.put(2, 0, x.expand(3, -1, -1))
    assert spill.get(0)[1].data_ptr() == x.data_ptr()
    part, versions = spill.get(1)[1], spill.get(2)[1]
    assert part.untyped_storage().nbytes() == 640
    assert torch.equal(part, x[:, :20])
    assert versions.is_contiguous()
    assert torch.equal(versions, x.expand(3, -1, -1))


@pytest.mark.parametrize("queries", [1, 3])
def test_a_layer_takes_few_tokens_at_a_time_on_a_cpu(queries, monkeypatch):
    model, x = small(attention_options={"queries": queries}), picture(96, 88)
    with torch.no_grad():
        whole = model(x[None])
    seen = []
    model.blocks[0].mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    monkeypatch.setattr("infsa.streaming.network.CHUNK", 50 * model.embed_dim * 8)
    assert relative(infsa.stream(model, x, tile=96).logits, whole) < 1e-12
    assert 0 < max(seen) <= 50


def test_memory_first_then_the_file(tmp_path, monkeypatch):
    """Of 39 MiB of tokens what fits stays in memory."""
    from infsa.streaming.memory import resident

    model, x = small(patch_size=1, img_size=8, depth=1), picture(400, 400)
    options = {"tile": 64, "memory": resident() + 240 * 2**20, "scratch": tmp_path}
    laid = plan_stream(model, x, **options)
    assert sum(laid.tiers.values()) == 400 * 400 * 32 * 8
    assert laid.tiers["nowhere"] == laid.tiers["device"] == 0
    assert "in a file under" in str(laid) or laid.tiers["file"] == 0
    assert torch.equal(infsa.stream(model, x, **options).logits, infsa.stream(model, x, tile=64).logits)


def test_the_plan_is_said():
    laid = plan_stream(small(), picture(), tile=32)
    assert str(laid).startswith("tiles of 32 × 32 px (as asked), 16 tokens each; ")
    assert str(laid).endswith("33 KiB in host memory") or "in host memory" in str(laid)
    assert "the default on a CPU" in str(plan_stream(small(), picture()))
    assert "computed again in every pass" in str(plan_stream(small(), picture(), strategy="recompute"))
    with pytest.raises(ValueError, match="device_memory='1GiB' needs a model on a GPU, got one on cpu: use memory"):
        infsa.stream(small(), picture(), device_memory="1GiB")


def test_rooms_are_shared_by_the_layers_of_a_backward_pass():
    network, _ = prepare(small(), open_source(picture()), 16)
    stores = Plan(None, 250, on_device=150, stored=300).stores(network, 3)
    assert [[tier.capacity for tier in store.stores] for store in stores] == [[100, 100], [50, 100], [100]]
    assert Plan(None, 0, stored=300).stores(network, 3) == []


def test_tiles_on_a_gpu_have_32_to_64_thousand_tokens():
    for patch in ((16, 16), (14, 14), (8, 2)):
        side = gpu_side(patch, 1024, 1, lambda _: 0)
        assert 1 << 15 < (side // patch[0]) * (side // patch[1]) <= 1 << 16
        narrow = gpu_side(patch, 192, 1, lambda _: 0)
        assert 1 << 17 < (narrow // patch[0]) * (narrow // patch[1]) <= 1 << 18
    assert gpu_side((16, 16), 1024, 10**6, lambda side: side * side) == 512


def test_a_clock_adds_up():
    reports = []
    result = infsa.stream(small(), pixels(), tile=32, progress=reports.append)
    waited, profile = result.profile.waited, result.profile
    assert tuple(waited) == STAGES
    assert sum(waited.values()) == pytest.approx(profile.seconds)
    assert profile.megapixels == pytest.approx(101 * 150 / 1e6 * result.passes)
    assert [at.waits_for in STAGES and at.rate > 0 for at in reports] == [True] * len(reports)
    assert reports[-1].left == 0
    assert len(table(profile.record()).splitlines()) == 6
    assert Profile().table().startswith("waiting for")


def test_memory_is_looked_at_from_time_to_time(monkeypatch):
    looks = []
    monkeypatch.setattr("infsa.streaming.engine.resident", lambda: looks.append(1) or 1)
    monkeypatch.setattr("infsa.streaming.engine.LOOK_EVERY", 1e9)
    infsa.stream(small(), picture(), tile=8)
    assert len(looks) <= 2


def test_a_backward_pass_says_what_it_took():
    result = stream_backward(small(), pixels(), lambda logits: F.cross_entropy(logits, torch.tensor([2])), tile=32)
    assert result.peak_memory > 0
    assert result.profile.rate > 0
    assert result.plan.tile == (32, 32)
