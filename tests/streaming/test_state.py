"""A stream that is stopped anywhere and started again ends with the same bits."""

import pytest
import torch

import infsa

from .helpers import picture, small


class Stopped(Exception):
    pass


def stop_after(count):
    seen = 0

    def report(_):
        nonlocal seen
        seen += 1
        if seen > count:
            raise Stopped

    return report


def interrupted(model, x, stops, path, **options):
    for count in stops:
        with pytest.raises(Stopped):
            infsa.stream(model, x, tile=32, state=path, save_every=0, progress=stop_after(count), **options)
    return infsa.stream(model, x, tile=32, state=path, save_every=0, **options)


@pytest.mark.parametrize("strategy", ["recompute", "spill"])
@pytest.mark.parametrize(
    "options", [{}, {"global_pool": "avg"}, {"attention_options": {"iterations": 2}}, {"stem": "conv"}], ids=str
)
def test_stopped_and_resumed_equals_uninterrupted(strategy, options, tmp_path):
    """12 tiles a pass: stopped in the first pass, at half of all, and once more soon after."""
    model, x = small(torch.float32, **options), picture(64, 180, torch.float32)
    expected = infsa.stream(model, x, tile=32, strategy=strategy, map=True)
    path = tmp_path / "job.state"
    steps = 3 * (1 + options.get("attention_options", {}).get("iterations", 1))
    found = interrupted(model, x, [5, 12 * steps // 2 - 5, 3], path, strategy=strategy, map=True)
    assert torch.equal(found.logits, expected.logits)
    for name, tensor in expected.code.tensors().items():
        assert torch.equal(found.code.tensors()[name], tensor), name
    assert (found.map == expected.map).all()
    assert not path.exists()


def test_skipped_tiles_are_remembered(tmp_path):
    from .test_errors import BAD, Damaged

    model, x = small(), picture()
    expected = infsa.stream(model, Damaged(x, BAD), tile=24, on_error="skip")
    with pytest.raises(Stopped):
        infsa.stream(model, Damaged(x, BAD), tile=24, on_error="skip", state=tmp_path / "s", save_every=0,
                     progress=stop_after(30))  # fmt: skip
    found = infsa.stream(model, Damaged(x, BAD), tile=24, on_error="skip", state=tmp_path / "s")
    assert torch.equal(found.logits, expected.logits)
    assert found.skipped == expected.skipped


def other_colours():
    model = small()
    model.pretrained_cfg = {"mean": (0.1, 0.2, 0.3)}
    return model


def test_a_state_of_something_else_is_refused(tmp_path):
    model, x, path = small(), picture(), tmp_path / "job.state"
    with pytest.raises(Stopped):
        infsa.stream(model, x, tile=32, state=path, save_every=0, progress=stop_after(5))
    for other, image, options in (
        (small(seed=1), x, {}),
        (model, x[:, :64], {}),
        (model, x.flip(2), {}),
        (model, x, {"tile": 24}),
        (model, x, {"on_error": "skip"}),
        (other_colours(), x, {}),
    ):
        with pytest.raises(ValueError, match="belongs to another image, model or tile size"):
            infsa.stream(other, image, **{"tile": 32, "state": path, **options})
    path.write_bytes(b"cut")
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        infsa.stream(model, x, tile=32, state=path)


def test_nothing_is_saved_before_its_time(tmp_path):
    with pytest.raises(Stopped):
        infsa.stream(small(), picture(), tile=32, state=tmp_path / "s", save_every=1e6, progress=stop_after(9))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name", ["image.npy", "image.zarr"])
def test_a_state_of_an_image_of_the_same_size_is_refused(name, tmp_path):
    """The files differ in nothing but their pixels."""
    from .test_sources import WRITERS, pixels, write_zarr

    write = {**WRITERS, "image.zarr": write_zarr}[name]
    (tmp_path / "other").mkdir()
    write(tmp_path / name, pixels())
    write(tmp_path / "other" / name, 255 - pixels())
    options = {"tile": 32, "state": tmp_path / "s", "save_every": 0}
    with pytest.raises(Stopped):
        infsa.stream(small(), tmp_path / name, progress=stop_after(5), **options)
    with pytest.raises(ValueError, match="belongs to another image"):
        infsa.stream(small(), tmp_path / "other" / name, **options)
    moved = (tmp_path / name).rename(tmp_path / f"moved-{name}")
    assert torch.equal(infsa.stream(small(), moved, **options).logits, infsa.stream(small(), moved, tile=32).logits)
