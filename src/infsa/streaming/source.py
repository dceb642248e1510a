"""Images that are read window by window, and what their pixels become for a model."""

import hashlib
import math
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm.data
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models import InfViT

Pixels = NDArray[Any]  # (h, w, c), uint8, uint16, or floating in [0, 1]
SAMPLES = 64  # parts of an image that tell it from others of its size


class Source:
    """An image of any size. A reader for another format subclasses this and implements ``read``.

    ``read`` may be called from several threads unless ``sequential`` is set; a window that cannot be read raises
    OSError or ValueError.
    """

    name: str
    height: int
    width: int
    channels: int
    itemsize: int  # bytes per value
    model_input = False  # windows are (c, h, w) tensors that the model takes as they are
    bands = False  # reading a band of the whole width costs as much as reading a tile of it
    sequential = False  # bands can only be read from the top down
    opacity = True  # a channel beyond the colours is the opacity
    premultiplied = False  # the colours are multiplied with the opacity already
    overhead = 0  # bytes that the reader itself holds, beside the window
    per_reader = 0  # bytes that each thread beyond two adds to it
    unit = 1  # rows that decode together
    full_size: tuple[int, int] | None = None  # height and width of level 0, where this is another level
    pixel_size: tuple[float, float] | None = None  # height and width of a pixel of level 0 in µm, if the file says so

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels | Tensor:
        """A window: (h, w, c) pixels of uint8, uint16 or floating in [0, 1], or (c, h, w) model input."""
        raise NotImplementedError

    def restart(self) -> None:
        """Called before each pass over the image."""

    def describe(self) -> str:
        """What tells this image from another: its kind and size, and a sample of its file or its pixels."""
        path = Path(self.name)
        parts = _file_sample(path) if path.is_file() else self._sample()
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(part)
        return f"{type(self).__name__} {self.height}x{self.width}x{self.channels} {digest.hexdigest()}"

    def _sample(self) -> Iterator[bytes]:
        """Small windows on a lattice, from the top down."""
        side = math.isqrt(SAMPLES)
        tops, lefts = ({i * (length - 1) // (side - 1) for i in range(side)} for length in (self.height, self.width))
        for top in sorted(tops):
            for left in sorted(lefts):
                try:
                    window = self.read(top, left, min(top + 8, self.height), min(left + 8, self.width))
                except (OSError, ValueError):
                    continue
                values = window.detach().cpu().double().numpy() if isinstance(window, Tensor) else window
                yield np.ascontiguousarray(values).tobytes()

    def check(self) -> None:
        """Refuse an image without pixels."""
        if self.height < 1 or self.width < 1 or self.channels < 1:
            raise ValueError(f"{self.name} has no pixels: {self.height} × {self.width}, {self.channels} channels")


def _file_sample(path: Path) -> Iterator[bytes]:
    """The length of a file, and pieces of it."""
    length = path.stat().st_size
    yield str(length).encode()
    with path.open("rb") as file:
        for index in range(SAMPLES):
            file.seek(index * length // SAMPLES)
            yield file.read(4096)


class TensorSource(Source):
    """Model input (C, H, W) or (1, C, H, W): floating tensors and arrays."""

    model_input = True

    def __init__(self, tensor: Any, name: str = "the tensor") -> None:
        tensor = tensor[0] if tensor.ndim == 4 and tensor.shape[0] == 1 else tensor
        if tensor.ndim != 3:
            raise ValueError(f"{name} must be model input (C, H, W), got shape {tuple(tensor.shape)}")
        self.name, self.tensor = name, tensor
        self.channels, self.height, self.width = (int(length) for length in tensor.shape)
        self.itemsize = tensor.dtype.itemsize

    def read(self, top: int, left: int, bottom: int, right: int) -> Tensor:
        """A window (c, h, w)."""
        window = self.tensor[:, top:bottom, left:right]
        if isinstance(window, Tensor):
            return window
        copy = torch.from_numpy(np.array(window, dtype=window.dtype.newbyteorder("=")))
        forget_pages(self.tensor)
        return copy


class ArraySource(Source):
    """Pixels (H, W, C) or (H, W) of uint8 or uint16, in memory or memory-mapped."""

    def __init__(self, array: Any, name: str = "the array") -> None:
        if array.ndim not in (2, 3):
            raise ValueError(f"{name} must be pixels (H, W, C) or (H, W), got shape {tuple(array.shape)}")
        check_pixel_type(array.dtype, name)
        self.name, self.array, self.itemsize = name, array, array.dtype.itemsize
        self.height, self.width = int(array.shape[0]), int(array.shape[1])
        self.channels = int(array.shape[2]) if array.ndim == 3 else 1
        if isinstance(array, np.memmap):
            self.overhead = 64 << 20  # pages that come along with those that are read

    def read(self, top: int, left: int, bottom: int, right: int) -> Pixels:
        """A window (h, w, c), copied."""
        window = np.array(self.array[top:bottom, left:right])
        forget_pages(self.array)
        return window.reshape(*window.shape[:2], self.channels)


def forget_pages(array: Any) -> None:
    """Give back the pages of a mapped file that reading has made resident; the file keeps what they hold."""
    while isinstance(array, np.ndarray):
        mapped = getattr(array, "_mmap", None)
        if isinstance(mapped, mmap.mmap) and getattr(array, "mode", "c") != "c" and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)
            return
        array = array.base


def check_pixel_type(dtype: Any, name: str) -> None:
    """Refuse pixels that are not 8 or 16 bits without a sign."""
    dtype = np.dtype(dtype)
    if dtype.kind != "u" or dtype.itemsize > 2:
        raise ValueError(f"{name}: pixels must be uint8 or uint16, got {dtype}")


def from_array(array: Any, name: str = "the array") -> Source:
    """Floating arrays are model input (C, H, W); unsigned ones are pixels (H, W, C)."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise ValueError(f"{name}: model input must be float16, float32 or float64, got {array.dtype}")
    return TensorSource(array, name) if array.dtype.kind == "f" else ArraySource(array, name)


class Colours:
    """Pixels to model input, (h, w, c) -> (1, C, h, w): scaled to [0, 1], laid on white, normalised.

    The mean and standard deviation are the model's. Grey pixels serve as three equal colours; a further channel is
    the opacity where the source has one. What fits neither is refused before anything is read.
    """

    def __init__(self, model: InfViT, source: Source | None = None) -> None:
        config = timm.data.resolve_model_data_config(model)
        weight = model.patch_embed.proj.weight
        self.wanted, self.dtype, self.device = model.in_chans, weight.dtype, weight.device
        self.exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.mean, self.std = (tuple(float(value) for value in config[name]) for name in ("mean", "std"))
        self.premultiplied = source is not None and source.premultiplied
        self._moved: dict[torch.device, Tensor] = {}
        if source is not None:
            self._check(source)

    def _check(self, source: Source) -> None:
        colours = {self.wanted, 1} if self.wanted == 3 and not source.model_input else {self.wanted}
        accepted = colours | {n + 1 for n in colours if source.opacity and not source.model_input}
        if source.channels not in accepted:
            raise ValueError(f"{source.name} has {source.channels} channels{self._hint(source)}")
        if not source.model_input and len(self.mean) not in (1, self.wanted):
            raise ValueError(
                f"the model takes {self.wanted} channels and has means of {len(self.mean)}: "
                "set one per channel with infsa.models.describe_data(model, mean=..., std=...), "
                "or pass normalised model input (C, H, W)"
            )

    def _hint(self, source: Source) -> str:
        known = "" if source.opacity else ", none of them opacity"
        first = tuple(range(self.wanted))
        choice = f": choose with bands={first}, counted from 0" if source.channels > self.wanted else ""
        floating = "; floating numbers are model input (C, H, W)" if source.model_input else ""
        return f"{known}, the model takes {self.wanted}{choice}{floating}"

    def __call__(self, pixels: Pixels | Tensor) -> Tensor:
        """Model input on the model's device and in its type."""
        raw = self.raw(pixels).to(self.device)
        return raw.unsqueeze(0).to(self.dtype) if isinstance(pixels, Tensor) else self.normalised(raw)

    def raw(self, pixels: Pixels | Tensor) -> Tensor:
        """A window as it was read, as a tensor: model input (c, h, w), or pixels (h, w, c) in the type of the file.

        An opacity that is full everywhere is left out.
        """
        if isinstance(pixels, Tensor):
            return pixels
        if self.has_opacity(pixels.shape[2]) and is_opaque(pixels):
            pixels = pixels[..., :-1]
        native = pixels.dtype.newbyteorder("=")
        usable = pixels.flags.writeable and pixels.dtype == native and min(pixels.strides, default=1) >= 0
        return torch.from_numpy(pixels if usable else np.array(pixels, native))

    def normalised(self, raw: Tensor) -> Tensor:
        """Pixels (h, w, c) to model input (1, C, h, w), where they are."""
        channels = raw.shape[2]
        values = raw.permute(2, 0, 1).to(self.exact, memory_format=torch.contiguous_format, copy=True)
        values /= full_value(raw.dtype)
        if self.has_opacity(channels):
            opacity, values = values[-1:], values[:-1]
            values = (values if self.premultiplied else values.mul_(opacity)) + (1 - opacity)
        if values.shape[0] == 1 < self.wanted:
            values = values.expand(self.wanted, -1, -1).contiguous()
        mean, std = self._on(values.device)
        return values.sub_(mean).div_(std).to(self.dtype).unsqueeze(0)

    def _on(self, device: torch.device) -> Tensor:
        """Mean and deviation (2, C, 1, 1) on a device, copied there once."""
        if device not in self._moved:
            values = torch.tensor([self.mean, self.std], dtype=self.exact, device=device)
            self._moved[device] = values[:, :, None, None]
        return self._moved[device]

    def has_opacity(self, channels: int) -> bool:
        """Whether the last of so many channels is the opacity."""
        return channels in (2, self.wanted + 1) and channels != self.wanted


def is_opaque(pixels: Pixels) -> bool:
    """Whether the last channel is full everywhere."""
    full = np.iinfo(pixels.dtype).max if pixels.dtype.kind == "u" else 1
    return bool((pixels[..., -1] == full).all())


def full_value(dtype: torch.dtype) -> int:
    """The number that stands for white in pixels of a type."""
    return 1 if dtype.is_floating_point else int(torch.iinfo(dtype).max)


def open_source(
    source: Any,
    level: int = 0,
    *,
    series: int | None = None,
    page: int | None = None,
    bands: Sequence[int] | None = None,
) -> Source:
    """A source from an array, a tensor or a file.

    Args:
        source: a floating tensor or array (C, H, W), which is model input; uint8 or uint16 pixels (H, W[, C]); or
            the path of a ``.npy``, JPEG, PNG, WebP, GIF, TIFF, whole-slide, Zarr or OME-Zarr image. A
            :class:`Source` stays what it is.
        level: of a pyramid; 0 is the largest.
        series: of a TIFF with several images; the first if not given, which is said.
        page: of the series, or of the whole TIFF if no series is given; or a frame of a GIF or WebP. The first if not
            given, which is said where there are several.
        bands: the channels to take, counted from 0; all if not given. None of them is then opacity.

    Example:
        >>> source = open_source("photo.jpg")
        >>> source.height, source.width
        (96, 128)
    """
    for name, number in (("level", level), ("series", series or 0), ("page", page or 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"{name} must be 0 or more, got {number!r}")
    if isinstance(source, str | Path):
        from .readers import open_file

        opened = open_file(Path(source), level, series, page)
    elif series is not None or page is not None:
        given = f"series={series}" if page is None else f"page={page}"
        raise ValueError(f"{given} needs a file of several images, got {type(source).__name__}")
    elif type(source).__module__.partition(".")[0] == "zarr":
        from .zarr_reader import open_zarr

        opened = open_zarr(source, "the Zarr array", level)
    else:
        if level:
            raise ValueError(f"level={level} needs a file with a pyramid, got {type(source).__name__}")
        opened = _in_memory(source)
    opened.check()
    if bands is None:
        return opened
    from .bands import ChosenBands

    return ChosenBands(opened, bands)


def _in_memory(source: Any) -> Source:
    if isinstance(source, Source):
        return source
    if isinstance(source, Tensor):
        if not source.is_floating_point():
            raise TypeError(f"a tensor is floating model input (C, H, W), got {source.dtype}; pixels are numpy arrays")
        return TensorSource(source)
    if isinstance(source, np.ndarray):
        return from_array(source)
    raise TypeError(f"a source is an array, a tensor or the path of an image, got {type(source).__name__}")
