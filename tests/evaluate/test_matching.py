"""Classes are matched by name: what does not match is said, what cannot be right is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infsa.evaluate.matching import UNKNOWN, match_classes
from tests.data.helpers import one_line

WORDS = st.lists(st.sampled_from(["ant", "bee", "cat", "dog", "eel", "fox"]), min_size=1, unique=True)


@given(model=WORDS, data=WORDS)
def test_names_decide_whatever_the_order(model, data):
    common = set(model) & set(data)
    if not common:
        return
    match = match_classes(model, data)
    assert match.classes == model
    for name, label in zip(data, match.labels.tolist(), strict=True):
        assert label == (model.index(name) if name in common else UNKNOWN)
    assert len(match.notes) == (not set(data) <= common) + (not set(model) <= common)


@pytest.mark.parametrize(
    ("model", "data", "labels"),
    [
        (["goldfish, Carassius auratus", "tabby, cat"], ["cat", "Goldfish"], [1, 0]),
        (["sea_lion", "Dog"], ["dog", "sea lion"], [1, 0]),
        (["crane", "cat", "crane"], ["cat", "crane"], [1, UNKNOWN]),  # which of the two?
        (["crane", "cat", "crane"], ["crane", "cat", "crane"], [0, 1, 2]),
        (["Cat", "cat"], ["cat", "Cat"], [1, 0]),
        (["a, b", "b, c"], ["a", "b", "c"], [0, UNKNOWN, 1]),
    ],
)
def test_names_that_are_written_otherwise(model, data, labels):
    assert match_classes(model, data).labels.tolist() == labels


def test_without_names_the_order_decides():
    assert np.array_equal(match_classes(2, ["cat", "dog"]).labels, [0, 1])
    assert match_classes(["cat", "dog"], ["0", "1"]).notes == []
    with pytest.raises(ValueError, match=one_line("the model has 3 classes, the dataset 2")):
        match_classes(3, ["cat", "dog"])


def test_no_name_in_common():
    (note,) = match_classes(["cat", "dog"], ["car", "bus"]).notes
    assert "no class in common" in note
    with pytest.raises(ValueError, match=one_line("2 classes .cat, dog.*3 .car, bus and 1 more.*rename the folders")):
        match_classes(["cat", "dog"], ["car", "bus", "van"])
