"""Recipes: everything that decides what a training run computes, as one flat dataclass.

A run is a recipe and a seed. The fields below, the three named recipes and the resolved file that is saved with every
run all have the same form, so a saved recipe can be read back and run again.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run trains, on what, and how. Every field can be set on the command line or in a TOML file.

    Example:
        >>> recipe = RECIPES["tiny"].override({"epochs": 50, "lr": "5e-4"})
        >>> recipe.lr
        0.0005
    """

    # What
    model: str = "infvit_linear_tiny"  # architecture, a name of infsa.list_models(); empty: that of --init
    model_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # for create_model, such as gamma or depth
    data: str = "shapes"  # dataset, such as shapes, folder:PATH or npz:PATH
    val_data: str = ""  # another dataset to validate on; empty: the validation split of --data
    val_share: float = 0.0  # share of training images held out; 0: the data's validation split, or 0.2 if it has none
    data_options: dict[str, Any] = dataclasses.field(default_factory=dict)  # for open_dataset, such as classes
    init: str = ""  # weights to start from: shipped model, file, folder, run, timm:NAME or hf:NAME; empty: random
    weight_init: Literal["normal", "xavier", "preserving"] = "normal"  # random weights; see InfViT.init_weights
    seed: int = 0  # random seed of initial weights, data order, augmentation and dropout

    # Optimisation
    epochs: int = 300  # passes over the training images
    batch_size: int = 64  # images per optimiser step, over all devices and accumulation steps
    accumulate: int = 1  # gradient accumulation steps per batch
    optimizer: str = "adamw"  # a name from timm.optim.list_optimizers()
    lr: float = 5e-4  # peak learning rate
    lr_final: float = 0.0  # learning rate at the end of the cosine schedule
    layer_decay: float = 1.0  # learning rate of a block relative to the next one; 1: equal for all
    warmup_epochs: float = 10.0  # epochs of linear warm-up from 0
    weight_decay: float = 2.5e-2  # weight decay; none for biases, norms, tokens and positions
    beta2: float = 0.999  # second beta of Adam-like optimisers
    clip_norm: float = 0.0  # gradient clipping by norm; 0: off
    ema: float = 0.0  # decay of the weight average that is validated and exported; 0: off

    # Regularisation
    label_smoothing: float = 0.0  # share of the target spread over all classes; 0: off
    mixup: float = 0.0  # alpha of mixup; 0: off
    cutmix: float = 0.0  # alpha of CutMix; 0: off; with mixup too, one of them is drawn for each pair
    mix_prob: float = 1.0  # probability that a pair is mixed
    drop_path: float = 0.0  # drop-path (stochastic depth) rate of the last block

    # Images and augmentation
    image_size: int = 224  # side of the input in pixels; 0: that of --init
    val_resize: int = 257  # shorter side before the centre crop; 0: that of --init
    crop_min: float = 0.08  # smallest area of a random crop, as a share of the image
    crop_ratio: float = 4 / 3  # largest aspect ratio of a random crop, or its inverse
    flip: float = 0.5  # probability of a horizontal flip
    jitter: tuple[float, ...] = (0.4, 0.4, 0.4, 0.1)  # colour jitter: brightness, contrast, saturation, hue
    randaugment: int = 0  # magnitude of RandAugment, 0 to 10; 0: off
    erase: float = 0.0  # probability of random erasing
    interpolation: str = "bicubic"  # resampling: bicubic, bilinear, lanczos or nearest; empty: that of --init
    mean: tuple[float, ...] = ()  # channel means for normalisation; empty: those of --init, or ImageNet's
    std: tuple[float, ...] = ()  # channel deviations for normalisation; empty: as for mean
    loader: Literal["workers", "resident"] = "workers"  # decode in worker processes, or keep all images on the device
    workers: int = 2  # loader processes per device

    # Machine
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # device type
    devices: int = 1  # devices per node
    nodes: int = 1  # machines
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"  # parallel training; auto: ddp with several processes
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"  # float32, or bf16 or fp16 autocast
    compile: Literal["auto", "on", "off"] = "auto"  # compile the blocks; auto: on a GPU, for 1000 steps or more
    grad_checkpointing: bool = False  # recompute activations in the backward pass to save memory

    # Logging and checkpoints
    val_every: int = 1  # epochs between validations; the last epoch is always validated
    save_every: int = 0  # steps between checkpoints; 0: once per epoch
    keep: int = 3  # checkpoints to keep
    log_every: int = 50  # steps between log lines

    def override(self, changes: dict[str, Any]) -> "Recipe":
        """This recipe with some fields changed; strings are read as the field's type.

        Another kind of dataset drops the options of the one before.

        Example:
            >>> RECIPES["paper"].override({"batch_size": "128", "jitter": "0.4,0.4,0.4"}).jitter
            (0.4, 0.4, 0.4)
        """
        hints, changes = typing.get_type_hints(Recipe), current(changes)
        for name in changes:
            if name not in hints:
                raise ValueError(f"unknown field {name!r} of a recipe; known are {', '.join(hints)}")
        read = {name: _read(name, value, hints[name]) for name, value in changes.items()}
        if _kind(read.get("data", self.data)) != _kind(self.data):
            read.setdefault("data_options", {})
        return dataclasses.replace(self, **read)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain data, for JSON.

        Example:
            >>> RECIPES["tiny"].as_dict()["image_size"]
            64
        """
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def check(self) -> None:
        """Refuse values that no run can honour, in one line."""
        import timm.optim  # slow to load, and `infsa --help` reads this file

        from ..data.transforms import check_interpolation, check_view
        from ..models import list_models
        from ..models.header import ARGUMENTS

        if self.model not in list_models():
            raise ValueError(f"unknown model {self.model!r}; known are {', '.join(list_models())}")
        if self.optimizer not in timm.optim.list_optimizers():
            raise ValueError(f"unknown optimizer {self.optimizer!r}; timm.optim.list_optimizers() names them")
        if self.optimizer.startswith(UNSUPPORTED):
            raise ValueError(f"optimizer {self.optimizer!r} is not supported: it needs more than a step after backward")
        for name, low in LEAST.items():
            if not low <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least {low} and finite, got {getattr(self, name)}")
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2**63, got {self.seed}")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not (low <= value <= high if name in CLOSED else low <= value < high):
                raise ValueError(
                    f"{name} must lie in [{low}, {high}{']' if name in CLOSED else ')'}, got {getattr(self, name)}"
                )
        for name in ("crop_min", "layer_decay"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if values and (len(values) != 3 or not all(math.isfinite(v) for v in values) or min(values) < 0):
                raise ValueError(f"{name} must be three numbers of at least 0, got {values}")
        if self.std and min(self.std) == 0:
            raise ValueError(f"std must be above 0, got {self.std}")
        if self.init and self.weight_init != "normal":
            raise ValueError(f"weight_init={self.weight_init!r} and init={self.init!r} exclude each other: give one")
        check_view(seed=self.seed, jitter=self.jitter)
        check_interpolation(self.interpolation)
        for name, field in (("num_classes", "data"), ("img_size", "image_size"), ("drop_path_rate", "drop_path")):
            if name in self.model_options:
                raise ValueError(f"model_options may not set {name}: it follows from the recipe's field {field!r}")
        for name in sorted(self.model_options.keys() - ARGUMENTS.keys()):
            near = difflib.get_close_matches(name, ARGUMENTS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"model_options do not fit {self.model}: InfViT takes no argument {name!r}{hint}")
        if self.val_data and self.val_share:
            raise ValueError(f"val_data={self.val_data!r} and val_share={self.val_share} exclude each other: give one")
        if self.val_resize < self.image_size:
            raise ValueError(f"val_resize must be at least image_size={self.image_size}, got {self.val_resize}")
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs must be fewer than the {self.epochs} epochs, got {self.warmup_epochs}")
        if self.strategy == "fsdp" and self.precision == "16-mixed":
            raise ValueError("strategy='fsdp' runs in '32-true' or 'bf16-mixed', not in '16-mixed'")
        for name, value in DRAWN.items() if _kind(self.data) in ANSWERS_OF_PLACE else ():
            if getattr(self, name) != value:
                raise ValueError(f"{name} must be {value!r} with data {self.data!r}, got {getattr(self, name)!r}")
        if self.loader == "resident":
            self._check_resident()

    def _check_resident(self) -> None:
        if len(self.jitter) > 3 and self.jitter[3] > 0:
            raise ValueError(f"loader='resident' has no hue jitter; got jitter={self.jitter}")
        if self.interpolation not in ("bilinear", "bicubic", "nearest"):
            raise ValueError(f"loader='resident' resamples bilinear, bicubic or nearest, got {self.interpolation!r}")
        if self.randaugment:
            raise ValueError(f"loader='resident' has no RandAugment; got randaugment={self.randaugment}")

    def check_batches(self, images: int, world: int) -> None:
        """Refuse a batch size that does not fit the dataset or the devices.

        Example:
            >>> Recipe(batch_size=64).check_batches(images=50, world=1)
            Traceback (most recent call last):
            ValueError: batch_size 64 is more than the 50 training images
        """
        if self.batch_size > images:
            raise ValueError(f"batch_size {self.batch_size} is more than the {images} training images")
        parts = world * self.accumulate
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size {self.batch_size} cannot be split over {world} processes x {self.accumulate} parts"
            )
        if (self.mixup or self.cutmix) and self.batch_size // parts % 2:
            raise ValueError(f"mixup and cutmix need an even number of images per part, got {self.batch_size // parts}")

    def learning_rate(self, step: int, steps_per_epoch: int) -> float:
        """The rate of optimiser step ``step``: a linear rise, then half a cosine.

        Example:
            >>> Recipe(epochs=2, warmup_epochs=1, lr=1.0).learning_rate(10, steps_per_epoch=10)
            1.0
        """
        warmup, total = self.warmup_epochs * steps_per_epoch, self.epochs * steps_per_epoch
        if step < warmup:
            return self.lr * (step + 1) / (warmup + 1)
        share = (step - warmup) / max(1.0, total - warmup)
        return self.lr_final + (self.lr - self.lr_final) * (1 + math.cos(math.pi * min(1.0, share))) / 2


LEAST = {
    "seed": 0, "epochs": 1, "batch_size": 1, "accumulate": 1, "lr": 0.0, "lr_final": 0.0, "warmup_epochs": 0.0,
    "weight_decay": 0.0, "clip_norm": 0.0, "mixup": 0.0, "cutmix": 0.0, "image_size": 1, "crop_ratio": 1.0,
    "workers": 0, "devices": 1, "nodes": 1, "val_every": 1, "save_every": 0, "keep": 1, "log_every": 1,
}  # fmt: skip
RANGES = {
    "beta2": (0, 1), "ema": (0, 1), "label_smoothing": (0, 1), "drop_path": (0, 1), "mix_prob": (0, 1),
    "flip": (0, 1), "erase": (0, 1), "randaugment": (0, 10), "val_share": (0, 1),
}  # fmt: skip
ANSWERS_OF_PLACE = ("megapixel-digits", "digit-sums")  # drawn on the device; a crop or a mirror changes the answers
DRAWN: dict[str, Any] = {
    "loader": "resident", "crop_min": 1.0, "flip": 0.0, "jitter": (0.0, 0.0, 0.0), "erase": 0.0, "cutmix": 0.0,
    "val_share": 0.0,
}  # fmt: skip
UNSUPPORTED = ("adahessian", "bnb", "fused", "kron")  # second derivatives, further packages, lists as states
CLOSED = {"mix_prob", "flip", "erase", "randaugment"}

RENAMED = {"size": "image_size", "accelerator": "device"}  # fields by the names of version 0.1

WEIGHT_DECAYS = (1e-4, 1e-3, 5e-3, 1e-2, 2.5e-2)  # the range that the paper sweeps

RECIPES = {
    # The paper's supplement, as it is given: crop, mirror image and colour jitter alone, fp16, no clipping
    "paper": Recipe(model="infvit_linear_4l64h_patch16_224", precision="16-mixed"),
    # What "DeiT-style" means elsewhere
    "deit": Recipe(
        model="infvit_linear_4l64h_patch16_224", batch_size=1024, lr=1e-3, lr_final=1e-5, warmup_epochs=5,
        weight_decay=0.05, label_smoothing=0.1, mixup=0.8, cutmix=1.0, drop_path=0.1, erase=0.25, randaugment=9,
        jitter=(0.3, 0.3, 0.3), val_resize=256, precision="bf16-mixed", ema=0.9999, workers=8,
    ),
    # 64 px at patch 8, images kept on the device; minutes on a CPU with the generated shapes
    "tiny": Recipe(
        data_options={"length": 2400}, epochs=8, batch_size=64, optimizer="nmuon", lr=2e-3, warmup_epochs=1,
        weight_decay=0.1, beta2=0.95, clip_norm=1.0, label_smoothing=0.05, image_size=64, val_resize=64, crop_min=0.35,
        jitter=(0.3, 0.3, 0.3), interpolation="bilinear", loader="resident",
    ),
    # From weights to one's own classes: hundreds of images, minutes on a CPU; model, size and views are the weights'
    "finetune": Recipe(
        model="", init="infvit_linear_tiny", image_size=0, val_resize=0, interpolation="", epochs=20, batch_size=32,
        lr=5e-4, warmup_epochs=1, weight_decay=0.05, layer_decay=0.75, clip_norm=1.0, label_smoothing=0.1,
        crop_min=0.5, jitter=(0.2, 0.2, 0.2), loader="resident",
    ),
}  # fmt: skip


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The fields in a TOML file, or in the ``recipe.json`` of an earlier run."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        fields = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a readable {Path(path).suffix or 'TOML'} file: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} must hold fields of a recipe with their values, got {fields!r}")
    return current(fields)


def current(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a recipe that was saved by an earlier version, under their names and with the values of today."""
    named = {RENAMED.get(name, name): value for name, value in fields.items()}
    return named | ({"device": "cuda"} if named.get("device") == "gpu" else {})


def _kind(data: str) -> str:
    return data.partition(":")[0]


def _read(name: str, value: Any, hint: Any) -> Any:
    if name == "compile":  # which was true or false once
        value = {"true": "on", "false": "off"}.get(str(value).lower(), value)
    try:
        return _convert(value, hint)
    except (ValueError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{name} must be {_describe(hint)}, got {value!r}") from error


def _convert(value: Any, hint: Any) -> Any:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(value)
        return value
    if get_origin(hint) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if isinstance(parts, int | float):
            parts = [parts]
        if any(isinstance(part, bool) for part in parts):
            raise TypeError(value)
        return tuple(float(part) for part in parts)
    if get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise TypeError(value)
        return {str(name): _infinities(entry) for name, entry in value.items()}
    if hint is bool:
        if str(value).lower() not in ("true", "false"):
            raise ValueError(value)
        return str(value).lower() == "true"
    if hint is int and isinstance(value, float) and not value.is_integer():
        raise ValueError(value)
    if isinstance(value, bool) or (hint is str and not isinstance(value, str)):
        raise TypeError(value)
    return hint(value)


def _infinities(value: Any) -> Any:
    """A value with the word "inf" read as the number."""
    if isinstance(value, Mapping):
        return {str(name): _infinities(entry) for name, entry in value.items()}
    return math.inf if value == "inf" else value


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    names = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
    if isinstance(hint, types.GenericAlias):
        return "a list of numbers" if get_origin(hint) is tuple else "a table of name = value"
    return names[hint]


def _plain(value: Any) -> Any:
    """A value as strict JSON gives it back, which has the word "inf" for infinity, such as that of ``hops``."""
    return json.loads(json.dumps(value), parse_constant=lambda word: {"Infinity": "inf"}.get(word, word))
