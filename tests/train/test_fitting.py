"""Recipes that start: what was not asked for gives way, with a line; what was asked for stays."""

import pytest

from infsa.train import RECIPES, Recipe
from infsa.train.fitting import fitted, fitted_batch
from tests.cli.test_cli import run
from tests.data.helpers import write_image


@pytest.mark.parametrize("name", ["paper", "deit", "tiny"])  # finetune is filled in from its weights: test_init
@pytest.mark.parametrize(
    "changes", [{}, {"epochs": 1}, {"epochs": 3, "image_size": 64}, {"jitter": (0.4, 0.4, 0.4, 0.1)}]
)
def test_every_named_recipe_starts_without_a_gpu(name, changes):
    base = RECIPES[name]
    recipe, notes = fitted(base.override({**changes, "device": "cpu"}), base, {*changes, "device"})
    recipe.check()
    assert recipe.precision == "32-true"
    changed = {field for field, value in recipe.as_dict().items() if value != base.as_dict()[field]}
    assert changed - {*changes, "device"} == {note.split()[0] for note in notes}
    assert all("\n" not in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"epochs": 1}, "warmup_epochs", 0.1),
        ({"image_size": 128}, "val_resize", 128),
        ({"randaugment": 5}, "loader", "workers"),
        ({"interpolation": "lanczos"}, "loader", "workers"),
    ],
)
def test_what_gives_way(changes, field, value):
    base = RECIPES["tiny"]
    recipe, notes = fitted(base.override(changes), base, set(changes))
    assert getattr(recipe, field) == value
    assert any(note.startswith(f"{field} ") for note in notes)
    kept, _ = fitted(base.override(changes), base, {*changes, field})
    assert getattr(kept, field) == getattr(base, field)


@pytest.mark.parametrize(
    ("batch", "images", "world", "mixup", "expected"),
    [(64, 64, 1, 0, 64), (64, 63, 1, 0, 8), (1024, 480, 1, 0.8, 64), (64, 500, 3, 0, 63), (64, 5, 1, 0, 1),
     (65, 500, 1, 0.2, 64), (64, 3, 1, 0.2, 2)],
)  # fmt: skip
def test_a_batch_that_fits(batch, images, world, mixup, expected):
    recipe, notes = fitted_batch(Recipe(batch_size=batch, mixup=mixup), images, world)
    assert recipe.batch_size == expected
    assert len(notes) == (batch != expected)
    recipe.check_batches(images, world)


def test_one_epoch_on_a_few_photos(monkeypatch, capsys, tmp_path):
    """All at once: no split, a batch and a warm-up that do not fit, a file that is no image."""
    for label in ("cat", "dog"):
        for index in range(6):
            write_image(tmp_path / "photos" / label / f"{index}.bmp", size=(20, 20))
    (tmp_path / "photos" / "cat" / "notes.txt").write_text("x")
    words = [
        "--data",
        f"folder:{tmp_path / 'photos'}",
        "--epochs",
        "1",
        "--model-option",
        "depth=1",
        "--image-size",
        "32",
    ]
    code, out, err = run(monkeypatch, capsys, "train", *words, "--workers", "0", "--out", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    notes = [line for line in out.splitlines() if line.startswith("note: ")]
    assert [note.split()[1] for note in notes] == ["val_resize", "warmup_epochs", "1", "2", "batch_size"]
    assert max(len(line) for line in out.splitlines() if not line.startswith("  /")) <= 80


def test_help_shows_every_default_and_format(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run(monkeypatch, capsys, "train", "--help")
    text = " ".join(out.replace("│", " ").split())
    assert code == 0
    for words in ("paper: 64, deit: 1024, tiny: 64", "workers or resident", "32-true, bf16-mixed or 16-mixed",
                  "X,Y,...", "0.4,0.4,0.4,0.1"):  # fmt: skip
        assert words in text
    monkeypatch.setenv("COLUMNS", "80")
    out = run(monkeypatch, capsys, "train", "--help")[1]
    assert [line for line in out.splitlines() if "…" in line and "--no-grad-checkpo" not in line] == []
