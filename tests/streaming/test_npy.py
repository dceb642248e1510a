"""``.npy`` files: every order and type is read right or refused, and none is loaded whole."""

import io

import numpy as np
import pytest
import torch

import infsa
from infsa.streaming import open_source
from infsa.streaming.memory import resident

from .helpers import relative, small
from .test_sources import pixels

WINDOWS = [(0, 0, 101, 150), (17, 9, 90, 140), (100, 149, 101, 150)]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<u2", ">u2"])
def test_pixels_of_any_order(dtype, order, tmp_path):
    array = np.asarray(pixels(dtype=np.dtype(dtype).newbyteorder("=").type).astype(dtype), order=order)
    np.save(tmp_path / "image.npy", array)
    source = open_source(tmp_path / "image.npy")
    for top, left, bottom, right in WINDOWS:
        assert np.array_equal(source.read(top, left, bottom, right), array[top:bottom, left:right])
    model = small(depth=1)
    expected = infsa.stream(model, array.astype(array.dtype.newbyteorder("=")), tile=48).logits
    assert torch.equal(infsa.stream(model, tmp_path / "image.npy", tile=48).logits, expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
def test_model_input_of_any_order(dtype, order, tmp_path):
    array = np.asarray(np.random.default_rng(0).standard_normal((1, 3, 40, 56)).astype(dtype), order=order)
    np.save(tmp_path / "image.npy", array)
    model = small(depth=1)
    with torch.no_grad():
        expected = model(torch.from_numpy(array.astype(np.float64)))
    assert relative(infsa.stream(model, tmp_path / "image.npy", tile=16).logits, expected) < 1e-12


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format(version, tmp_path):
    with (tmp_path / "image.npy").open("wb") as file:
        np.lib.format.write_array(file, pixels(), version=version)
    assert np.array_equal(open_source(tmp_path / "image.npy").read(0, 0, 101, 150), pixels())


@pytest.mark.parametrize("dtype", ["?", "i1", "i4", "u4", "u8", "c8", "U3", "M8[s]", "u1,u1", np.longdouble])
def test_other_types_are_refused_by_name(dtype, tmp_path):
    np.save(tmp_path / "image.npy", np.zeros((3, 8, 8), dtype))
    with pytest.raises(ValueError, match=r"image.npy: .*, got ") as caught:
        open_source(tmp_path / "image.npy")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [-1, -4000, 7])
def test_a_file_of_another_length_is_refused_with_both_lengths(cut, tmp_path):
    path = tmp_path / "image.npy"
    np.save(path, pixels())
    whole = path.read_bytes()
    path.write_bytes(whole[:cut] if cut < 0 else whole + bytes(cut))
    with pytest.raises(ValueError, match=f"{len(whole)} bytes expected .*, {len(whole) + cut} found") as caught:
        open_source(path)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_not_loaded(tmp_path):
    """A sparse file of a gigabyte that should have two."""
    path, stream = tmp_path / "image.npy", io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (2**16, 2**15, 1)})
    with path.open("wb") as file:
        file.write(stream.getvalue())
        file.truncate(2**30)
    before = resident()
    with pytest.raises(ValueError, match=rf"cut off: {2**31 + len(stream.getvalue())} bytes expected .*{2**30} found"):
        open_source(path)
    assert resident() - before < 64 * 2**20


@pytest.mark.parametrize("seed", range(3))
def test_garbage_is_refused_in_one_line(seed, tmp_path):
    path, draw = tmp_path / "image.npy", np.random.default_rng(seed)
    np.save(path, pixels(height=8, width=8))
    whole = path.read_bytes()
    for _ in range(100):
        changed = bytearray(whole)
        for place in draw.integers(0, 128, 3):
            changed[place] = draw.integers(0, 256)
        path.write_bytes(changed)
        try:
            source = open_source(path)
        except ValueError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            continue
        source.read(0, 0, source.height, source.width)


def test_pickles_are_never_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    np.save(tmp_path / "trap.npy", np.array([Trap()] * 4, dtype=object).reshape(2, 2), allow_pickle=True)
    with pytest.raises(ValueError, match=r"trap.npy: holds Python objects, which are never unpickled"):
        open_source(tmp_path / "trap.npy")
