"""What a cohort consists of: files, folders, patterns, CSV tables of paths and ids, WebDataset shards."""

import csv
import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..data.paths import is_image
from ..data.tars import members
from ..data.webdataset import expand_braces
from ..streaming.readers import SLIDES, TIFFS

Key = tuple[bytes, str, int, str]  # the exact path, the name and the place inside a tar, the id


@dataclass(frozen=True)
class Item:
    """One image to be: a file, or a file inside a tar."""

    id: str
    path: str  # as it was given
    place: str  # absolute, for reading
    member: str = ""  # its name inside a tar
    offset: int = -1  # where it starts there
    length: int = 0  # and how many bytes it has
    reason: str = ""  # why there is nothing to read

    @property
    def key(self) -> Key:
        """What tells this item from all others, between runs too."""
        return os.fsencode(self.path), self.member, self.offset, self.id


@dataclass
class Items:
    """All items in the order in which they were named, each once."""

    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what stands for no image
    repeated: int = 0  # named more than once
    ignored: int = 0  # other files in folders


def list_items(sources: Iterable[str | Path]) -> Items:
    """The images that files, folders, patterns, CSV tables and shards stand for.

    A file that is named is an item whatever it is called, and also if it is missing: its row says why. In folders,
    files that are called like images count; hidden files and linked folders do not. The same directory entry counts
    once, however it is spelled; a link is an entry of its own.
    """
    found, seen, folders = Items(), set(), {}
    for source in sources:
        for item in _expanded(os.fspath(source), found):
            parent, name = os.path.split(item.place)
            if parent not in folders:
                folders[parent] = parent if "\0" in parent else os.path.realpath(parent)
            entry = (folders[parent], name, item.member, item.offset, item.id if item.id != item.path else "")
            if entry in seen:
                found.repeated += 1
            else:
                seen.add(entry)
                found.items.append(item)
    return found


def _expanded(text: str, found: Items) -> Iterator[Item]:
    """The items that one source stands for."""
    lower = text.lower()
    if os.path.isdir(text):
        yield from _folder(text, found)
    elif lower.endswith(".csv"):
        yield from _table(text, found)
    elif os.path.lexists(text):
        yield from _shard(text) if lower.endswith(".tar") else (_file(text),)
    elif lower.endswith(".tar") and "{" in text:
        for name in expand_braces(text):
            yield from _shard(name)
    elif glob.has_magic(text):
        matches = sorted(glob.glob(text, recursive=True))
        if not matches:
            found.notes.append(f"{text}: nothing matches this pattern")
        for match in matches:
            yield from _expanded(match, found)
    else:
        yield _file(text)


def _file(path: str, name: str = "") -> Item:
    return Item(name or path, path, os.path.abspath(path))


def _folder(folder: str, found: Items) -> Iterator[Item]:
    """The images of a folder and of those inside it, in text order; its shards if there are no images."""
    images, tars = [], []
    refused: list[OSError] = []
    for place, folders, names in os.walk(folder, onerror=refused.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.startswith(".") or not (os.path.isfile(path) or os.path.islink(path)):
                continue
            if is_image(name) or os.path.splitext(name)[1].lower() in (*SLIDES, *TIFFS):
                images.append(path)
            elif name.lower().endswith(".tar"):
                tars.append(path)
            else:
                found.ignored += 1
    for error in refused:
        yield replace(_file(error.filename), reason=f"the folder cannot be listed: {error.strerror}")
    if images:
        found.ignored += len(tars)
        yield from map(_file, images)
    elif tars:
        for tar in tars:
            yield from _shard(tar)
    elif not refused:
        found.notes.append(f"{folder}: no images in this folder")


def _shard(path: str) -> Iterator[Item]:
    """The images inside an uncompressed tar; if it breaks off, one more item says where."""
    place = os.path.abspath(path)
    try:
        for member in members(path):
            name = os.path.basename(member.name)
            if is_image(name):
                sample = os.path.join(os.path.dirname(member.name), name.partition(".")[0])
                yield Item(sample, path, place, member.name, member.offset, member.size)
    except (OSError, ValueError) as error:
        yield Item(path, path, place, reason=" ".join(str(error).removeprefix(f"{path} ").split()))


def _table(path: str, found: Items) -> Iterator[Item]:
    """The rows of a CSV file with a column ``path``, from its own folder, and perhaps a column ``id``."""
    folder = os.path.dirname(path)
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = csv.DictReader(file)
            if "path" not in (rows.fieldnames or ()):
                raise ValueError(f"{path} must have a column 'path', got {list(rows.fieldnames or ())}")
            empty = True
            for row in rows:
                empty = False
                name, line = row.get("id") or "", rows.line_num
                if row["path"]:
                    yield _file(os.path.join(folder, row["path"]), name)
                else:
                    item = replace(_file(path, name or f"{path}:{line}"), offset=line)
                    yield replace(item, reason=f"no path in line {line}")
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from error
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}") from None
    if empty:
        found.notes.append(f"{path}: no rows in this table")
