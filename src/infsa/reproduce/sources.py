"""Where measurements come from: committed result files, and computations kept by their configuration."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..bench.results import read_results
from ..files import read_json, write_json
from ..version import __version__
from .claims import Unavailable

MADE_BY = {
    "bench-h200.json": "a CUDA GPU: infsa bench, by the command in benchmarks/table1.py",
    "attention-quality.json": "trained models and a data set with boxes: infsa quality",
    "alignment.json": "trained models: infsa align",
    "ablation.json": "a GPU and a data set: infsa ablate",
    "tiny-imagenet-a.json": "a GPU and Tiny-ImageNet: infsa train",
    "tiny-imagenet-b.json": "a GPU and Tiny-ImageNet: infsa train",
}

PLACES = (  # of the committed result files: in the installed package, in a checkout
    Path(__file__).with_name("results"),
    Path(__file__).parents[3] / "benchmarks" / "results",
)


def committed() -> Path:
    """The folder of the committed result files; it does not depend on the working directory."""
    return next((place for place in PLACES if holds_results(place)), PLACES[0])


def holds_results(folder: Path) -> bool:
    """Whether a folder holds any of the result files that claims are judged by.

    Example:
        >>> holds_results(Path("docs"))
        False
    """
    return any((folder / name).is_file() for name in MADE_BY)


@functools.cache
def paper() -> dict[str, Any]:
    """The paper's numbers, by table and figure.

    Example:
        >>> paper()["dashboard"]["speed_up"]
        13.4
    """
    return read_json(Path(__file__).with_name("paper.json"))


class Sources:
    """Result files of one folder, and a folder of computed numbers."""

    bench_name = "bench-h200.json"

    def __init__(self, results: str | Path, cache: str | Path, bench: str | Path | None = None) -> None:
        self.results, self.cache = Path(results), Path(cache)
        self.read: set[str] = set()
        self._open: dict[str, dict[str, Any]] = {}
        if bench is not None:  # a run of this machine takes the place of the committed one
            self.bench_name = Path(bench).name
            self._open[self.bench_name] = read_results(bench)

    def file(self, name: str) -> dict[str, Any]:
        """A result file's content."""
        if name not in self._open:
            path = self.results / name
            if not path.exists():
                raise Unavailable(f"needs {name}, from {MADE_BY[name]}")
            try:
                self._open[name] = read_json(path)
            except ValueError as error:
                raise ValueError(f"{path} is damaged: {error}") from error
        self.read.add(name)
        return self._open[name]

    def bench(self) -> dict[str, Any]:
        """The benchmark's result file: the committed one, or the one given."""
        return self.file(self.bench_name)

    def computed(self, name: str, config: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Numbers computed once for each configuration and version, then read from the cache.

        A damaged file is made again.
        """
        config = {"name": name, "infsa": __version__, "torch": torch.__version__, **config}
        key = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
        path = self.cache / f"{name}-{key}.json"
        try:
            kept = read_json(path)
            if kept["config"] == config:
                return kept["numbers"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass
        numbers = compute()
        write_json({"config": config, "numbers": numbers}, path)
        return numbers
