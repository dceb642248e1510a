"""Images, labels and boxes: a procedural set, readers, and transforms that boxes follow."""

from . import boxes
from .annotations import read_coco_json, read_loc_csv, read_tiny_imagenet, read_voc_xml
from .decode import UnreadableImage, decode
from .folders import ImageFiles, ImageFolder, ImageNetV2, TinyImageNet
from .keys import keyed_generator
from .registry import open_dataset
from .sample import ImageDataset, Sample
from .shapes import Shapes
from .skipping import SkipLog, SkippingDataset
from .tables import HuggingFace, NpzShard
from .transforms import TrainTransform, ValTransform, transform_for
from .views import Batch, Example, Views, collate

__all__ = [
    "Batch",
    "Example",
    "HuggingFace",
    "ImageDataset",
    "ImageFiles",
    "ImageFolder",
    "ImageNetV2",
    "NpzShard",
    "Sample",
    "Shapes",
    "SkipLog",
    "SkippingDataset",
    "TinyImageNet",
    "TrainTransform",
    "UnreadableImage",
    "ValTransform",
    "Views",
    "boxes",
    "collate",
    "decode",
    "keyed_generator",
    "open_dataset",
    "read_coco_json",
    "read_loc_csv",
    "read_tiny_imagenet",
    "read_voc_xml",
    "transform_for",
]
