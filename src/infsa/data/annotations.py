"""Box annotations as published, each read into one form: image → (boxes (n, 4), labels).

Whatever the file counts from or includes, the boxes that come out start at 0 and exclude x1 and y1.
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .boxes import as_boxes
from .sample import BoxArray

Boxed = tuple[BoxArray, list[str]]  # (n, 4) and the label of each
Annotations = Mapping[str, Boxed]
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_loc_csv(path: str | Path) -> dict[str, Boxed]:
    """ImageNet's localisation table: a header, then ``image,label x0 y0 x1 y1 label x0 y0 x1 y1 …``."""
    with open(path, newline="", encoding="utf-8") as lines:
        rows = csv.reader(lines)
        next(rows, None)
        found: dict[str, Boxed] = {}
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if len(row) != 2:
                raise ValueError(f"{where}: expected an image and its boxes, got {len(row)} columns")
            words = row[1].split()
            if len(words) % 5:
                raise ValueError(f"{where}: expected label x0 y0 x1 y1 in groups of five, got {len(words)} words")
            groups = [words[start : start + 5] for start in range(0, len(words), 5)]
            found[row[0]] = _boxes([group[1:] for group in groups], where), [group[0] for group in groups]
    return found


def read_voc_xml(path: str | Path, one_based: bool = True) -> dict[str, Boxed]:
    """Pascal VOC: one XML file, or a folder of them; images are named by the stem of their file.

    VOC counts pixels from 1 and includes the last, so only the first corner moves. ImageNet's XML files have the
    same form but count from 0: pass ``one_based=False`` and their corners are taken as they are.
    """
    path = Path(path)
    files = sorted(path.glob("*.xml")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no .xml files in {path}")
    return {file.stem: _voc_objects(file, one_based) for file in files}


def _voc_objects(file: Path, one_based: bool) -> Boxed:
    try:
        root = ElementTree.parse(file).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{file}, line {error.position[0]}: not well-formed XML") from error
    corners, labels = [], []
    for number, item in enumerate(root.iter("object"), start=1):
        texts = {field: item.findtext(field) for field in ("name", *(f"bndbox/{corner}" for corner in CORNERS))}
        for field, text in texts.items():
            if not text:
                raise ValueError(f"{file}, object {number}: <{field}> is missing")
        label, *words = (str(text) for text in texts.values())
        labels.append(label)
        corners.append(_boxes([words], f"{file}, object {number}")[0])
    boxes = as_boxes(corners)
    boxes[:, :2] -= one_based
    return boxes, labels


def read_tiny_imagenet(path: str | Path) -> dict[str, Boxed]:
    """Tiny-ImageNet: ``val_annotations.txt``, or the ``…_boxes.txt`` of one training class. Corners are inclusive."""
    found: dict[str, Boxed] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        words, where = line.split(), f"{path}, line {number}"
        if len(words) not in (5, 6):
            raise ValueError(f"{where}: expected image [class] x0 y0 x1 y1, got {len(words)} words")
        label = words[1] if len(words) == 6 else words[0].split("_")[0]
        boxes = _boxes([words[-4:]], where)
        boxes[:, 2:] += 1
        found[words[0]] = boxes, [label]
    return found


def read_coco_json(path: str | Path, crowd: bool = False) -> dict[str, Boxed]:
    """COCO instances: boxes are x, y, width, height; images are named by ``file_name``, labels by category.

    Boxes drawn around a crowd are left out unless ``crowd`` is set. An image without boxes gives (0, 4).
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error
    images = {_field(item, "id", f"{path}, images[{i}]"): item for i, item in _items(content, "images", path)}
    names = {item.get("id"): item.get("name") for _, item in _items(content, "categories", path)}
    corners: dict[Any, list[BoxArray]] = {image: [] for image in images}
    labels: dict[Any, list[str]] = {image: [] for image in images}
    for i, item in _items(content, "annotations", path):
        where = f"{path}, annotations[{i}]"
        image, category = _field(item, "image_id", where), _field(item, "category_id", where)
        if image not in images:
            raise ValueError(f"{where}: image_id {image!r} is not among the images")
        if category not in names:
            raise ValueError(f"{where}: category_id {category!r} is not among the categories")
        if item.get("iscrowd") and not crowd:
            continue
        box = _field(item, "bbox", where)
        if not (isinstance(box, list) and len(box) == 4 and all(isinstance(value, int | float) for value in box)):
            raise ValueError(f"{where}: bbox must be four numbers x, y, width, height, got {box!r}")
        x, y, width, height = box
        corners[image].append(_boxes([[x, y, x + width, y + height]], where)[0])
        labels[image].append(str(names[category]))
    return {
        _field(item, "file_name", f"{path}, image {image!r}"): (as_boxes(corners[image]), labels[image])
        for image, item in images.items()
    }


def _items(content: Any, field: str, path: str | Path) -> list[tuple[int, dict[str, Any]]]:
    items = content.get(field) if isinstance(content, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"{path}: {field!r} must be a list of objects")
    return list(enumerate(items))


def _field(item: dict[str, Any], field: str, where: str) -> Any:
    if field not in item:
        raise ValueError(f"{where}: {field!r} is missing")
    return item[field]


def _boxes(corners: list[Any], where: str) -> BoxArray:
    try:
        return as_boxes([[float(value) for value in corner] for corner in corners])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
