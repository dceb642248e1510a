"""Annotation readers on miniature files, whole and damaged."""

import json

import pytest

from infsa.data import read_coco_json, read_loc_csv, read_tiny_imagenet, read_voc_xml

VOC = "<annotation><object><name>dog</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>{}</xmax><ymax>9</ymax></bndbox>"
VOC += "</object></annotation>"
COCO = {
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}],
    "categories": [{"id": 3, "name": "cat"}],
    "annotations": [
        {"image_id": 7, "category_id": 3, "bbox": [1, 2, 10, 20.5]},
        {"image_id": 7, "category_id": 3, "bbox": [0, 0, 50, 50], "iscrowd": 1},
    ],
}


def written(path, text):
    path.write_text(text)
    return path


def plain(annotations):
    return {name: (boxes.tolist(), labels) for name, (boxes, labels) in annotations.items()}


def test_loc_csv(tmp_path):
    text = "ImageId,PredictionString\nval_1,n01 10 20 30 40 n02 0 0 5 6 \nval_2,n03 1 1 2 2\n"
    assert plain(read_loc_csv(written(tmp_path / "loc.csv", text))) == {
        "val_1": ([[10, 20, 30, 40], [0, 0, 5, 6]], ["n01", "n02"]),
        "val_2": ([[1, 1, 2, 2]], ["n03"]),
    }


def test_voc_xml_counts_from_one_unless_told(tmp_path):
    written(tmp_path / "000005.xml", VOC.format(8))
    assert plain(read_voc_xml(tmp_path)) == {"000005": ([[0, 1, 8, 9]], ["dog"])}
    assert plain(read_voc_xml(tmp_path / "000005.xml", one_based=False)) == {"000005": ([[1, 2, 8, 9]], ["dog"])}


def test_tiny_imagenet_corners_are_inclusive(tmp_path):
    val = written(tmp_path / "val_annotations.txt", "val_0.JPEG\tn03\t0\t32\t44\t62\n")
    train = written(tmp_path / "n01_boxes.txt", "n01_0.JPEG\t0\t10\t63\t58\n")
    assert plain(read_tiny_imagenet(val)) == {"val_0.JPEG": ([[0, 32, 45, 63]], ["n03"])}
    assert plain(read_tiny_imagenet(train)) == {"n01_0.JPEG": ([[0, 10, 64, 59]], ["n01"])}


def test_coco_json(tmp_path):
    path = written(tmp_path / "coco.json", json.dumps(COCO))
    assert plain(read_coco_json(path)) == {"a.jpg": ([[1, 2, 11, 22.5]], ["cat"]), "b.jpg": ([], [])}
    assert len(read_coco_json(path, crowd=True)["a.jpg"][0]) == 2


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_loc_csv, "h,h\nval_1,n01 10 20 30\n", "file, line 2: .*got 4 words"),
        (read_loc_csv, "h,h\nval_1,n01 1 2 3 x\n", "file, line 2: .*'x'"),
        (read_loc_csv, "h,h\nval_1,n01 9 2 3 4\n", "file, line 2: .*x0 ≤ x1"),
        (read_loc_csv, "h,h\nval_1\n", "file, line 2: .*got 1 columns"),
        (read_voc_xml, "<annotation>\n<object></annotation>", "file, line 2: not well-formed"),
        (read_voc_xml, VOC.format(""), "file, object 1: <bndbox/xmax> is missing"),
        (read_voc_xml, VOC.format("wide"), "file, object 1: .*'wide'"),
        (read_tiny_imagenet, "a.JPEG n01 0 0 5 5\nb.JPEG 1 2\n", "file, line 2: .*got 3 words"),
        (read_coco_json, "{", "file, line 1: not JSON"),
        (read_coco_json, "{}", "file: 'images' must be a list"),
        (read_coco_json, json.dumps(COCO | {"annotations": [{"image_id": 9, "category_id": 3}]}), r"\[0\]: image_id 9"),
        (read_coco_json, json.dumps(COCO | {"annotations": [{"image_id": 7, "category_id": 3}]}), r"\[0\]: 'bbox'"),
    ],
)
def test_malformed_files_are_named_with_the_place(tmp_path, read, text, message):
    with pytest.raises(ValueError, match=rf"^[^\n]*{message}[^\n]*$"):
        read(written(tmp_path / "file", text))
