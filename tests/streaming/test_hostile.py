"""Scene codes and state files from strangers: a file that says anything else than it may is refused in one line."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import infsa
from infsa.streaming.scene import SceneCode

from ..traps import traps  # noqa: F401
from .helpers import picture, small
from .test_state import Stopped, stop_after


def forge(path, **changes):
    """The same file with other facts; ``text`` replaces them all."""
    with safe_open(path, framework="pt") as handle:
        facts = json.loads(handle.metadata()["stream"])
    save_file(load_file(path), path, {"stream": changes.get("text") or json.dumps(facts | changes)})


@pytest.mark.parametrize(
    "changes",
    [{"text": "[" * 100_000}, {"text": "[]"}, {"text": "{"}, {"size": 3}, {"size": ["a", "b"]}, {"size": [1, -1]},
     {"size": None}, {"file": "x"}],
)  # fmt: skip
def test_scene_codes(changes, tmp_path, traps):  # noqa: F811
    path = infsa.stream(small(), picture(), tile=32).code.save(tmp_path / "code.safetensors")
    SceneCode.load(path)
    forge(path, **changes)
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        SceneCode.load(path)


def test_a_scene_code_with_a_gap(tmp_path):
    tensors = infsa.stream(small(), picture(), tile=32).code.tensors()
    del tensors["absolute.0"]
    save_file(tensors, tmp_path / "code.safetensors", {"stream": '{"size": [48, 72]}'})
    with pytest.raises(ValueError, match=r"absolute\.0"):
        SceneCode.load(tmp_path / "code.safetensors")


@pytest.mark.parametrize(
    "changes",
    [{"step": -1}, {"step": "x"}, {"done": 10**30}, {"skipped": 3}, {"skipped": [[10**6, "x"]]}, {"skipped": [[0]]},
     {"text": "3"}, {"text": '{"fingerprint": "x"}'}, {"file": "x"}],
)  # fmt: skip
def test_state_files(changes, tmp_path, traps):  # noqa: F811
    model, x, path = small(torch.float32), picture(dtype=torch.float32), tmp_path / "job.state"
    with pytest.raises(Stopped):
        infsa.stream(model, x, tile=32, state=path, save_every=0, progress=stop_after(5))
    forge(path, **changes)
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        infsa.stream(model, x, tile=32, state=path)
