"""How a converted model learns from the original: stages, rates, views; and the images, with labels or without."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ..data import ImageDataset, ImageFiles, SkipLog
from ..data.paths import existing_folder, images_below
from .feed import open_splits, skip_log
from .fitting import smaller_batch
from .recipe import Recipe

STAGES = ("layers", "logits", "labels")


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a converted model learns from the original."""

    data: str = "shapes"  # a name of infsa.data.open_dataset, or images:FOLDER without labels
    data_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # for open_dataset
    seed: int = 0
    layer_epochs: int = 2  # attention outputs of every layer on its own
    layer_lr: float = 1e-3
    logit_epochs: int = 5  # class probabilities of the whole model
    logit_lr: float = 5e-4
    label_epochs: int = 0  # cross entropy; needs labels
    label_lr: float = 1e-4
    temperature: float = 2.0  # of the class probabilities
    label_smoothing: float = 0.1
    mixup: float = 0.0  # in the stages logits and labels
    cutmix: float = 0.0
    warmup: float = 0.1  # share of a stage
    optimizer: str = "adamw"  # a name of timm.optim.list_optimizers()
    weight_decay: float = 0.02
    clip_norm: float = 1.0
    batch_size: int = 128
    image_size: int = 224
    crop_min: float = 0.35
    jitter: tuple[float, ...] = (0.3, 0.3, 0.3)
    interpolation: str = "bicubic"
    loader: Literal["workers", "resident"] = "workers"
    workers: int = 2
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    compile: bool = False
    save_every: int = 500  # steps between checkpoints; the end of a stage is always saved
    log_every: int = 50

    def __post_init__(self) -> None:
        for name in ("layer_epochs", "logit_epochs", "label_epochs", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        for name in ("batch_size", "image_size", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite, got {self.temperature}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must lie in [0, 1), got {self.warmup}")

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON gives them back."""
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    def with_batch_for(self, images: int) -> "Adaptation":
        """The plan with a batch that so many training images fill a few times."""
        return self if self.batch_size <= images else dataclasses.replace(self, batch_size=smaller_batch(images))

    def epochs(self, stage: str) -> int:
        """How long a stage lasts."""
        return getattr(self, f"{stage[:-1]}_epochs")

    def recipe(self, stage: str) -> Recipe:
        """The recipe of a stage: its rates, and the views and batches that all share."""
        shared = {field.name for field in dataclasses.fields(Recipe)} & {f.name for f in dataclasses.fields(self)}
        fields = {name: getattr(self, name) for name in shared} | {"compile": "on" if self.compile else "off"}
        epochs = max(1, self.epochs(stage))
        resize = {"val_resize": self.image_size, "epochs": epochs, "warmup_epochs": self.warmup * epochs}
        return Recipe(lr=getattr(self, f"{stage[:-1]}_lr"), **resize, **fields)  # type: ignore[arg-type]


def usual_side(model: nn.Module) -> int:
    """The side of the images that a model of timm, Hugging Face or torchvision was built for; 224 if it says none."""
    config, default = getattr(model, "config", None), getattr(model, "default_cfg", None) or {}
    places = (getattr(model, "patch_embed", None), "img_size"), (model, "image_size"), (config, "image_size")
    found = [size for place, name in places if (size := getattr(place, name, None))]
    found.append(default.get("input_size", (3, 224))[1:])
    return int(found[0] if isinstance(found[0], int) else found[0][0])


def open_images(plan: Adaptation, out: Path) -> tuple[ImageDataset, ImageDataset, bool]:
    """Training and validation images and whether they have labels; of ``images:FOLDER`` every tenth is for
    validation.
    """
    kind, _, path = plan.data.partition(":")
    if kind != "images":
        return *open_splits(plan.recipe("logits"), out), True
    files = sorted(images_below(existing_folder(path)))
    if len(files) < 2:
        raise ValueError(f"{path} holds {len(files)} images; at least 2 are needed")
    logs = {split: SkipLog(skip_log(out, split)) for split in ("train", "val")}
    chosen = {"val": files[::10], "train": [file for i, file in enumerate(files) if i % 10]}
    train, val = (
        ImageFiles(path, [(file, 0) for file in chosen[split]], ["unlabelled"], skipped=logs[split])
        for split in ("train", "val")
    )
    return train, val, False
