"""infsa train: a run and its files, and everything that stops it before the first step."""

import json
import re
import shutil

import pytest
from PIL import Image

from infsa.cli.recipe_options import comments, sections
from infsa.cli.train import sparkline
from infsa.train import list_checkpoints
from tests.cli.test_cli import run
from tests.data.helpers import write_image
from tests.train.helpers import command, log_lines, options

SMALL = options()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run from the command line: its folder, exit code and output."""
    root = tmp_path_factory.mktemp("cli")
    return root / "run", *command("train", *SMALL, "--out", root / "run", console=root / "console")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    for split, count in (("train", 8), ("val", 3)):
        for label, colour in (("cat", "red"), ("dog", "blue")):
            for index in range(count):
                write_image(root / split / label / f"{index}.png", colour, (40, 34))
    return root


def test_a_run_leaves_its_files_and_an_accuracy(finished):
    out, code, text, err = finished
    assert (code, err) == (0, "")
    for word in ("top-1", "validation loss", "curve", "parameters"):
        assert word in text
    found = {path.name for path in out.iterdir()}
    assert found == {
        "recipe.json", "log.jsonl", "tensorboard", "checkpoints", "result.json", "model", "curve.png"
    }  # fmt: skip
    with Image.open(out / "curve.png") as figure:
        assert min(figure.size) > 300
    assert json.loads((out / "recipe.json").read_text())["data_options"] == {"length": 48, "classes": 4}


def test_json(monkeypatch, capsys, tmp_path):
    code, out, err = run(monkeypatch, capsys, "train", *SMALL, "--out", str(tmp_path / "run"), "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert 0 <= result["top1"] <= result["top5"] <= 1
    assert [row["epoch"] for row in result["history"]] == [1, 2, 3]
    assert json.loads((tmp_path / "run" / "result.json").read_text()).items() <= result.items()


def test_a_toml_file_is_overridden_by_options(monkeypatch, capsys, tmp_path):
    (tmp_path / "mine.toml").write_text("epochs = 2\nlr = 0.5\n[model_options]\ngamma = 0.5\ndepth = 2\n")
    words = list(SMALL)
    place = words.index("--epochs")
    del words[place : place + 2]
    arguments = [*words, "--config", str(tmp_path / "mine.toml"), "--lr", "1e-3", "--model-option", "gamma=0.3"]
    code, _, err = run(monkeypatch, capsys, "train", *arguments, "--out", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (recipe["epochs"], recipe["lr"]) == (2, 1e-3)
    assert recipe["model_options"] == {"gamma": 0.3, "depth": 2, "embed_dim": 16, "num_heads": 2}


def test_a_folder_of_photos(monkeypatch, capsys, tmp_path, photos):
    words = [*options(data_options={}, batch_size=8, loader="workers"), "--data", f"folder:{photos}"]
    code, out, err = run(monkeypatch, capsys, "train", *words, "--out", str(tmp_path / "run"), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["classes"] == ["cat", "dog"]


def test_damaged_photos_are_noted_and_the_others_validated(monkeypatch, capsys, tmp_path, photos):
    """A damaged training image must not take the validation image of the same name with it."""
    shutil.copytree(photos, tmp_path / "photos")
    for index, colour in enumerate(("green", "white", "black")):
        write_image(tmp_path / "photos" / "val" / "cat" / f"{index}.png", colour, (40, 34))
    (tmp_path / "photos" / "train" / "cat" / "1.png").write_bytes(b"damaged")
    losses = []
    for workers in (0, 1):
        words = [*options(data_options={}, batch_size=8, workers=workers), "--data", f"folder:{tmp_path / 'photos'}"]
        code, out, _ = run(monkeypatch, capsys, "train", *words, "--out", str(tmp_path / f"run-{workers}"))
        assert code == 0
        assert "1 image skipped: cat/1.png" in " ".join(out.split())
        losses.append([row["val_loss"] for row in log_lines(tmp_path / f"run-{workers}") if row["kind"] == "val"])
    assert losses[0] == losses[1]


def test_help_lists_every_field_with_an_example(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(monkeypatch, capsys, "train", "--help")
    assert code == 0
    assert "Example: infsa train" in " ".join(out.split())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    for name in comments():
        if name not in ("model_options", "data_options"):
            assert f"--{name.replace('_', '-')}" in plain
    assert set(sections().values()) <= {line.strip("╭─╮ ") for line in plain.splitlines() if line.startswith("╭")}


def test_every_field_has_a_section_and_most_a_comment():
    assert comments().keys() == sections().keys()
    assert sum(not text for text in comments().values()) <= 12


# What stops before the first step


def broken_tree(root, kind):
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            for index in range(8):
                write_image(root / split / label / f"{index}.png", "red", (40, 40))
    if kind == "empty class":
        (root / "train" / "eel").mkdir()
    elif kind == "no validation":
        shutil.rmtree(root / "val")
    elif kind == "other classes":
        (root / "val" / "dog").rename(root / "val" / "wolf")
    return f"folder:{root}"


def refused(monkeypatch, capsys, tmp_path, words, message, codes=(1, 2)):
    out = tmp_path / "run"
    code, printed, err = run(monkeypatch, capsys, "train", *words, "--out", str(out), "--json")
    assert code in codes, err
    assert printed == ""
    assert err.startswith("infsa: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert "--debug" not in err
    assert not list_checkpoints(out / "checkpoints")
    assert not (out / "log.jsonl").exists()


@pytest.mark.parametrize(
    "data", ["folder:/nowhere/at/all", "npz:/nowhere.npz", "imagenet:/nowhere", "wds:/nowhere/*.tar"]
)
def test_a_wrong_path(data, monkeypatch, capsys, tmp_path):
    refused(monkeypatch, capsys, tmp_path, [*options(data_options={}), "--data", data], "/nowhere", (1,))


@pytest.mark.parametrize("kind", ["empty class", "no validation", "other classes"])
def test_a_broken_tree(kind, monkeypatch, capsys, tmp_path):
    words = [*options(data_options={}, batch_size=8), "--data", broken_tree(tmp_path / "photos", kind)]
    refused(monkeypatch, capsys, tmp_path, words, {"empty class": "eel", "no validation": "val"}.get(kind, "wolf"))


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        (["--data", "imagenet"], "'imagenet'", 1),
        (["--data", "photos"], "'photos'", 1),
        (["--learning-rate", "3"], "--learning-rate", 2),
        (["--batch-size", "100"], "batch_size 100 is more than the 48", 1),
        (["--batch-size", "0"], "batch_size", 1),
        (["--batch-size", "7", "--accumulate", "2"], "batch_size 7", 1),
        (["--batch-size", "5", "--mixup", "0.2"], "even number", 1),
        (["--batch-size", "many"], "--batch-size", 2),
        (["--epochs", "2.5"], "--epochs", 2),
        (["--recipe", "imagenet"], "'imagenet'; known are paper, deit, tiny", 2),
        (["--model", "resnet50"], "'resnet50'", 1),
        (["--optimizer", "adamx"], "'adamx'", 1),
        (["--optimizer", "fusedadam"], "fusedadam", 1),
        (["--precision", "16-mixed"], "'16-mixed' needs a GPU", 1),
        (["--precision", "8"], "precision must be one of", 2),
        (["--loader", "disk"], "loader must be one of", 2),
        (["--jitter", "0.1"], "jitter", 1),
        (["--jitter", "a"], "jitter", 2),
        (["--interpolation", "cubic"], "'cubic'", 1),
        (["--warmup-epochs", "3"], "warmup_epochs", 1),
        (["--init", "/nowhere"], "/nowhere", 1),
        (["--image-size", "36", "--val-resize", "36"], "36", 1),
        (["--model-option", "width=3"], "width", 1),
        (["--model-option", "num_heads=3"], "num_heads", 1),
        (["--model-option", "gamma=2"], "gamma", 1),
        (["--model-option", "gamma"], "'gamma'", 2),
        (["--stem", "hybrid"], "stem must be one of .* got 'hybrid'", 1),
        (["--stem", "conv", "--model-option", "patch_size=6"], "powers of two", 1),
        (["--data-option", "colour=red"], "colour", 1),
        (["--data-option", "length=many"], "many", 1),
        (["--data-option", "classes=1"], "classes", 1),
        (["--seed", "-1"], "seed", 1),
        (["--seed", "99999999999999999999999"], "seed", 1),
        (["--lr", "inf"], "lr", 1),
        (["--resume"], "holds no training run", 2),
        (["--config", "/nowhere.toml"], "/nowhere.toml", 1),
    ],
)
def test_one_line_and_nothing_trained(words, message, code, monkeypatch, capsys, tmp_path):
    refused(monkeypatch, capsys, tmp_path, [*SMALL, *words], message, (code,))


@pytest.mark.parametrize(
    ("content", "message"),
    [("speed = 3", "'speed'"), ("lr = 'fast'", "lr must be a number"), ("lr = ", "mine.toml"), ("[lr]\na=1", "lr")],
)
def test_a_wrong_file_is_wrong_usage(content, message, monkeypatch, capsys, tmp_path):
    (tmp_path / "mine.toml").write_text(content)
    refused(monkeypatch, capsys, tmp_path, ["--config", str(tmp_path / "mine.toml")], message, (2,))


def test_the_line_is_all_that_reaches_the_terminal(tmp_path):
    """Seen from outside, warnings of the libraries included."""
    words = [*SMALL, "--batch-size", "100", "--out", tmp_path / "run"]
    code, _, err = command("train", *words, console=tmp_path / "console")
    assert (code, err) == (1, "infsa: batch_size 100 is more than the 48 training images\n")
    assert not (tmp_path / "run").exists()


# Going on


def test_resuming_a_finished_run_gives_its_result(finished, monkeypatch, capsys):
    out = finished[0]
    before = json.loads((out / "result.json").read_text())
    code, printed, err = run(monkeypatch, capsys, "train", "--resume", "--out", str(out), "--json")
    assert (code, err) == (0, "")
    assert json.loads(printed)["history"] == before["history"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "--lr", "7"], ", got 7.0"),
        (["--resume", "--model-option", "gamma=0.1"], "model_options"),
        ([*SMALL], "already holds a run"),
    ],
)
def test_what_contradicts_the_run_is_one_line(words, message, finished, monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "train", *words, "--out", str(finished[0]))
    assert code == 1
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["--config", "MINE"], ["--recipe", "deit"], ["--recipe", "nonsense"]])
def test_resuming_ignores_no_option(words, finished, monkeypatch, capsys, tmp_path):
    (tmp_path / "mine.toml").write_text("lr = 7.0\n")
    given = [str(tmp_path / "mine.toml") if word == "MINE" else word for word in words]
    code, _, err = run(monkeypatch, capsys, "train", "--resume", *given, "--out", str(finished[0]))
    assert code != 0
    assert err.count("\n") == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_a_damaged_checkpoint_is_reported(as_json, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    words = ["--out", str(tmp_path / "run"), *(["--json"] if as_json else [])]
    assert run(monkeypatch, capsys, "train", *SMALL, *words)[0] == 0
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[0]
    newest.write_bytes(newest.read_bytes()[:-7])
    code, out, err = run(monkeypatch, capsys, "train", "--resume", *words)
    assert code == 0
    assert f"{newest.name} is damaged" in out + err


def test_a_row_of_bars():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.3]) == "▁"
    assert len(sparkline([i / 500 for i in range(500)])) == 60
