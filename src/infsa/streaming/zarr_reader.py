"""Zarr arrays, and the levels of OME-Zarr images."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from .placement import micrometres, pair
from .readers import needed, one_line
from .source import Pixels, Source, check_pixel_type, from_array


def open_zarr(source: Any, name: str, level: int = 0) -> Source:
    """A Zarr array (H, W[, C]) or, for floating types, (C, H, W); or an OME-Zarr image with named axes."""
    zarr = needed("zarr", "zarr", f"reading {name}")
    if isinstance(source, Path):
        try:
            source = zarr.open(str(source), mode="r")
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise ValueError(f"{name} is not a Zarr array or group: {one_line(error)}") from error
    if isinstance(source, zarr.Group):
        return _open_image(source, name, level)
    if level:
        raise ValueError(f"{name} has no pyramid, got level={level}")
    chunks = Chunks(source, (0,) if source.ndim == 4 and source.shape[0] == 1 else ())
    opened = from_array(chunks, name)
    opened.overhead, opened.per_reader = chunks.held, chunks.held // 2
    opened.unit = source.chunks[0]
    return opened


class Chunks:
    """A Zarr array, or the part of it at some first places, whose damaged chunks raise OSError."""

    def __init__(self, array: Any, first: tuple[int, ...] = ()) -> None:
        self.array, self.first, self.dtype = array, first, array.dtype
        self.shape = tuple(array.shape)[len(first) :]
        self.ndim = len(self.shape)
        self.held = 4 * math.prod(array.chunks) * array.dtype.itemsize  # by decoding a few chunks at a time

    def __getitem__(self, window: tuple[Any, ...]) -> Pixels:
        """A window, decoded."""
        try:
            return np.asarray(self.array[self.first + window])
        except Exception as error:  # damaged data raises almost anything from inside a codec
            raise OSError(f"a chunk of the array: {one_line(error)}") from error


def _open_image(group: Any, name: str, level: int) -> Source:
    attributes = group.attrs.asdict()
    scales = attributes.get("ome", attributes).get("multiscales")
    if not scales:
        raise ValueError(f"{name} is a Zarr group without an OME-Zarr image; name one of its arrays")
    try:
        levels = scales[0]["datasets"]
        axes = [axis["name"] if isinstance(axis, dict) else axis for axis in scales[0].get("axes", "tczyx")]
        named = [levels[0], levels[level]] if level < len(levels) else []
        arrays = [group[dataset["path"]] for dataset in named]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name} has no OME-Zarr image that can be read: {one_line(error)}") from error
    if not arrays:
        raise ValueError(f"{name} has {len(levels)} levels, got level={level}")
    source = AxesSource(arrays[1], axes, name)
    source.full_size, source.pixel_size = _measures(arrays[0].shape, scales[0], axes)
    return source


def _measures(shape: Any, scale: Any, axes: list[str]) -> tuple[tuple[int, int], tuple[float, float] | None]:
    """Height and width of level 0, of a shape, in pixels, and those of a pixel of it in µm if the file says so."""
    first = scale["datasets"][0]
    y, x = axes.index("y"), axes.index("x")
    lengths: list[float | None] = []
    for place in (y, x):
        try:
            step = first["coordinateTransformations"][0]["scale"][place]
            lengths.append(micrometres(step, scale["axes"][place]["unit"]))
        except (KeyError, TypeError, IndexError):
            lengths.append(None)
    return (shape[y], shape[x]), pair(*lengths)


class AxesSource(Source):
    """An array whose axes have names: y and x, perhaps c; others must have length 1."""

    opacity = False  # the axis c counts channels of any kind

    def __init__(self, array: Any, axes: list[str], name: str) -> None:
        if len(axes) != array.ndim or not {"y", "x"} <= set(axes):
            raise ValueError(f"{name}: axes {axes} do not describe an array of shape {tuple(array.shape)}")
        lengths = dict(zip(axes, array.shape, strict=True))
        for axis in axes:
            if axis not in "cyx" and lengths[axis] != 1:
                raise ValueError(f"{name}: axis {axis!r} has length {lengths[axis]}, streaming takes one plane")
        check_pixel_type(array.dtype, name)
        self.name, self.axes = name, axes
        self.height, self.width, self.channels = lengths["y"], lengths["x"], lengths.get("c", 1)
        self.array = Chunks(array)
        self.itemsize, self.overhead = array.dtype.itemsize, self.array.held
        self.per_reader, self.unit = self.array.held // 2, array.chunks[axes.index("y")]

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels:
        """A window (h, w, c)."""
        cut = {"y": slice(top, bottom), "x": slice(left, right), "c": slice(None)}
        window = self.array[tuple(cut.get(axis, 0) for axis in self.axes)]
        kept = [axis for axis in self.axes if axis in cut]
        if "c" not in kept:
            window, kept = window[None], ["c", *kept]
        return window.transpose([kept.index(axis) for axis in ("y", "x", "c")])
