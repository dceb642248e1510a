"""The development kit of ImageNet 2012: which class each validation image has.

Its class numbers 1 to 1000 are in an order of their own, not that of the sorted WordNet ids; ``meta.mat`` tells which
id a number stands for.
"""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

NAME = "ILSVRC2012_devkit_t12"
META, TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"


class Devkit:
    """The development kit, unpacked or as the .tar.gz that is published."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wnids = _leaf_classes(self._content(META), path)  # devkit number → WordNet id

    @classmethod
    def find(cls, folders: Sequence[Path]) -> "Devkit | None":
        """The kit in one of the folders, if it is there."""
        paths = (folder / name for folder in folders for name in (NAME, f"{NAME}.tar.gz"))
        return next((cls(path) for path in paths if path.exists()), None)

    def validation(self) -> dict[str, str]:
        """The WordNet id of every validation image, by the stem of its file."""
        found = {}
        for place, word in enumerate(self._content(TRUTH).decode("ascii").split(), start=1):
            if not (word.isdigit() and int(word) in self.wnids):
                raise ValueError(f"{self.path}: {TRUTH}, line {place}: no class {word!r} in {META}")
            found[f"ILSVRC2012_val_{place:08d}"] = self.wnids[int(word)]
        return found

    def _content(self, name: str) -> bytes:
        try:
            if self.path.is_dir():
                return (self.path / "data" / name).read_bytes()
            with tarfile.open(self.path, "r:gz") as tar:
                stream = tar.extractfile(f"{NAME}/data/{name}")
                return stream.read() if stream else b""
        except (OSError, KeyError, tarfile.TarError, EOFError) as error:
            raise ValueError(f"{self.path} is not a complete devkit: data/{name} cannot be read") from error


def _leaf_classes(content: bytes, path: Path) -> dict[int, str]:
    """Number and WordNet id of the classes that images have; ``meta.mat`` also lists their ancestors."""
    from scipy.io import loadmat

    try:
        synsets = loadmat(io.BytesIO(content), squeeze_me=True)["synsets"]
        return {int(entry["ILSVRC2012_ID"]): str(entry["WNID"]) for entry in synsets if int(entry["num_children"]) == 0}
    except (ValueError, KeyError, TypeError, IndexError, NotImplementedError) as error:
        raise ValueError(f"{path}: {META} does not hold the classes of ImageNet 2012") from error
