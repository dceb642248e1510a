"""Images, labels and boxes: generated sets, readers, and transforms of images with their boxes."""

from . import boxes
from .annotations import read_coco_json, read_loc_csv, read_tiny_imagenet, read_voc_xml
from .decode import UnreadableImage, decode
from .digit_sums import DigitSums
from .folders import ImageFiles, ImageFolder, ImageNetV2, TinyImageNet
from .imagenet import open_imagenet
from .megapixel import MegapixelDigits
from .parts import Part, hold_out
from .randaugment import rand_augment
from .random_keys import keyed_generator
from .registry import open_dataset
from .sample import ImageDataset, Sample
from .shapes import Shapes
from .skipping import SkipLog, SkippingDataset
from .tables import HuggingFace, NpzShard, open_hugging_face
from .tars import TarImages
from .tasks import Task, Tasks
from .timm_readers import TorchDataset, open_timm
from .transforms import TrainTransform, ValTransform, transform_for
from .views import Batch, Example, Views, collate
from .webdataset import WebShards

__all__ = [
    "Batch",
    "DigitSums",
    "Example",
    "HuggingFace",
    "ImageDataset",
    "ImageFiles",
    "ImageFolder",
    "ImageNetV2",
    "MegapixelDigits",
    "NpzShard",
    "Part",
    "Sample",
    "Shapes",
    "SkipLog",
    "SkippingDataset",
    "TarImages",
    "Task",
    "Tasks",
    "TinyImageNet",
    "TorchDataset",
    "TrainTransform",
    "UnreadableImage",
    "ValTransform",
    "Views",
    "WebShards",
    "boxes",
    "collate",
    "decode",
    "hold_out",
    "keyed_generator",
    "open_dataset",
    "open_hugging_face",
    "open_imagenet",
    "open_timm",
    "rand_augment",
    "read_coco_json",
    "read_loc_csv",
    "read_tiny_imagenet",
    "read_voc_xml",
    "transform_for",
]
