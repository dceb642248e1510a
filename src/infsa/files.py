"""Files that are written whole or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(f"{path} must be a folder, and it is or lies in a file") from error


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Have ``write`` make a file aside, then put it in place: a crash leaves the old file or the new one,
    never a part.
    """
    make_folder(path.parent)
    aside = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        mode = usual_mode(aside)
        write(aside)
        aside.chmod(mode)  # safetensors writes files that only their owner reads
        flush(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    flush(path.parent)  # the rename itself


def usual_mode(path: Path) -> int:
    """The permissions of new files under the process's umask, found by making an empty one at ``path``."""
    path.touch()
    return path.stat().st_mode & 0o777


def flush(path: Path) -> None:
    """Have a file or the entries of a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: str | Path) -> Any:
    """Plain data from a file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error


def write_json(content: Any, path: str | Path) -> Path:
    """Write plain data as JSON and return the file's path; numbers that do not exist (nan) are refused."""
    path, text = Path(path), json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda aside: aside.write_text(text, encoding="utf-8"))
    return path
