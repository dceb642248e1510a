"""ImageNet-1K in miniature, in every form: the same images get the same labels."""

import pytest

from infsa.data import open_dataset, open_imagenet

from .helpers import one_line, plain_image, red, tar_bytes, write_tar

WNIDS = ["n01440764", "n01443537", "n02119789", "n03000684"]
DEVKIT_ORDER = [2, 0, 3, 1]  # devkit class i + 1 is WNIDS[DEVKIT_ORDER[i]]: not the sorted order
TRUTH = [3, 0, 2, 2, 1]  # labels of the validation images
XML = "<annotation><object><name>{}</name><bndbox><xmin>0</xmin><ymin>1</ymin><xmax>5</xmax><ymax>6</ymax></bndbox>"
XML += "</object></annotation>"


def train_files():
    """(wnid, file name, bytes) of two images per class; red is ten times the label."""
    return [
        (wnid, f"{wnid}_{i}.JPEG", plain_image(10 * label + i)) for label, wnid in enumerate(WNIDS) for i in range(2)
    ]


def val_files():
    return [(f"ILSVRC2012_val_{i + 1:08d}.JPEG", plain_image(10 * label)) for i, label in enumerate(TRUTH)]


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_train(folder):
    for wnid, name, content in train_files():
        written(folder / wnid / name, content)


def write_folders(root, val="val"):
    write_train(root / "train")
    for (name, content), label in zip(val_files(), TRUTH, strict=True):
        written(root / val / WNIDS[label] / name, content)


def loc_csv(names_and_labels):
    rows = [f"{name},{WNIDS[label]} 0 1 5 6 " for name, label in names_and_labels]
    return "\n".join(["ImageId,PredictionString", *rows, ""])


def write_kaggle(root):
    data, boxes = root / "ILSVRC" / "Data" / "CLS-LOC", root / "ILSVRC" / "Annotations" / "CLS-LOC"
    write_train(data / "train")
    for name, content in val_files():
        written(data / "val" / name, content)
    stems = [name.removesuffix(".JPEG") for name, _ in val_files()]
    written(root / "LOC_val_solution.csv", loc_csv(zip(stems, TRUTH, strict=True)))
    for stem, label in zip(stems, TRUTH, strict=True):
        written(boxes / "val" / f"{stem}.xml", XML.format(WNIDS[label]))
    written(boxes / "train" / WNIDS[0] / f"{WNIDS[0]}_0.xml", XML.format(WNIDS[0]))


def devkit_files(truth=None):
    import io

    import numpy as np
    from scipy.io import savemat

    ids, wnids = [1, 2, 3, 4, 5], [*(WNIDS[i] for i in DEVKIT_ORDER), "n00001740"]  # the last is their ancestor
    fields = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("num_children", object)]
    synsets = np.array([(i, wnid, "a, b", int(i == 5)) for i, wnid in zip(ids, wnids, strict=True)], fields)
    stream = io.BytesIO()
    savemat(stream, {"synsets": synsets[:, None]})
    numbers = truth or [DEVKIT_ORDER.index(label) + 1 for label in TRUTH]
    return {
        "meta.mat": stream.getvalue(),
        "ILSVRC2012_validation_ground_truth.txt": "".join(f"{number}\n" for number in numbers).encode(),
    }


def write_tars(root, devkit="folder"):
    inner = [
        (f"{wnid}.tar", tar_bytes([(name, content) for own, name, content in train_files() if own == wnid]))
        for wnid in reversed(WNIDS)
    ]
    write_tar(root / "ILSVRC2012_img_train.tar", inner)
    write_tar(root / "ILSVRC2012_img_val.tar", reversed(val_files()))
    write_devkit(root, devkit)


def write_devkit(root, form, truth=None):
    files = devkit_files(truth)
    if form == "folder":
        for name, content in files.items():
            written(root / "ILSVRC2012_devkit_t12" / "data" / name, content)
    else:
        named = [(f"ILSVRC2012_devkit_t12/data/{name}", content) for name, content in files.items()]
        written(root / "ILSVRC2012_devkit_t12.tar.gz", tar_bytes(named, "w:gz"))


def flat_with(form):
    def write(root):
        write_train(root / "train")
        for name, content in val_files():
            written(root / "val" / name, content)
        write_devkit(root, form)

    return write


LAYOUTS = {
    "folders": write_folders,
    "validation": lambda root: write_folders(root, "validation"),
    "kaggle": write_kaggle,
    "tars": write_tars,
    "tars, packed devkit": lambda root: write_tars(root, "tar.gz"),
    "flat, devkit": flat_with("folder"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_form_gives_the_same_labels(tmp_path, layout):
    LAYOUTS[layout](tmp_path)
    train, val = (open_dataset(f"imagenet:{tmp_path}", split=split) for split in ("train", "val"))
    assert train.classes == val.classes == WNIDS
    assert [(red(sample), sample.label) for sample in train] == [(10 * k + i, k) for k in range(4) for i in range(2)]
    assert all(red(sample) == 10 * sample.label for sample in val)
    assert sorted(sample.label for sample in val) == sorted(TRUTH)


@pytest.mark.parametrize("inside", ["", "ILSVRC", "ILSVRC/Data", "ILSVRC/Data/CLS-LOC"])
def test_the_kaggle_tree_has_boxes_wherever_one_points(tmp_path, inside):
    write_kaggle(tmp_path)
    train, val = (open_imagenet(tmp_path / inside, split) for split in ("train", "val"))
    assert [sample.boxes.tolist() for sample in val] == [[[0, 1, 5, 6]]] * 5
    assert [len(sample.boxes) for sample in train] == [1] + [0] * 7


def test_boxes_come_from_the_table_where_there_is_no_xml(tmp_path):
    write_folders(tmp_path)
    written(tmp_path / "LOC_train_solution.csv", loc_csv([(f"{WNIDS[2]}_1", 2)]))
    train = open_imagenet(tmp_path)
    assert [len(sample.boxes) for sample in train] == [0] * 5 + [1] + [0] * 2


def test_a_damaged_xml_is_skipped_with_its_name(tmp_path):
    write_kaggle(tmp_path)
    written(tmp_path / "ILSVRC/Annotations/CLS-LOC/val/ILSVRC2012_val_00000002.xml", "<annotation>")
    val = open_imagenet(tmp_path, "val")
    assert val[1].name == "val/ILSVRC2012_val_00000003.JPEG"
    assert val.skipped.names == ["val/ILSVRC2012_val_00000002.JPEG"]


def test_validation_alone_and_a_class_without_validation_images(tmp_path):
    write_tars(tmp_path)
    (tmp_path / "ILSVRC2012_img_train.tar").unlink()
    assert open_imagenet(tmp_path, "val").classes == WNIDS
    write_folders(tmp_path / "folders")
    for path in (tmp_path / "folders" / "val" / WNIDS[1]).glob("*"):
        path.unlink()
    val = open_imagenet(tmp_path / "folders", "val")
    assert val.classes == WNIDS
    assert all(red(sample) == 10 * sample.label for sample in val)


def emptied(root):
    write_folders(root)
    for path in (root / "train" / WNIDS[1]).glob("*"):
        path.unlink()


def unlabelled(root):
    write_tars(root)
    for path in (root / "ILSVRC2012_devkit_t12" / "data").glob("*"):
        path.unlink()
    (root / "ILSVRC2012_devkit_t12" / "data").rmdir()
    (root / "ILSVRC2012_devkit_t12").rmdir()


def short_truth(root):
    write_tars(root)
    write_devkit(root, "folder", truth=[1, 2])


def strange_class(root):
    write_folders(root)
    written(root / "train" / "cat" / "a.JPEG", plain_image(0))


@pytest.mark.parametrize(
    ("write", "split", "message"),
    [
        (lambda root: None, "train", r"looked for train, ILSVRC/Data/CLS-LOC/train and ILSVRC2012_img_train.tar"),
        (emptied, "train", "class 'n01443537' has no images"),
        (unlabelled, "val", "their labels need LOC_val_solution.csv or ILSVRC2012_devkit_t12 beside them"),
        (short_truth, "val", "has no label for ILSVRC2012_val_00000003"),
        (lambda root: (write_tars(root), write_devkit(root, "folder", [9] * 5)), "val", "line 1: no class '9'"),
        (
            lambda root: (unlabelled(root), written(root / "ILSVRC2012_devkit_t12.tar.gz", "no")),
            "val",
            "complete devkit",
        ),
        (strange_class, "train", "WordNet ids such as n01440764, got 'cat'"),
        (lambda root: written(root / "ILSVRC2012_img_train.tar", "no tar"), "train", "not a complete uncompressed tar"),
        (write_folders, "test", "split must be one of"),
    ],
)
def test_refusals_are_one_line(tmp_path, write, split, message):
    write(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=one_line(message)):
        open_imagenet(tmp_path, split)
