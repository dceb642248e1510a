"""``infsa stream``: what it prints and writes, how it fails, and that a killed job goes on."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

import infsa
from infsa.data import Task, Tasks
from infsa.models import save_weights
from infsa.models.weights import describe_data
from infsa.streaming.scene import read_tensors

from .test_cli import run


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "image.npy"
    np.save(path, np.random.default_rng(0).integers(0, 255, (150, 203, 3), np.uint8))
    return path


def expected(image, **options):
    model = infsa.create_model("infvit_linear_tiny", pretrained=True, dynamic_img_pad=True).eval()
    return infsa.stream(model, image, **options)


def test_json(image, tmp_path, monkeypatch, capsys):
    code, out, err = run(
        monkeypatch, capsys, "stream", str(image), "--json", "--tile", "64",
        "--map", str(tmp_path / "map.tif"), "--code", str(tmp_path / "code.safetensors"),
    )  # fmt: skip
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["size"] == [203, 150]
    assert record["logits"] == pytest.approx(expected(image).logits[0].tolist(), rel=1e-4, abs=1e-4)
    assert len(record["predictions"]) == 5
    assert record["strategy"] == "spill"
    assert {file.name for file in tmp_path.iterdir()} == {"map.tif", "map.png", "code.safetensors"}


def test_a_model_without_classes_prints_no_empty_table(image, tmp_path, monkeypatch, capsys):
    save_weights(infsa.create_model("infvit_linear_tiny", depth=1, num_classes=0), tmp_path / "model")
    code, out, _ = run(monkeypatch, capsys, "stream", str(image), "--model", str(tmp_path / "model"))
    assert code == 0
    assert "probability" not in out
    assert "203 × 150" in out


def test_every_task_has_classes_of_its_own(image, tmp_path, monkeypatch, capsys):
    model = infsa.create_model("infvit_linear_tiny", depth=1, num_classes=5)
    tasks = Tasks([Task("season", ("summer", "winter")), Task("seen", ("cat", "dog", "cow"), multilabel=True)])
    describe_data(model, label_names=tasks.names, tasks=tasks.as_list())
    save_weights(model, tmp_path / "model")
    code, out, _ = run(monkeypatch, capsys, "stream", str(image), "--model", str(tmp_path / "model"), "--json")
    assert code == 0
    record = json.loads(out)
    logits = torch.tensor(record["logits"])
    found = {guess["number"]: guess["probability"] for guess in record["predictions"]}
    shares = torch.cat([logits[:2].softmax(-1), logits[2:].sigmoid()])
    assert [found[number] for number in range(5)] == pytest.approx(shares.tolist(), rel=1e-5)
    assert {guess["class"] for guess in record["predictions"]} == set(tasks.names)


def test_table(image, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "140")
    code, out, _ = run(monkeypatch, capsys, "stream", str(image), "--strategy", "recompute")
    assert code == 0
    assert "203 × 150, 12 passes (recompute)" in out
    assert "s per megapixel" in out


def test_a_plan_writes_nothing(image, tmp_path, monkeypatch, capsys):
    words = ("stream", str(image), "--tile", "64", "--map", str(tmp_path / "map.tif"), "--plan")
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, err) == (0, "")
    assert out.startswith("tiles of 64 × 64 px (as asked), 64 tokens each; ")
    code, again, _ = run(monkeypatch, capsys, *words, "--json")
    assert json.loads(again)["plan"] + "\n" == out
    assert not list(tmp_path.iterdir())
    code, _, err = run(monkeypatch, capsys, *words, "--estimate", "0.5")
    assert (code, err.count("\n")) == (2, 1)


def test_profile(image, monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, "stream", str(image), "--tile", "64", "--profile")
    assert code == 0
    assert err.startswith("tiles of 64 × 64 px (as asked), 64 tokens each; ")
    assert all(stage in out for stage in ("disk", "decoding", "copying", "computing", "Mpx/s"))
    code, out, _ = run(monkeypatch, capsys, "stream", str(image), "--tile", "64", "--profile", "--json")
    record = json.loads(out)
    assert set(record["profile"]["waited"]) == {"disk", "decoding", "copying", "computing"}
    assert "in host memory" in record["plan"]


def test_estimate(image, monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "stream", str(image), "--estimate", "0.1", "--tile", "16", "--json")
    assert code == 0
    record = json.loads(out)
    assert all(
        low <= middle <= high for low, middle, high in zip(*(record[x] for x in ("low", "logits", "high")), strict=True)
    )
    code, out, _ = run(monkeypatch, capsys, "stream", str(image), "--estimate", "0.1", "--tile", "16")
    assert (code, "90 % interval" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--memory", "much"], 2, "'much'"),
        (["--memory", "1MiB"], 1, "is too small"),
        (["--tile", "0"], 2, "got 0"),
        (["--level", "-1"], 2, "got -1"),
        (["--strategy", "guess"], 2, "'guess'"),
        (["--on-error", "ignore"], 2, "'ignore'"),
        (["--seed", "1"], 2, "--seed needs --estimate"),
        (["--save-every", "1"], 2, "--save-every needs --state"),
        (["--state", "s", "--save-every", "-1"], 2, "got -1"),
        (["--estimate", "2"], 2, "got 2"),
        (["--code", "IMAGE"], 1, "is the image itself"),
        (["--model", "vit_tiny"], 1, "got attention='softmax'"),
        (["--map", "map.jpg"], 1, "map.jpg"),
        (["--estimate", "0.5", "--map", "map.tif"], 2, "--estimate cannot be combined with --map"),
        (["--estimate", "0.5", "--profile"], 2, "--estimate cannot be combined with --profile"),
        (["--device-memory", "1GiB", "--device", "cpu"], 1, "device_memory='1GiB' needs a model on a GPU"),
        (["--estimate", "0.5", "--on-error", "skip"], 2, "--estimate cannot be combined with"),
        (["--series", "-1"], 2, "got -1"),
        (["--series", "1"], 1, "series chooses an image of a TIFF, got series=1"),
        (["--page", "1"], 1, "page chooses an image of a TIFF, GIF or WebP, got page=1"),
        (["--bands", "red"], 2, "must be numbers such as 0,1,2, got 'red'"),
        (["--bands", "0,1,3"], 1, "has bands 0 to 2, got bands=[0, 1, 3]"),
        (["--overwrite"], 2, "--overwrite needs --map, --regions or --code"),
        (["--code", "code.pt"], 1, "a scene code must end in .safetensors, got code.pt"),
    ],
)
def test_failures_are_one_line(arguments, code, message, image, monkeypatch, capsys):
    arguments = [str(image) if word == "IMAGE" else word for word in arguments]
    found, out, err = run(monkeypatch, capsys, "stream", str(image), *arguments, "--json")
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def bad_file(kind, folder):
    """A file that is no image, by its kind."""
    path = folder / kind
    if kind == "folder":
        path.mkdir()
    elif kind.startswith("pipe"):
        os.mkfifo(path)
    elif kind.startswith("cut"):
        array = np.random.default_rng(0).integers(0, 255, (90, 70, 3), np.uint8)
        np.save(path, array) if path.suffix == ".npy" else Image.fromarray(array).save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif not kind.startswith("missing"):
        path.write_text("hello" if kind.startswith("text") else "")
    return path


@pytest.mark.parametrize("kind", [
    "text.png", "text.jpg", "text.webp", "text.gif", "text.tif", "text.npy", "text.svs", "text.xyz",
    "empty.png", "empty.jpg", "empty.tif", "empty.npy", "empty.svs", "folder", "pipe.png", "pipe.npy", "pipe.tif",
    "cut.png", "cut.jpg", "cut.gif", "cut.webp", "cut.tif", "cut.npy", "missing.png",
])  # fmt: skip
def test_files_that_are_no_images_fail_in_one_line(kind, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyvips")
    path = bad_file(kind, tmp_path)
    code, out, err = run(monkeypatch, capsys, "stream", str(path), "--json")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert kind in err


def test_a_file_without_permission_fails_in_one_line(image, tmp_path, monkeypatch, capsys):
    opened = type(image).open

    def refuse(path, *arguments, **options):
        if path == image:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(type(image), "open", refuse)
    code, _, err = run(monkeypatch, capsys, "stream", str(image))
    assert (code, err) == (1, f"infsa: {image}: Permission denied\n")


def test_pages_and_bands(tmp_path, monkeypatch, capsys):
    """The default is said in one line; what is chosen is streamed."""
    tifffile = pytest.importorskip("tifffile")
    path, stack = tmp_path / "stack.tif", np.random.default_rng(0).integers(0, 255, (2, 40, 50, 4), np.uint8)
    tifffile.imwrite(path, stack, photometric="rgb", extrasamples=["unspecified"])
    for arguments, page, said in (([], 0, 1), (["--page", "1"], 1, 0), (["--series", "0", "--page", "1"], 1, 0)):
        code, out, err = run(monkeypatch, capsys, "stream", str(path), "--bands", "3,0,1", "--json", *arguments)
        assert (code, err.count("\n")) == (0, said)
        assert ("has 2 pages (axes QYXS): taking page=0" in err) == bool(said)
        whole = expected(stack[page][..., [3, 0, 1]])
        assert json.loads(out)["logits"] == whole.logits[0].tolist()
    code, out, _ = run(monkeypatch, capsys, "stream", str(path), "--page", "1", "--bands", "0,0,0", "--json",
                       "--estimate", "1")  # fmt: skip
    assert code == 0
    whole = expected(stack[1][..., [0, 0, 0]]).logits[0].tolist()
    assert json.loads(out)["logits"] == pytest.approx(whole, rel=1e-4, abs=1e-4)
    code, _, err = run(monkeypatch, capsys, "stream", str(path), "--page", "1")
    assert (code, err.count("\n")) == (1, 1)
    assert "has 4 channels, none of them opacity, the model takes 3" in err


def test_a_full_disk_is_said_and_loses_nothing(image, tmp_path, monkeypatch, capsys):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    arguments = ["stream", str(image), "--tile", "1024", "--state", str(tmp_path / "s"), "--save-every", "0", "--json",
                 "--code", str(tmp_path / "code.safetensors")]  # fmt: skip
    monkeypatch.setattr(os, "fsync", full)
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert (code, out) == (1, "")
    said, failed = err.splitlines()  # each once
    assert said.startswith(f"infsa: {tmp_path / 's'}: No space left on device: the stream goes on")
    assert failed == f"infsa: {tmp_path / 'code.safetensors'}: No space left on device"
    monkeypatch.undo()
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert (code, err) == (0, "")
    assert json.loads(out)["logits"] == expected(image).logits[0].tolist()
    code, _, err = run(monkeypatch, capsys, *arguments)  # replaces its own code
    assert (code, err) == (0, "")
    (tmp_path / "code.safetensors").write_text("not ours")
    code, _, err = run(monkeypatch, capsys, *arguments)
    assert (code, err.count("\n")) == (1, 1)
    assert "exists already and is not a scene code" in err
    assert run(monkeypatch, capsys, *arguments, "--overwrite")[0] == 0


def test_a_damaged_tile_is_skipped_and_named(tmp_path, monkeypatch, capsys):
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "cut.tif"
    tifffile.imwrite(path, np.full((128, 128, 3), 99, np.uint8), tile=(64, 64), photometric="rgb")
    path.write_bytes(path.read_bytes()[:-5000])
    code, _, err = run(monkeypatch, capsys, "stream", str(path), "--tile", "64")
    assert (code, err.count("\n")) == (1, 1)
    assert "tile 3 (pixels 64:128, 64:128)" in err
    code, out, _ = run(monkeypatch, capsys, "stream", str(path), "--tile", "64", "--on-error", "skip", "--json")
    assert code == 0
    assert len(json.loads(out)["skipped"]) == 1


def test_a_killed_job_goes_on_to_the_same_bits(image, tmp_path, monkeypatch, capsys):
    state = tmp_path / "job.state"
    options = ["--tile", "48", "--strategy", "recompute", "--state", str(state)]
    command = [sys.executable, "-c", "from infsa.cli import main; main()", "stream", str(image), *options]
    process = subprocess.Popen([*command, "--save-every", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (state.exists() and read_tensors(state)[1]["step"] >= 6):
        time.sleep(0.01)  # half of the 12 passes
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert state.exists()
    code, out, _ = run(monkeypatch, capsys, "stream", str(image), *options, "--json")
    assert code == 0
    assert not state.exists()
    whole = expected(image, tile=48, strategy="recompute").logits[0].tolist()
    assert json.loads(out)["logits"] == whole
