"""Every example in the docstring of a public name runs and shows what it says."""

import doctest
import importlib
import inspect
import pkgutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import infsa

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_objects():
    """Every class and function that some package of infsa names in ``__all__``, by its full name."""
    packages = [infsa.__name__, *(m.name for m in pkgutil.walk_packages(infsa.__path__, "infsa.") if m.ispkg)]
    modules = [importlib.import_module(name) for name in packages]
    values = [getattr(module, name) for module in modules for name in getattr(module, "__all__", ())]
    return {f"{v.__module__}.{v.__qualname__}": v for v in values if inspect.isclass(v) or inspect.isfunction(v)}


def examples():
    """The examples of all public objects and of their methods, by the name they stand under, with their modules."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [(test, v.__module__) for name, v in public_objects().items() for test in finder.find(v, name)]
    return {test.name: (test, module) for test, module in found if test.examples}


EXAMPLES = examples()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What examples may read: a photograph, and a folder of photographs with a subfolder per class."""
    place = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    for name in ("photo.jpg", "photos/cat/1.jpg", "photos/cat/2.jpg", "photos/dog/1.jpg", "photos/dog/2.jpg"):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (96, 128, 3), np.uint8)).save(path)
    return place


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_shows_what_it_says(name, folder, monkeypatch):
    """In a namespace of its module, infsa, torch, timm, a small model and images for it."""
    monkeypatch.chdir(folder)
    test, module = EXAMPLES[name]
    model = infsa.create_model("infvit_linear_tiny", num_classes=10).eval()
    test.globs = vars(sys.modules[module]) | {"infsa": infsa, "torch": torch, "timm": importlib.import_module("timm")}
    test.globs |= {"model": model, "images": torch.rand(2, 3, 64, 64)}
    shown = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, out=shown.append)
    assert not runner.failures, "".join(shown)
