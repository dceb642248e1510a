"""infsa explain: any file gives a picture or one line."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import infsa
from infsa.cli import explain
from tests.cli.test_cli import run
from tests.models.helpers import small


@pytest.fixture
def checkpoints(tmp_path):
    names = {}
    for attention in ("softmax", "infsa_linear"):
        names[attention] = str(infsa.models.save_weights(small(attention), tmp_path / attention))
    return names


def colours(width, height):
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], -1).astype(np.uint8))


def test_every_kind_of_file(monkeypatch, capsys, tmp_path, checkpoints):
    colours(40, 30).convert("L").save(tmp_path / "gray.png")
    colours(400, 300).resize((4000, 3000)).save(tmp_path / "large.jpg")
    colours(40, 30).convert("RGBA").save(tmp_path / "clear.png")
    whole = (tmp_path / "large.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jpg").write_text("no image")
    files = [str(tmp_path / name) for name in ("cut.jpg", "gray.png", "text.jpg", "large.jpg", "clear.png", "none.png")]
    models = [argument for path in checkpoints.values() for argument in ("-m", path)]
    out = tmp_path / "out"
    code, text, err = run(monkeypatch, capsys, "explain", *files, *models, "--out", str(out))
    assert code == 1
    assert err.splitlines()[0].startswith("infsa: ")
    assert [line.count(name) for line, name in zip(err.splitlines(), ("cut", "text", "none"), strict=True)] == [1, 1, 1]
    for name in ("gray.png", "large.jpg", "clear.png", "softmax", "infsa_linear", "class"):
        assert name in text
    for stem in ("gray", "large", "clear"):
        assert (out / f"{stem}-panel.png").exists()
        for model in checkpoints:
            assert np.load(out / f"{stem}-{model}.npy").sum() == pytest.approx(1, abs=1e-5)
    with Image.open(out / "large-softmax.png") as picture:
        assert picture.size == (4000, 3000)
    report = json.loads((out / "explain.json").read_text())
    assert len(report["images"]) == 6
    assert len(report["problems"]) == 3


def test_native_resolution(monkeypatch, capsys, tmp_path, checkpoints):
    colours(203, 101).save(tmp_path / "a.png")
    arguments = ["-m", checkpoints["infsa_linear"], "--resolution", "native", "--out", str(tmp_path / "out"), "--json"]
    code, out, err = run(monkeypatch, capsys, "explain", str(tmp_path / "a.png"), *arguments)
    assert (code, err) == (0, "")
    assert json.loads(out)["images"][0]["grid"] == [13, 25]


def test_files_of_one_name_keep_their_own_panels(monkeypatch, capsys, tmp_path, checkpoints):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        colours(20, 20).save(tmp_path / folder / "a.png")
    files = [str(tmp_path / folder / "a.png") for folder in ("x", "y")]
    code, _, _ = run(
        monkeypatch, capsys, "explain", *files, "-m", checkpoints["softmax"], "--out", str(tmp_path / "out")
    )
    assert code == 0
    assert len(list((tmp_path / "out").glob("a-*-panel.png"))) == 2


@pytest.mark.parametrize("attention", ["softmax", "infsa_linear"])
def test_a_resolution_that_does_not_fit_is_refused_with_one_that_does(
    attention, monkeypatch, capsys, tmp_path, checkpoints
):
    import re

    colours(32, 32).save(tmp_path / "a.png")
    words = ["explain", str(tmp_path / "a.png"), "-m", checkpoints[attention], "--out", str(tmp_path / "out")]
    monkeypatch.setattr("infsa.evaluate.maps.available", lambda: 3 * 10**5)
    code, _, err = run(monkeypatch, capsys, *words, "--resolution", "256")
    assert (code, err.count("\n")) == (1, 1)
    largest = int(re.search(r"a resolution of (\d+) fits", err)[1])
    assert 8 <= largest < 256
    assert run(monkeypatch, capsys, *words, "--resolution", str(largest))[0] == 0
    assert run(monkeypatch, capsys, *words, "--resolution", str(largest + 16))[0] == 1


def files_run(call):
    """The files of the package in which a function ran during a call."""
    home, seen = Path(infsa.__file__).parent, set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(str(home)):
            seen.add(Path(code.co_filename).relative_to(home).as_posix())

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize(("attention", "most"), [("softmax", 20), ("infsa_pure", 27), ("infsa_linear", 30)])
def test_the_way_of_an_image_is_short_and_runs_the_model_once(attention, most, tmp_path):
    """From the file to the logits, the map and the figure."""
    model = small(attention)
    passes = []
    model.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    colours(40, 30).save(tmp_path / "a.png")
    options = {"method": "last", "layer": -1, "head": None, "side": "model", "seed": 0}
    words = (tmp_path / "a.png", "a", {"mine": model}, options, tmp_path, [])
    explain._explain_file(*words)  # everything is imported
    passes.clear()
    files = files_run(lambda: explain._explain_file(*words))
    assert (tmp_path / "a-panel.png").exists()
    assert len(passes) == 1
    assert len(files) <= most, sorted(files)
