"""Accuracy against scikit-learn and torchmetrics, on one process and on two, and on a miniature ImageNet-V2."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, log_loss, recall_score, top_k_accuracy_score
from torchmetrics.functional.classification import multiclass_accuracy

from infsa.data.folders import IMAGENET_V2, ImageNetV2
from infsa.evaluate.accuracy import Accuracy, evaluate_model, measure_accuracy, unique_names, validation_loader
from tests.data.helpers import one_line
from tests.models.helpers import small
from tests.train.helpers import together

CLASSES = [f"class {i}" for i in range(9)]


def answers(count=200, classes=9, seed=0):
    """Logits that are right more often than not, and labels; the last class never occurs."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes - 1, (count,), generator=rng)
    logits = torch.randn(count, classes, generator=rng)
    logits[torch.arange(count), labels] += 1
    return logits, labels


def batches(logits, labels, size=32):
    return list(zip(logits.split(size), labels.split(size), strict=True))


def test_against_scikit_learn_and_torchmetrics():
    logits, labels = answers()
    found = measure_accuracy(lambda images: images, batches(logits, labels), CLASSES)
    guess, probabilities, every = logits.argmax(1), logits.double().softmax(1).numpy(), list(range(9))
    assert found.images == 200
    assert found.top1 == pytest.approx(accuracy_score(labels, guess), abs=1e-12)
    assert found.top5 == pytest.approx(top_k_accuracy_score(labels, logits, k=5, labels=every), abs=1e-12)
    assert found.loss == pytest.approx(log_loss(labels, probabilities, labels=every), rel=1e-6)
    recalls = recall_score(labels, guess, labels=every[:-1], average=None)
    assert list(found.per_class.values()) == [*(pytest.approx(recall) for recall in recalls), None]
    assert found.as_dict()["mean_per_class"] == pytest.approx(recalls.mean())
    theirs = multiclass_accuracy(logits, labels, 9, average="micro", top_k=5)
    assert found.top5 == pytest.approx(float(theirs), abs=1e-6)


def test_the_size_of_the_batches_does_not_matter():
    logits, labels = answers()
    one = measure_accuracy(lambda images: images, batches(logits, labels, 7), CLASSES)
    other = measure_accuracy(lambda images: images, batches(logits, labels, 200), CLASSES)
    assert (one.hits, one.counts, one.top1, one.top5) == (other.hits, other.counts, other.top1, other.top5)
    assert one.loss == pytest.approx(other.loss, rel=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
def test_with_few_classes_top5_is_certain(classes):
    logits, labels = answers(20, classes)
    assert measure_accuracy(lambda images: images, batches(logits, labels), CLASSES[:classes]).top5 == 1


def test_half_precision_logits_are_summed_exactly():
    logits, labels = answers(3000)
    found = measure_accuracy(lambda images: images.bfloat16(), batches(logits, labels, 3000), CLASSES)
    expected = torch.nn.functional.cross_entropy(logits.bfloat16().double(), labels)
    assert found.loss == pytest.approx(float(expected), rel=1e-5)


def test_no_images_are_refused():
    with pytest.raises(ValueError, match=one_line("no images")):
        measure_accuracy(lambda images: images, [], CLASSES)


def test_another_number_of_classes_is_one_line():
    logits, labels = answers()
    with pytest.raises(ValueError, match=one_line("the model has 9 classes, the dataset 8")):
        measure_accuracy(lambda images: images, batches(logits, labels), CLASSES[:8])


def test_names_that_occur_twice_stay_apart():
    assert unique_names(["crane", "cat", "crane"]) == ["crane (0)", "cat", "crane (2)"]
    result = Accuracy(4, 0.5, 1.0, 0.1, ["crane", "cat", "crane"], [1, 0, 1], [1, 2, 1])
    assert result.per_class == {"crane (0)": 1.0, "cat": 0.0, "crane (2)": 1.0}
    json.dumps(result.as_dict(), allow_nan=False)


class Numbers:
    """A dataset of 7 plain images whose red is their index."""

    classes = ("a", "b", "c")

    def __len__(self):
        return 7

    def __getitem__(self, index):
        from infsa.data.sample import Sample

        return Sample(Image.new("RGB", (8, 8), (index, 0, 0)), index % 3, np.zeros((0, 4), np.float32), str(index))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_together_see_each_image_once(world):
    from infsa.data import ValTransform

    plain = ValTransform(8, mean=(0, 0, 0), std=(1, 1, 1))
    seen = [
        int(value)
        for rank in range(world)
        for images, *_ in validation_loader(Numbers(), plain, 2, 0, rank, world)
        for value in images[:, 0, 0, 0] * 255 + 0.5
    ]
    assert sorted(seen) == list(range(7))


def measure_in_two(folder):
    """One of two ranks: its third or two thirds of the answers, and forward passes counted."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    logits, labels = answers()
    part = slice(0, 130) if dist.get_rank() == 0 else slice(130, 200)
    passes = []
    own = batches(logits[part], labels[part])
    found = measure_accuracy(lambda images: passes.append(1) or images, own, CLASSES, rounds=5)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps([found.as_dict(), found.counts, len(passes)]))
    dist.destroy_process_group()


def test_two_ranks_together_are_one(tmp_path):
    assert together(2, measure_in_two, tmp_path) == [0, 0]
    one = measure_accuracy(lambda images: images, batches(*answers()), CLASSES)
    for rank in range(2):
        found, counts, passes = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == one.as_dict() | {"loss": pytest.approx(one.loss, rel=1e-6)}
        assert (counts, passes) == (one.counts, 5)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """ImageNet-V2 with the classes 0, 2, 10 and 999; the image of class c has the grey value c % 251."""
    root = tmp_path_factory.mktemp("v2")
    for folder in IMAGENET_V2.values():
        for label in (0, 2, 10, 999):
            place = root / folder / str(label)
            place.mkdir(parents=True)
            Image.new("RGB", (40, 30), (label % 251,) * 3).save(place / "a.png")
    return root


class ByGrey(torch.nn.Module):
    """Knows the true label of every image of the tree from its grey value."""

    def forward(self, images):
        mean, std = images.new_tensor([0.485, 0.456, 0.406]), images.new_tensor([0.229, 0.224, 0.225])
        greys = ((images.mean((2, 3)) * std + mean).mean(1) * 255).round().long()
        known = torch.tensor([0, 2, 10, 999])
        return torch.nn.functional.one_hot(known[(known % 251 == greys[:, None]).long().argmax(1)], 1000).float()


@pytest.mark.parametrize("variant", IMAGENET_V2)
def test_imagenet_v2_labels_are_the_numbers_of_the_folders(variant, tree):
    dataset = ImageNetV2(tree, variant=variant)
    assert [sample.label for sample in (dataset[i] for i in range(4))] == [0, 2, 10, 999]
    from infsa.data import ValTransform

    found = measure_accuracy(ByGrey(), validation_loader(dataset, ValTransform(32)), dataset.classes)
    assert (found.images, found.top1) == (4, 1.0)
    seen = {name: share for name, share in found.per_class.items() if share is not None}
    assert seen == {"0": 1.0, "2": 1.0, "10": 1.0, "999": 1.0}


def test_evaluating_a_model_by_the_name_of_the_data(tree):
    model = small(num_classes=1000)
    found = evaluate_model(model, f"imagenetv2:{tree}", "top-images", batch_size=3)
    assert found.images == 4
    assert [label for label, count in enumerate(found.counts) if count] == [0, 2, 10, 999]
    assert not model.training


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_images_are_named_and_not_counted(workers, tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.new("RGB", (40, 40)).save(tmp_path / label / "0.png")
    (tmp_path / "a" / "1.png").write_bytes(b"damaged")
    found = evaluate_model(small(num_classes=2), f"folder:{tmp_path}", workers=workers)
    assert found.as_dict()["skipped"] == ["a/1.png"]
    assert found.images == 2  # the image that stands in for a damaged one would count twice
