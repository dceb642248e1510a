"""A streamed image gives what the model gives on the whole image: any tile, order, strategy and size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import infsa

from .helpers import VARIANTS, picture, relative, small

EXACT = 1e-10


def whole(model, x):
    """Logits, features before the classifier and dense features of the model on the whole image."""
    with torch.no_grad():
        tokens = model.norm(model.run_blocks(*model.embed(x[None])))
        dense = tokens[0, model.num_prefix_tokens :]
        return model.forward_head(tokens), model.forward_head(tokens, pre_logits=True), dense


@pytest.mark.parametrize("strategy", ["recompute", "spill", "file"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_whole_image(variant, strategy, tmp_path, monkeypatch):
    model, x = small(**VARIANTS[variant]), picture(61, 45)
    logits, features, dense = whole(model, x)
    options = {"strategy": strategy}
    if strategy == "file":
        monkeypatch.setattr("infsa.streaming.plan.available", lambda: 0)  # no room in memory
        options = {"strategy": "spill", "scratch": tmp_path}
    result = infsa.stream(model, x, tile=24, **options)
    assert relative(result.logits, logits) < EXACT
    assert relative(result.features, features) < EXACT
    assert relative(result.region(0, 0, 61, 45).flatten(0, 1), dense) < EXACT


@pytest.mark.parametrize("pool", ["max", "avgmax"])
def test_other_poolings(pool):
    model, x = small(global_pool=pool), picture()
    assert relative(infsa.stream(model, x, tile=16).logits, whole(model, x)[0]) < EXACT


@settings(max_examples=8, deadline=None)
@given(
    height=st.integers(1, 70), width=st.integers(1, 70), tile=st.integers(1, 90), seed=st.integers(0, 9)
)  # fmt: skip
def test_any_size_tile_and_order(height, width, tile, seed):
    model, x = small(depth=2), picture(height, width)
    patches = tuple(-(-side // 8) for side in (height, width))
    count = int(np.prod([-(-side // max(1, tile // 8)) for side in patches]))
    order = np.random.default_rng(seed).permutation(count).tolist()
    result = infsa.stream(model, x, tile=tile, order=order)
    assert relative(result.logits, whole(model, x)[0]) < EXACT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_as_near_to_float64_as_the_whole_image(dtype):
    """Error against float64 at most twice that of the model itself, or one unit in the last place."""
    exact = whole(small(), picture())[0]
    model, x = small(dtype), picture(dtype=dtype)
    own = relative(whole(model, x)[0], exact)
    for strategy in ("recompute", "spill"):
        found = infsa.stream(model, x, tile=16, strategy=strategy)
        assert found.logits.dtype == dtype
        assert relative(found.logits, exact) <= max(2 * own, torch.finfo(dtype).eps)


def test_autocast_reaches_the_stream():
    exact, model, x = whole(small(), picture())[0], small(torch.float32), picture(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        own = relative(whole(model, x)[0], exact)
        found = relative(infsa.stream(model, x, tile=16).logits, exact)
    assert found <= max(2 * own, torch.finfo(torch.bfloat16).eps)


def test_strategies_agree_to_the_bit():
    model, x = small(torch.float32), picture(dtype=torch.float32)
    recompute, spill = (infsa.stream(model, x, tile=16, strategy=name) for name in ("recompute", "spill"))
    assert torch.equal(recompute.logits, spill.logits)
    assert (recompute.strategy, spill.strategy) == ("recompute", "spill")


def test_a_spill_with_room_for_some_tiles_changes_nothing():
    from infsa.streaming.engine import Engine
    from infsa.streaming.run import prepare
    from infsa.streaming.spill import Spill

    model, x = small(), picture()
    network, feed = prepare(model, infsa.streaming.open_source(x), 16)
    spill = Spill(5000)
    logits, _ = Engine(network, feed, range(len(network.tiling)), spill).run()
    assert 0 < len(spill.layers) < len(network.tiling)
    assert torch.equal(logits, infsa.stream(model, x, tile=16, strategy="recompute").logits)


def test_scene_code_survives_a_file(tmp_path):
    model, x = small(), picture()
    code = infsa.stream(model, x, tile=16).code
    loaded = infsa.streaming.SceneCode.load(code.save(tmp_path / "code.safetensors"))
    assert len(loaded.rows) == 3
    assert loaded.rows[0].shape == (1, 1, 32)
    box = (17, 9, 50, 33)
    dense = whole(model, x)[2].unflatten(0, (13, 10))[2:7, 1:5]
    assert relative(loaded.features(model, x, box), dense) < EXACT
    with pytest.raises(ValueError, match="inside"):
        loaded.features(model, x, (0, 0, 102, 5))
    with pytest.raises(ValueError, match="this code is of an image"):
        loaded.features(model, x[:, :50], box)
    with pytest.raises(ValueError, match="layers"):
        loaded.features(small(depth=2), x, box)


def test_a_sum_of_many_tiles_keeps_float32_accuracy():
    """Sums over tiles are kept in float64: 1024 tiles cost no accuracy."""
    model, x = small(torch.float32, depth=1, patch_size=1, img_size=8), picture(32, 32, torch.float32)
    exact = whole(model.double(), x.double())[0]
    own = relative(whole(model.float(), x)[0], exact)
    assert relative(infsa.stream(model, x, tile=1).logits, exact) <= max(2 * own, 1e-7)
