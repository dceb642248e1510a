"""Small files for the readers to read."""

import io
import tarfile

import numpy as np
from PIL import Image


def encoded(image, kind="PNG", **options):
    """The bytes of an image file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def write_image(path, colour="red", size=(8, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def write_photos(root, colours, count, splits=("train", "val")):
    """``count`` images of every class in each split, under ``root``."""
    for split in splits:
        for label, colour in colours.items():
            for index in range(count):
                write_image(root / split / label / f"{index}.png", colour, (40, 34))


def write_shard(path, images=6, damaged=(), prefix=""):
    """A miniature npz shard of three classes; the last two images are for validation."""
    files = [encoded(Image.new("L" if i == 1 else "RGB", (64, 64), i), "JPEG") for i in range(images)]
    files = [b"damaged" if i in damaged else file for i, file in enumerate(files)]
    np.savez(
        path,
        jpeg=np.frombuffer(b"".join(files), np.uint8),
        offset=np.cumsum([0, *map(len, files)]),
        label=np.arange(images, dtype=np.int16) % 3,
        box=np.array([[0, 10, 63, 58]] * images, np.int16),
        is_val=np.arange(images) >= images - 2,
        wnid=np.array([f"{prefix}n{label}" for label in range(3)]),
        name=np.array(["fish", "newt", "spider"]),
    )
    return path


def write_tar(path, files):
    """An uncompressed tar of (name, bytes) pairs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(files))
    return path


def tar_bytes(files, mode="w"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def plain_image(value, size=(8, 6)):
    """The bytes of a PNG whose red is ``value``, so that a test can tell which image it has got."""
    return encoded(Image.new("RGB", size, (value, 0, 0)))


def red(sample):
    return sample.image.getpixel((0, 0))[0]


def one_line(message):
    """A pattern that accepts the message inside a single line."""
    return rf"^[^\n]*{message}[^\n]*$"
