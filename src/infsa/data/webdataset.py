"""WebDataset shards, indexed once and then read in any order."""

import itertools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .decode import MAX_PIXELS
from .paths import ALIASES, split_names
from .skipping import Reading, SkipLog, numbered
from .tars import Member, TarImages, members

IMAGES = ("jpg", "jpeg", "png", "webp")
LABELS = ("cls", "json")


class WebShards(TarImages):
    """WebDataset shards: files that share a name up to its first dot make a sample, such as 0001.jpg and 0001.cls.

    The class is the text of the ``.cls`` file, or else a field of the ``.json`` file: a whole number, or a word. Words
    are numbered in sorted order. A validation split takes its classes from the training shards beside it. A sample
    without an image or without a label is left out and noted in ``skipped``. The shards must be uncompressed.

    Args:
        pattern: a folder of .tar files, one .tar file, or names with braces: ``train-{0000..0012}.tar``.
        split: shards whose name, or folder below the pattern's common one, says so: ``train-0001.tar``,
            ``val/0001.tar``. Where no shard names a split, all are for training. Without a split, all are read.
        field: of the .json files.
        max_pixels: see :func:`decode`.
        skipped: the log of unreadable images; a new one if not given.
    """

    def __init__(
        self,
        pattern: str | Path,
        split: str | None = None,
        field: str = "label",
        max_pixels: int = MAX_PIXELS,
        skipped: SkipLog | None = None,
    ) -> None:
        skipped = SkipLog() if skipped is None else skipped
        origin = str(pattern) if split is None else f"the split {split!r} of {pattern}"
        tars = find_shards(str(pattern))
        chosen = tars if split is None else shards_of(tars, split, str(pattern))
        found = _complete(chosen, field, skipped)
        if not found:
            labels = f"NAME.cls or {field!r} in NAME.json"
            raise ValueError(f"no complete sample in {origin}; looked for NAME.{'/'.join(IMAGES)} with {labels}")
        texts = [sample.label for sample in found]
        named = texts
        if split not in (None, "train") and (training := _marked(tars, "train")):
            named = [sample.label for sample in _complete(training, field, SkipLog())]
        classes = _classes(named)
        numbers = numbered(texts, classes, origin)
        which, images = [sample.tar for sample in found], [sample.image for sample in found]
        reading: Reading = {"max_pixels": max_pixels, "skipped": skipped}
        super().__init__(chosen, which, images, origin, numbers, classes, split in (None, "train"), **reading)


def _classes(texts: list[str]) -> list[str]:
    """The sorted words, or every number up to the largest."""
    if all(text.isascii() and text.isdigit() for text in texts):
        return [str(label) for label in range(max(map(int, texts), default=-1) + 1)]
    return sorted(set(texts))


class _Found(NamedTuple):
    tar: int
    image: Member
    label: str


def _complete(tars: list[Path], field: str, skipped: SkipLog) -> list[_Found]:
    """The samples that have an image and a label; the others are noted."""
    found = []
    for number, tar in enumerate(tars):
        for key, files in _samples(tar).items():
            image = next((files[kind] for kind in IMAGES if kind in files), None)
            label = _label(tar, files, field)
            if image is not None and label is not None:
                found.append(_Found(number, image, label))
            elif image is not None:
                skipped.add(f"{tar.name}/{image.name}", f"no label: neither {key}.cls nor {field!r} in {key}.json")
            elif label is not None:
                skipped.add(f"{tar.name}/{key}", f"no image: none of {', '.join(f'{key}.{kind}' for kind in IMAGES)}")
    return found


def _samples(tar: Path) -> dict[str, dict[str, Member]]:
    """The files of a shard by sample and by what follows the first dot of their name."""
    samples: dict[str, dict[str, Member]] = {}
    for member in members(tar, wanted=lambda name: _parts(name)[1] in LABELS):
        key, kind = _parts(member.name)
        files = samples.setdefault(key, {})
        if kind in files:
            raise ValueError(f"{tar}: {member.name} is there twice")
        files[kind] = member
    return samples


def _parts(name: str) -> tuple[str, str]:
    folder, last = os.path.split(name)
    stem, _, kind = last.partition(".")
    return os.path.join(folder, stem), kind.lower()


def _label(tar: Path, files: dict[str, Member], field: str) -> str | None:
    member = files.get("cls") or files.get("json")
    if member is None or member.content is None:
        return None
    try:
        value: Any = member.content.decode()
        if member is not files.get("cls"):
            value = json.loads(value)
            value = value.get(field) if isinstance(value, dict) else None
    except ValueError as error:
        raise ValueError(f"{tar}: {member.name} is neither text nor JSON: {error}") from error
    if value is None or isinstance(value, bool | float | list | dict):
        return None
    text = str(value).strip()
    return str(int(text)) if text.isascii() and text.isdigit() else text or None


def find_shards(pattern: str) -> list[Path]:
    """The tars that a pattern names: a folder with all below it, one file, or names with braces."""
    if os.path.isdir(pattern):
        found = sorted(Path(pattern).rglob("*.tar"))
        if not found:
            raise ValueError(f"no .tar files in {pattern}")
        return found
    paths = [Path(name) for name in expand_braces(pattern)]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FileNotFoundError(f"no file at {missing[0]}{more}; a folder, a .tar file or a pattern is accepted")
    return paths


def expand_braces(pattern: str) -> list[str]:
    """The names that a pattern with ``{first..last}`` or ``{this,that}`` stands for."""
    parts = re.split(r"\{([^{}]*)\}", pattern)  # text and what stands in braces, in turn
    if any(brace in text for text in parts[::2] for brace in "{}"):
        raise ValueError(f"braces must be closed and not nested, got {pattern!r}")
    options = [_options(part) if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*options)]


def _options(braced: str) -> list[str]:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braced)
    if numbers is None:
        return braced.split(",")
    first, last = numbers.groups()
    if int(first) > int(last):
        raise ValueError(f"the numbers must rise, got {{{braced}}}")
    return [str(value).zfill(len(first)) for value in range(int(first), int(last) + 1)]


def shards_of(tars: list[Path], split: str, pattern: str) -> list[Path]:
    """The shards of a split, told by the words in their names."""
    found = _marked(tars, split)
    if not found and split == "train" and not _marked(tars, "val"):
        return tars
    if not found:
        words = " or ".join(split_names(split))
        raise ValueError(f"no shard of {pattern} is for the split {split!r}: a name must hold {words}")
    return found


def _marked(tars: Iterable[Path], split: str) -> list[Path]:
    tars = list(tars)
    common = os.path.commonpath([tar.parent for tar in tars])
    words = [set(re.findall("[a-z]+", os.path.relpath(tar, common).lower())) for tar in tars]
    for name in ALIASES.get(split, (split,)):
        found = [tar for tar, own in zip(tars, words, strict=True) if name in own]
        if found:
            return found
    return []
