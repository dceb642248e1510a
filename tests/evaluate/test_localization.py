"""ROC, precision, pointing and boxes: equal to scikit-learn and to loops, ties included."""

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infsa.evaluate import localization as loc


@st.composite
def scored(draw):
    n = draw(st.integers(2, 60))
    values = draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    scores, positive = rng.integers(0, values, n).astype(np.float32) / 7, rng.random(n) < rng.random()
    positive[0], positive[1] = True, False
    return torch.from_numpy(scores), torch.from_numpy(positive)


@settings(max_examples=150, deadline=None)
@given(scored())
def test_areas_equal_scikit_learn_with_ties(case):
    scores, positive = case
    assert float(loc.roc_auc(scores, positive)) == pytest.approx(
        sklearn.metrics.roc_auc_score(positive, scores), abs=1e-12
    )
    assert float(loc.average_precision(scores, positive)) == pytest.approx(
        sklearn.metrics.average_precision_score(positive, scores), abs=1e-12
    )


@settings(max_examples=50, deadline=None)
@given(scored())
def test_curves_equal_scikit_learn(case):
    scores, positive = case
    false, true, _ = sklearn.metrics.roc_curve(positive, scores, drop_intermediate=False)
    x, y = loc.roc_curve(scores, positive)
    np.testing.assert_allclose(x, false, atol=1e-12)
    np.testing.assert_allclose(y, true, atol=1e-12)
    precision, recall, _ = sklearn.metrics.precision_recall_curve(positive, scores)
    x, y = loc.precision_recall_curve(scores, positive)
    np.testing.assert_allclose(x, recall[-2::-1], atol=1e-12)
    np.testing.assert_allclose(y, precision[-2::-1], atol=1e-12)


def test_batches_equal_single_images():
    scores, positive = torch.rand(5, 30).mul(6).round(), torch.rand(5, 30) < 0.4
    for measure in (loc.roc_auc, loc.average_precision, loc.pointing):
        single = torch.stack([measure(s, p) for s, p in zip(scores, positive, strict=True)])
        torch.testing.assert_close(measure(scores, positive), single, rtol=0, atol=0)


def test_extremes():
    positive = torch.tensor([True, True, False, False, False])
    best, worst = positive.float(), (~positive).float()
    assert loc.roc_auc(best, positive) == 1
    assert loc.roc_auc(worst, positive) == 0
    assert loc.roc_auc(torch.ones(5), positive) == 0.5
    assert loc.average_precision(best, positive) == 1
    assert float(loc.average_precision(torch.ones(5), positive)) == pytest.approx(0.4)
    assert loc.pointing(torch.ones(5), positive) == pytest.approx(0.4)


def test_chance_precision_is_the_mean_over_all_orders():
    """Every order of 6 patches, 2 of them positive, equally often: the 15 places of the positives."""
    import itertools

    exact = []
    for places in itertools.combinations(range(6), 2):
        positive = torch.zeros(6, dtype=torch.bool)
        positive[list(places)] = True
        exact.append(float(loc.average_precision(-torch.arange(6.0), positive)))
    assert float(loc.chance_precision(torch.tensor(2), 6)) == pytest.approx(np.mean(exact), abs=1e-12)


def test_both_rules_for_a_patch():
    boxes = np.array([[0, 0, 9, 16]], np.float32)  # 9 of 16 columns: one column into the second patch
    assert loc.patch_labels(boxes, (16, 16), (2, 2), "centre").tolist() == [[True, False]] * 2
    assert loc.patch_labels(np.array([[0, 0, 13, 6]], np.float32), (16, 16), (2, 2), "centre").tolist() == [
        [True, True],
        [False, False],
    ]
    assert loc.patch_labels(np.array([[0, 0, 13, 6]], np.float32), (16, 16), (2, 2), "area").tolist() == [
        [True, False],
        [False, False],
    ]
    with pytest.raises(ValueError, match=r"rule must be one of .*'corner'"):
        loc.patch_labels(boxes, (16, 16), (2, 2), "corner")


def test_best_box_equals_a_loop_over_thresholds():
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = torch.from_numpy(rng.integers(0, 6, (5, 7)).astype(np.float32))
        corner = rng.integers(0, 20, 2)
        boxes = np.array([[*corner, *(corner + rng.integers(4, 20, 2))]], np.float32)
        assert loc.best_box_iou(scores, boxes, (56, 40)) == pytest.approx(naive_best_box(scores, boxes[0]), abs=1e-9)


def naive_best_box(scores, box, patch=8):
    best = 0.0
    for t in set(scores.flatten().tolist()):
        rows, columns = np.nonzero(scores.numpy() >= t)
        found = columns.min() * patch, rows.min() * patch, (columns.max() + 1) * patch, (rows.max() + 1) * patch
        width = max(0, min(found[2], box[2]) - max(found[0], box[0]))
        height = max(0, min(found[3], box[3]) - max(found[1], box[1]))
        area = (found[2] - found[0]) * (found[3] - found[1]) + (box[2] - box[0]) * (box[3] - box[1])
        best = max(best, width * height / (area - width * height))
    return best


def test_centre_map_is_symmetric_and_peaks_in_the_middle():
    centre = loc.centre_map((5, 7))
    assert float(centre.sum()) == pytest.approx(1)
    assert centre.argmax() == 2 * 7 + 3
    torch.testing.assert_close(centre, centre.flip(0, 1))
