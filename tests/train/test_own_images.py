"""A folder of one's own images: it trains without splits, says what it does, and notices when the images change."""

import json
import shutil

import pytest

from infsa.train import list_checkpoints, read_checkpoint, train
from tests.data.helpers import one_line, write_image
from tests.train import helpers


@pytest.fixture
def photos(tmp_path):
    for label, colour in (("cat", "red"), ("dog", "blue"), ("eel", "green")):
        for index in range(6):
            write_image(tmp_path / "photos" / label / f"{index}.webp", colour, (40, 34))
    return tmp_path / "photos"


def recipe(photos, **changes):
    return helpers.tiny(**{"data": f"folder:{photos}", "data_options": {}, "batch_size": 6, "epochs": 2} | changes)


def test_a_folder_without_splits_trains_and_records_what_it_holds_out(photos, tmp_path):
    run = train(recipe(photos), tmp_path / "run")
    assert run.result["classes"] == ["cat", "dog", "eel"]
    assert run.notes == ["3 of 18 images are held out for validation (val_share 0.2, seed 0)"]
    kept = json.loads((tmp_path / "run" / "held-out.json").read_text())
    assert {name.split("/")[0] for name in kept["images"]} == {"cat", "dog", "eel"}
    assert (kept["share"], run.result["recipe"]["val_share"]) == (0.2, 0.2)
    again = train(recipe(photos), tmp_path / "run", resume=True)
    assert again.result["history"] == run.result["history"]


def test_another_share_and_seed(photos, tmp_path):
    kept = []
    for seed in (0, 1):
        train(recipe(photos, val_share=0.5, seed=seed, epochs=2), tmp_path / f"run-{seed}")
        kept.append(json.loads((tmp_path / f"run-{seed}" / "held-out.json").read_text())["images"])
    assert len(kept[0]) == len(kept[1]) == 9
    assert kept[0] != kept[1]


def test_validation_on_another_folder_without_splits(photos, tmp_path):
    write_image(tmp_path / "other" / "eel" / "0.tif", "green")
    run = train(recipe(photos, val_data=f"folder:{tmp_path / 'other'}", batch_size=18), tmp_path / "run")
    assert run.notes == []
    assert not (tmp_path / "run" / "held-out.json").exists()
    write_image(tmp_path / "other" / "fox" / "0.tif", "green")
    with pytest.raises(ValueError, match=one_line("different classes: 3 and 2, such as .*'fox'")):
        train(recipe(photos, val_data=f"folder:{tmp_path / 'other'}"), tmp_path / "second")


def test_a_share_can_be_held_out_of_a_training_folder(photos, tmp_path):
    photos.rename(tmp_path / "train")
    with pytest.raises(ValueError, match=one_line("no folder val .*with val_data, .*val_share")):
        train(recipe(tmp_path), tmp_path / "run")
    assert train(recipe(tmp_path, val_share=0.3), tmp_path / "run").notes[0].startswith("6 of 18 images are held out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"val_share": 0.2, "val_data": "folder:x"}, "exclude each other"),
        ({"val_share": 1.0}, "val_share must lie in"),
        ({"val_share": 0.2, "data": "shapes"}, "shapes has a validation split"),
    ],
)
def test_contradictions_are_one_line(changes, message, photos, tmp_path):
    with pytest.raises(ValueError, match=one_line(message)):
        train(recipe(photos, **changes), tmp_path / "run")


# Going on with other images, for longer, and the best


@pytest.fixture
def stopped(photos, tmp_path):
    """A run of two epochs, killed in the second."""
    train(recipe(photos, epochs=3), tmp_path / "run")
    for path in list_checkpoints(tmp_path / "run" / "checkpoints")[:-1]:
        path.unlink()
    return tmp_path / "run"


@pytest.mark.parametrize("change", ["added", "removed", "altered", "renamed"])
def test_changed_images_are_refused_unless_told(change, photos, stopped):
    if change == "added":
        for index in range(6, 18):
            write_image(photos / "dog" / f"{index}.png", "blue")
    elif change == "removed":
        (photos / "dog" / "0.webp").unlink()
    elif change == "altered":
        for path in (photos / "dog").iterdir():
            write_image(path, "blue", (200, 100))
    else:
        for path in (photos / "dog").iterdir():
            path.rename(path.with_name(f"new-{path.name}"))
    before = helpers.final_state(stopped)[1]
    with pytest.raises(ValueError, match=one_line("images have changed since .*'dog'.*--accept-new-data")):
        train(recipe(photos, epochs=3), stopped, resume=True)
    assert helpers.final_state(stopped)[1] == before
    run = train(recipe(photos, epochs=3), stopped, resume=True, accept_new_data=True)
    assert any("the images have changed" in note for note in run.notes)
    newest = read_checkpoint(list_checkpoints(stopped / "checkpoints")[0])[1]
    assert newest["step"] == 3 * newest["per_epoch"]
    assert train(recipe(photos, epochs=3), stopped, resume=True).result["history"] == run.result["history"]


@pytest.mark.parametrize("accept", [False, True])
def test_other_classes_are_always_refused(accept, photos, stopped):
    write_image(photos / "fox" / "0.png")
    write_image(photos / "fox" / "1.png")
    with pytest.raises(ValueError, match=one_line("class 'fox' is new.*other classes")):
        train(recipe(photos, epochs=3), stopped, resume=True, accept_new_data=accept)


def test_times_do_not_matter(photos, stopped):
    shutil.copytree(photos, photos.with_name("copy"))  # other times
    shutil.rmtree(photos)
    photos.with_name("copy").rename(photos)
    assert train(recipe(photos, epochs=3), stopped, resume=True).result["top1"] >= 0


def test_more_epochs_go_on_with_the_longer_schedule(tmp_path):
    short, longer = helpers.tiny(**helpers.EVERYTHING), helpers.tiny(**helpers.EVERYTHING | {"epochs": 5})
    train(short, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    run = train(longer, tmp_path / "whole", resume=True)
    assert [row["epoch"] for row in run.result["history"]] == [1, 2, 3, 4, 5]
    assert run.notes[0].startswith("3 epochs became 5: the cosine ends at epoch 5")
    rates = {row["step"]: row["lr"] for row in helpers.log_lines(tmp_path / "whole") if row["kind"] == "train"}
    assert rates[14] == longer.learning_rate(13, 4)
    assert helpers.in_child(helpers.train_and_die, longer, tmp_path / "killed", True, "step", 17) == -9
    assert helpers.in_child(helpers.train_here, longer, tmp_path / "killed", True) == 0
    helpers.assert_same_run(tmp_path / "killed", tmp_path / "whole")
    with pytest.raises(ValueError, match=one_line("epochs=5, got 3; .*not for fewer")):
        train(short, tmp_path / "whole", resume=True)


def test_the_best_model_is_kept_and_can_be_used(tmp_path, monkeypatch):
    """Validation is made to be best in the second of three epochs."""
    from infsa.evaluate import load_model
    from infsa.train import record

    shares, measure = iter([0.3, 0.9, 0.9]), record.measure_accuracy

    def measured(*arguments, **options):
        from dataclasses import replace

        return replace(measure(*arguments, **options), top1=next(shares))

    monkeypatch.setattr(record, "measure_accuracy", measured)
    kept = helpers.tiny(save_every=4, keep=9)
    run = train(kept, tmp_path)
    assert run.result["best"] == {"epoch": 2.0, "top1": 0.9}
    best = load_model(tmp_path / "checkpoints" / "best").state_dict()
    tensors = read_checkpoint(tmp_path / "checkpoints" / "step-00000008.safetensors")[0]
    assert all((tensors[f"model.{name}"] == value).all() for name, value in best.items())


def test_a_resumed_run_lets_go_of_the_checkpoint_it_came_from(tmp_path):
    """A deleted file that is still mapped would keep its place on the disk."""
    path = train(helpers.tiny(), tmp_path / "run").out / "checkpoints"
    tensors, _ = read_checkpoint(list_checkpoints(path)[0])
    with open("/proc/self/maps") as maps:
        assert not [line for line in maps if "step-0" in line]
    assert tensors
