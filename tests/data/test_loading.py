"""Worker processes: an error in one, or beside them, ends the command in one line; signals to all do not end them."""

import multiprocessing
import os
import signal

import pytest
from torch.utils.data import Dataset

import infsa
from infsa.data import UnreadableImage
from infsa.data.loading import STOP_SIGNALS, Batches, as_raised, obey_parent_only
from tests.models.helpers import small
from tests.train.helpers import command, options

from .helpers import write_image


class Raising(Dataset):
    def __init__(self, error=None):
        self.error = error

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.error is not None and index == 5:
            raise self.error
        return index


def signalled(connection):
    """A worker of a job whose scheduler signals every process."""
    obey_parent_only(0)
    for number in STOP_SIGNALS:
        os.kill(os.getpid(), number)
    while signal.sigpending():  # one of a kind can wait at a time: the next would be lost
        os.sched_yield()
    connection.send("alive")
    connection.recv()  # never comes


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "error", [UnreadableImage("a.png: damaged: truncated"), KeyError("cat"), OSError("no space"), ValueError()]
)
def test_an_error_arrives_as_it_was_raised(error, workers):
    with pytest.raises(type(error)) as caught:
        list(Batches(Raising(error), workers, batch_size=2))
    assert "DataLoader" not in str(caught.value)
    assert str(error) in str(caught.value) or str(error) == ""


def test_other_errors_are_left_alone():
    for error in (ValueError("two\nlines"), ValueError(), ValueError("one")):
        assert as_raised(error) is error


def test_batches_can_be_read_twice():
    batches = Batches(Raising(), workers=1, batch_size=4)
    assert len(batches) == 2
    for _ in range(2):
        assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_signals_to_every_process_do_not_end_a_worker_and_its_parent_does():
    context = multiprocessing.get_context("spawn")  # no threads of other tests, which would take the signals
    ours, theirs = context.Pipe()
    worker = context.Process(target=signalled, args=(theirs,), daemon=True)
    worker.start()
    assert ours.recv() == "alive"
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == 0


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """A model of two classes; photos that cannot be read, and photos of three classes."""
    root = tmp_path_factory.mktemp("trees")
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            for index in range(4):
                path = root / "damaged" / split / name / f"{index}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("not an image")
    for name in ("cat", "dog", "eel"):
        write_image(root / "three" / name / "0.png")
    infsa.models.save_weights(small(num_classes=2), root / "model")
    return root


@pytest.mark.parametrize("name", ["evaluate", "train", "adapt", "adapt images", "three"])
def test_commands_end_in_one_line(name, trees, tmp_path):
    damaged, adapting = (
        f"folder:{trees / 'damaged'}",
        ["--image-size", "32", "--batch-size", "2", "--out", tmp_path / "run"],
    )
    small_vit = [
        "adapt",
        "-m",
        "vit_tiny_patch16_224",
        "--model-option",
        "img_size=32",
        "--model-option",
        "depth=1",
        *adapting,
    ]
    words = {
        "evaluate": ["evaluate", "-m", trees / "model", "--data", damaged, "--workers", 1],
        "three": ["evaluate", "-m", trees / "model", "--data", f"folder:{trees / 'three'}", "--workers", 1],
        "train": ["train", *options(data_options={}, batch_size=4, loader="workers", workers=1), "--data", damaged,
                  "--out", tmp_path / "run"],
        "adapt": [*small_vit, "--data", damaged],
        "adapt images": [*small_vit, "--data", f"images:{trees / 'damaged'}"],
    }[name]  # fmt: skip
    code, _, err = command(*words, console=tmp_path / "console")
    assert (code, err.count("\n")) == (1, 1), err
    expected = "the model has 2 classes, the dataset 3" if name == "three" else "images can be read; the first met: "
    assert expected in err
    assert "DataLoader" not in err
