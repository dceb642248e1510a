"""The images that files, folders and patterns stand for."""

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .paths import is_image


@dataclass
class Listing:
    """What was found: files in order, each once, and what stands for none with the reason."""

    files: list[Path] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # what was asked for, and why it is not there
    ignored: int = 0  # other files in folders


def list_images(sources: Iterable[str | Path]) -> Listing:
    """Files as they are named, the images in folders and the folders inside them, and what patterns match.

    Hidden files and folders are passed over. A file that is named is listed whatever its ending is.
    """
    found = Listing()
    seen: dict[Path, None] = {}
    for source in sources:
        path, text = Path(source), str(source)
        if path.exists() or path.is_symlink():
            matches = [path]
        elif glob.has_magic(text):
            matches = [Path(match) for match in sorted(glob.glob(text, recursive=True))]
            if not matches:
                found.missing[text] = "nothing matches this pattern"
        else:
            matches, found.missing[text] = [], "no such file"
        for match in matches:
            if match.is_dir():
                seen |= dict.fromkeys(_inside(match, found))
            elif match.is_file():
                seen[match] = None
            else:
                found.missing[str(match)] = "a broken link" if match.is_symlink() else "neither a file nor a folder"
    found.files = list(seen)
    return found


def _inside(folder: Path, found: Listing) -> list[Path]:
    """The images of a folder and of those inside it, in text order."""
    images = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            if is_image(name) and (Path(place) / name).is_file():
                images.append(Path(place) / name)
            else:
                found.ignored += 1
    if not images:
        found.missing[str(folder)] = "no images in this folder"
    return images
