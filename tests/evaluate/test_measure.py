"""Measuring a dataset: records depend on the image alone, runs resume, summaries equal plain sums."""

import numpy as np
import pytest
import torch

import infsa
from infsa.data import Shapes, keyed_generator, transform_for
from infsa.evaluate import (
    Aligning,
    Boxes,
    Removal,
    Results,
    Subject,
    chosen_images,
    configuration,
    data_config,
    measure,
    over_runs,
    study_alignment,
    study_quality,
    summarise_boxes,
    summarise_removal,
)
from tests.evaluate.synthetic import naive_curve
from tests.models.helpers import small

SHAPES = Shapes(size=32, split="val", classes=5, length=40)
EVERY = Removal(only_correct=False, min_probability=0.0, levels=5)


def measured(path, settings, indices, model=None):
    model = model or small("infsa_linear")
    results = Results(path, configuration(model, "shapes", settings))
    measure(model, SHAPES, indices, results, settings)
    return results


def test_curves_equal_the_naive_loop(tmp_path):
    """MoRF, LeRF and the random order of a record, each against one image and one level at a time."""
    model = small("infsa_pure")
    (record,) = measured(tmp_path / "a.jsonl", EVERY, [7], model).records
    image, _ = transform_for(data_config(model), train=False)(SHAPES[7].image, SHAPES[7].boxes)
    scores = model.attention_maps(image[None]).flatten()
    assert scores.unique().numel() == 16
    order = scores.argsort(descending=True)
    random = torch.from_numpy(keyed_generator("random order", 0, "shapes/val/7", 0).random(16)).argsort().argsort()
    counts = [0, 3, 6, 10, 13, 16]
    black = torch.zeros_like(image)
    for name, direction, places in (
        ("last", "morf", order),
        ("last", "lerf", order.flip(0)),
        ("random order", "morf", random),
    ):
        naive = naive_curve(model, image, places, black, record["predicted"], counts, 8)
        torch.testing.assert_close(torch.tensor(record["curves"][name][direction]), naive, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("settings", [EVERY, Boxes(methods=("last", "rollout")), Aligning(steps=50)])
def test_records_do_not_depend_on_the_batch_and_resume(settings, tmp_path):
    whole = measured(tmp_path / "whole.jsonl", settings, range(6)).records
    measured(tmp_path / "parts.jsonl", settings, [4, 1])
    parts = measured(tmp_path / "parts.jsonl", settings, range(6)).records
    assert [record["index"] for record in parts] == [1, 4, 0, 2, 3, 5] or [r["index"] for r in parts][:2] == [4, 1]
    for record in parts:
        close(record, whole[record["index"]])


def close(a, b):
    """Equal up to the rounding of a batched product."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            close(a[key], b[key])
    elif isinstance(a, list) and a and not isinstance(a[0], bool):
        np.testing.assert_allclose(a, b, atol=1e-5)
    else:
        assert a == pytest.approx(b, abs=1e-5) if isinstance(a, float) else a == b


def test_images_outside_the_convention_have_no_curves(tmp_path):
    records = measured(tmp_path / "a.jsonl", Removal(levels=2, min_probability=0.0), range(12)).records
    for record in records:
        assert ("curves" in record) == (record["predicted"] == record["label"])
    strict = measured(
        tmp_path / "b.jsonl", Removal(levels=2, min_probability=1.0, only_correct=False), range(3)
    ).records
    assert not any("curves" in record for record in strict)
    assert summarise_removal(strict, 16)["methods"] == {}


def test_ties_are_drawn_several_times(tmp_path):
    """The mean control has a constant map: every order is a draw."""
    records = measured(tmp_path / "a.jsonl", EVERY, range(3), small("mean")).records
    assert [record["draws"]["last"] for record in records] == [3] * 3
    softmax = measured(tmp_path / "b.jsonl", EVERY, range(3), small("softmax")).records
    assert [record["draws"]["last"] for record in softmax] == [1] * 3


@pytest.mark.parametrize("fill", infsa.evaluate.FILLS)
def test_every_fill_is_measured(fill, tmp_path):
    settings = Removal(fill=fill, only_correct=False, min_probability=0.0, levels=3)
    summary = summarise_removal(measured(tmp_path / "a.jsonl", settings, range(2)).records, 16)
    assert summary["kept"] == 2
    assert summary["random"]["aoc"]["mean"] is not None


def test_removal_summary_of_known_curves():
    def record(morf, lerf, random):
        curves = {"last": {"morf": morf, "lerf": lerf}, "random order": {"morf": random}}
        return {"predicted": 1, "label": 1, "curves": curves, "draws": {"last": 1}}

    records = [record([0.8, 0.2, 0.0], [0.8, 0.8, 0.0], [0.8, 0.4, 0.0]), {"predicted": 0, "label": 1}]
    summary = summarise_removal(records, patches=4)
    assert summary["images"] == 2
    assert summary["kept"] == 1
    assert summary["top1"] == 0.5
    assert summary["fractions"] == [0, 0.5, 1]
    found = summary["methods"]["last"]
    for key, value in (("aoc", 0.625), ("lerf_auc", 0.75), ("abpc", 0.375), ("aoc_over_random", 0.125)):
        assert found[key]["mean"] == pytest.approx(value, abs=1e-6), key
    raw = summarise_removal(records, patches=4, normalise="none")
    assert raw["methods"]["last"]["lerf_auc"]["mean"] == pytest.approx(0.6, abs=1e-6)
    with pytest.raises(ValueError, match="got 'p0'"):
        summarise_removal(records, 4, "p0")


def test_box_summary_counts_what_it_drops():
    def record(boxes, scores):
        maps = {"last": scores, "random": [0.1, 0.2, 0.3, 0.4]}
        return {"size": [16, 16], "grid": [2, 2], "boxes": boxes, "maps": maps}

    records = [
        record([[0, 0, 8, 8]], [0.7, 0.1, 0.1, 0.1]),
        record([[0, 0, 16, 16]], [0.25] * 4),
        record([[0, 0, 2, 2]], [0.25] * 4),
        record([], [0.25] * 4),
    ]
    summary = summarise_boxes(records)
    assert summary["without_box"] == 1
    assert summary["uniform_maps"]["last"] == 2
    rule = summary["rules"]["centre"]
    assert (rule["images"], rule["no_positive"], rule["no_negative"]) == (1, 1, 1)
    assert rule["methods"]["last"]["roc"]["mean"] == 1
    assert rule["methods"]["centre"]["roc"]["mean"] == 0.5  # all four patches are as far from the middle
    assert rule["share"]["mean"] == 0.25
    assert rule["chance_ap"]["mean"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    assert summarise_boxes(records[3:])["rules"] == {}


def test_mean_over_runs():
    runs = [
        {"name": "x", "a": {"mean": 1.0, "deviation": 0.1}, "curve": [0.0, 1.0], "only": 1},
        {"name": "x", "a": {"mean": 3.0, "deviation": 0.3}, "curve": [1.0, 1.0]},
    ]
    found = over_runs(runs)
    assert found["name"] == "x"
    assert found["a"]["mean"] == 2
    assert found["a"]["over_runs"] == pytest.approx(2**0.5)
    assert found["a"]["over_images"] == pytest.approx(0.2)
    assert found["curve"]["mean"] == [0.5, 1.0]
    assert "only" not in found
    assert over_runs(runs[:1])["a"]["over_runs"] is None
    assert over_runs([None, {"x": 1}])["x"]["mean"] == 1


def test_chosen_images_depend_on_the_seed_alone():
    assert chosen_images(100, 10, 0) == chosen_images(100, 10, 0)
    assert chosen_images(100, 10, 0) != chosen_images(100, 10, 1)
    assert set(chosen_images(100, 10, 0)) < set(chosen_images(100, 20, 0))
    assert chosen_images(5, None) == chosen_images(5, 9) == [0, 1, 2, 3, 4]


def saved(folder, name, seed, attention):
    """A checkpoint file, as training leaves it."""
    return str(
        (infsa.models.save_weights(small(attention, seed), folder / name) / "model.safetensors").rename(
            folder / f"{name}.safetensors"
        )
    )


def test_a_study_groups_seeds(tmp_path):
    sources = [saved(tmp_path, f"infsa_linear-{seed}", seed, "infsa_linear") for seed in (0, 1)]
    subjects = [Subject.of(source) for source in [*sources, saved(tmp_path, "softmax-0", 0, "softmax")]]
    data = {subject.name: ("shapes", SHAPES) for subject in subjects}
    summary = study_quality(subjects, data, [EVERY], Boxes(), out=tmp_path / "out", images=4)
    assert list(summary["groups"]) == ["infsa_linear", "softmax"]
    assert summary["groups"]["infsa_linear"]["runs"] == 2
    areas = [summary["runs"][f"infsa_linear-{s}"]["removal"]["mean"]["methods"]["last"]["aoc"]["mean"] for s in (0, 1)]
    group = summary["groups"]["infsa_linear"]["removal"]["mean"]["methods"]["last"]["aoc"]
    assert group["mean"] == pytest.approx(np.mean(areas))
    assert group["over_runs"] == pytest.approx(np.std(areas, ddof=1))
    again = study_quality(subjects, data, [EVERY], Boxes(), out=tmp_path / "out", images=4)
    assert again["groups"] == summary["groups"]
    aligned = study_alignment(subjects, data, Aligning(steps=30), out=tmp_path / "out", images=3, samples=5)
    assert aligned["runs"]["softmax-0"]["layers"]["blocks.0.attn"]["samples"] == 5
    with pytest.raises(ValueError, match="score='logit'"):
        study_quality(subjects, data, [Removal(score="logit")], Boxes(), out=tmp_path)


def test_subjects_name_themselves(tmp_path):
    assert Subject.of("vit_tiny") == Subject("vit_tiny", "vit_tiny", "vit_tiny")
    assert Subject.of("runs/a-softmax-12.safetensors").group == "a-softmax"
    assert Subject.of("pure-1=runs/model") == Subject("pure-1", "pure", "runs/model")
    model = Subject.of(saved(tmp_path, "softmax-3", 3, "softmax")).load()
    assert not model.training
    assert torch.equal(model.head.weight, small("softmax", 3).head.weight)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Subject.of(tmp_path / "nowhere.safetensors").load()
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(ValueError, match="which model"):
        Subject.of(tmp_path / "foreign.safetensors").load()
    assert infsa.evaluate.class_names(model)[0] == "class 0"
    named = small("softmax")
    named.pretrained_cfg = {"label_names": ["ant", "bee", "cat", "dog", "elk"]}
    infsa.models.save_weights(named, tmp_path / "named")
    assert infsa.evaluate.class_names(Subject.of(tmp_path / "named").load()) == ["ant", "bee", "cat", "dog", "elk"]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (Removal, {"fill": "grey"}),
        (Removal, {"methods": ("gaze",)}),
        (Removal, {"draws": 0}),
        (Removal, {"score": "loss"}),
        (Boxes, {"methods": ("",)}),
        (Aligning, {"steps": 0}),
    ],
)
def test_wrong_settings_are_refused(settings, options):
    with pytest.raises(ValueError, match="must be"):
        settings(**options)
