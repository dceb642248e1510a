"""infsa quality: tables, JSON, figures, resuming."""

import json

import pytest

import infsa
from tests.cli.test_cli import run
from tests.evaluate.test_measure import close
from tests.models.helpers import small


@pytest.fixture
def checkpoints(tmp_path):
    arguments = []
    for attention, seed in (("softmax", 0), ("softmax", 1), ("infsa_linear", 0)):
        folder = infsa.models.save_weights(small(attention, seed, num_classes=10), tmp_path / f"{attention}-{seed}")
        arguments += ["-m", str(folder)]
    return arguments


FEW = ("--data", "shapes", "--limit", "3", "--steps", "3", "--all-images", "--min-probability", "0")


def test_tables_and_figures(monkeypatch, capsys, tmp_path, checkpoints):
    monkeypatch.setenv("COLUMNS", "160")
    out = tmp_path / "out"
    arguments = [*checkpoints, *FEW, "--fill", "mean", "--fill", "tokens", "--method", "last", "--method", "degree"]
    code, text, err = run(monkeypatch, capsys, "quality", *arguments, "--out", str(out))
    assert (code, err) == (0, "")
    for word in ("softmax", "infsa_linear", "random order", "centre Gaussian", "chance", "degree", "fill: tokens"):
        assert word in text
    summary = json.loads((out / "quality.json").read_text())
    assert summary["groups"]["softmax"]["runs"] == 2
    assert {path.name for path in out.glob("*.png")} == {
        *(f"{name}-{fill}.png" for name in ("morf", "lerf", "summary") for fill in ("mean", "tokens")),
        "roc.png",
        "pr.png",
    }


def test_json_resumes_and_refuses_to_mix(monkeypatch, capsys, tmp_path, checkpoints):
    arguments = ["quality", *checkpoints[-2:], *FEW, "--out", str(tmp_path / "out")]
    code, first, _ = run(monkeypatch, capsys, *arguments, "--json")
    assert code == 0
    records = tmp_path / "out" / "records" / "infsa_linear-0.mean.jsonl"
    lines = records.read_text().splitlines()
    records.write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])  # interrupted in the last record
    code, second, _ = run(monkeypatch, capsys, *arguments, "--json")
    assert code == 0
    close(json.loads(first)["groups"], json.loads(second)["groups"])
    code, _, err = run(monkeypatch, capsys, *arguments, "--seed", "5")
    assert code == 1
    assert "seed=0, got 5" in err
    assert err.count("\n") == 1


def test_another_number_of_classes_is_refused(monkeypatch, capsys, tmp_path):
    folder = infsa.models.save_weights(small(num_classes=7), tmp_path / "model")
    code, _, err = run(monkeypatch, capsys, "quality", "-m", f"seven-0={folder}", *FEW, "--out", str(tmp_path / "out"))
    assert code == 1
    assert "seven-0 has 7 classes, shapes (val) has 10: train a model on these data" in err
    assert err.count("\n") == 1


def test_data_without_boxes_gives_no_empty_figure(monkeypatch, capsys, tmp_path, recwarn):
    from tests.data.helpers import write_image

    for name in ("cat", "dog"):
        write_image(tmp_path / "val" / name / "0.png", size=(32, 32))
    folder = infsa.models.save_weights(small(num_classes=2), tmp_path / "model")
    words = ["-m", f"two-0={folder}", "--data", f"folder:{tmp_path}", "--steps", "2", "--device", "cpu"]
    words += ["--all-images", "--min-probability", "0", "--out", str(tmp_path / "out")]
    code, out, err = run(monkeypatch, capsys, "quality", *words)
    assert (code, err) == (0, "")
    assert "no boxes" in out
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"morf.png", "lerf.png", "summary.png"}
    assert not [warning for warning in recwarn if "matplotlib" in str(warning.filename)]


def test_a_folder_without_splits_gives_the_images_that_the_run_held_out(monkeypatch, capsys, tmp_path):
    from tests.data.helpers import write_image

    for name in ("cat", "dog"):
        for index in range(3):
            write_image(tmp_path / "photos" / name / f"{index}.png", size=(32, 32))
    run_folder, data = tmp_path / "run", f"folder:{tmp_path / 'photos'}"
    model = infsa.models.save_weights(small(num_classes=2), run_folder / "model")
    held_out = ["cat/0.png", "dog/2.png"]
    (run_folder / "recipe.json").write_text(json.dumps({"data": data}))
    (run_folder / "held-out.json").write_text(json.dumps({"data": data, "images": held_out}))
    words = ["-m", f"two-0={model}", "--data", data, "--device", "cpu", "--json"]
    for split, images in (("val", 2), ("train", 4), ("all", 6)):
        where = ["--split", split, "--out", str(tmp_path / split)]
        code, out, _ = run(monkeypatch, capsys, "align", *words, *where, "--power-steps", "5")
        assert code == 0
        assert json.loads(out)["runs"]["two-0"]["images"] == images
    stranger = infsa.models.save_weights(small(num_classes=2), tmp_path / "model")
    code, _, err = run(monkeypatch, capsys, "align", "-m", stranger, *words[2:], "--out", str(tmp_path / "out"))
    assert code == 1
    assert err.count("\n") == 1
