"""Weights to start from: found by name or path, fitted to the recipe, and loaded with a classifier for the data.

Nothing is fetched. A source is the name of a shipped model, a .safetensors file, a saved folder, the folder of a run or
one of its checkpoints, a converted plain vision transformer, or ``timm:NAME`` and ``hf:NAME`` for one on this disk.
"""

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from ..conversion import as_infvit, load_converted
from ..models import InfViT, list_models, read_weights
from ..models.adopt import adopt_hugging_face, adopt_timm, data_facts, is_plain_vit
from ..models.folder import DEFAULT_ARCHITECTURE, plain, resolved_arguments
from ..models.header import permitted_arguments, read_header
from ..models.presets import SHIPPED, fit_weights, shipped_weights
from ..models.weights import WEIGHTS, check_same_model, read_data_config, weight_file
from .checkpoint import list_checkpoints, newest_checkpoint, read_checkpoint
from .recipe import Recipe, current

FOLLOWS = ("num_classes", "img_size", "drop_path_rate")  # arguments of the model that follow from other fields
COLOURS = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
OPEN = (
    "model",
    "image_size",
    "val_resize",
    "interpolation",
    "mean",
    "std",
)  # fields that weights fill where they are empty


@dataclass(frozen=True)
class Start:
    """Weights, the model that they belong to, and what they say of their data."""

    source: str
    weights: dict[str, Tensor]
    arguments: dict[str, Any]  # of the model, with its name as "architecture"; empty if the file does not say
    data: dict[str, Any]  # label_names, mean, std, crop_pct, interpolation, as far as they are known

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.arguments.get("architecture", DEFAULT_ARCHITECTURE)


def read_start(source: str) -> Start:
    """The weights that a name or path stands for, or one line that says why there are none."""
    path = Path(source)
    if source in SHIPPED:
        file = shipped_weights(source)
        assert file is not None
        return Start(source, *read_weights(file), read_data_config(file))
    if source in list_models():
        raise ValueError(f"no weights are shipped for {source}, only for {', '.join(SHIPPED)}")
    library, _, name = source.partition(":")
    if library in ("timm", "hf"):
        return Start(source, *(adopt_timm(name) if library == "timm" else adopt_hugging_face(name)))
    if path.exists():
        return _from_path(path)
    if timm.is_model(source):
        return Start(source, *adopt_timm(source))
    if source.count("/") == 1 and not path.suffix and not path.parent.exists():
        return Start(source, *adopt_hugging_face(source))
    near = difflib.get_close_matches(source, [*SHIPPED, *timm.list_models()], n=1)
    raise FileNotFoundError(
        f"no weights at {source}; accepted are {', '.join(SHIPPED)}, a .safetensors file, a saved folder, a run, "
        f"timm:NAME and hf:NAME{f'; did you mean {near[0]}?' if near else ''}"
    )


def _from_path(path: Path) -> Start:
    """Weights from a file, a saved folder, a run or a checkpoint."""
    saved = (path / "model").is_dir() or (path / WEIGHTS).is_file()
    if path.is_dir() and list_checkpoints(path / "checkpoints") and not saved:
        file, tensors, facts, _ = newest_checkpoint(path / "checkpoints")
        return _from_checkpoint(file, tensors, facts)
    if path.is_dir() and is_plain_vit(path):
        return Start(str(path), *adopt_hugging_face(str(path)))
    file = weight_file(path)
    header = read_header(file).texts
    if "facts" in header:
        return _from_checkpoint(file, *read_checkpoint(file))
    if "conversion" in header:
        model = as_infvit(load_converted(file))
        config: Any = model.pretrained_cfg
        arguments = plain(resolved_arguments(model)) | {"architecture": config["architecture"]}
        return Start(str(path), model.state_dict(), arguments, data_facts(config))
    return Start(str(path), *read_weights(file), read_data_config(file))


def _from_checkpoint(file: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> Start:
    """The weights of a checkpoint of ``infsa train``, averaged ones if it has them."""
    if "recipe" not in facts:
        raise ValueError(f"{file} is not a checkpoint of infsa train")
    recipe = Recipe().override(facts["recipe"])
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    weights |= {name.removeprefix("average."): value for name, value in tensors.items() if name.startswith("average.")}
    if recipe.model not in list_models():
        raise ValueError(f"{file} holds an unknown model {recipe.model!r}")
    options = {**recipe.model_options, "img_size": recipe.image_size, "num_classes": _classes(weights)}
    permitted_arguments(options, tuple(list_models()), f"{file}: its recipe")
    with torch.device("meta"):
        model: InfViT = timm.create_model(recipe.model, **options)  # type: ignore[assignment]
    arguments = plain(resolved_arguments(model)) | {"architecture": recipe.model}
    data: dict[str, Any] = {"crop_pct": recipe.image_size / recipe.val_resize, "interpolation": recipe.interpolation}
    data |= {name: getattr(recipe, name) for name in ("mean", "std") if getattr(recipe, name)}
    return Start(str(file), weights, arguments, data)


def _classes(weights: dict[str, Tensor]) -> int:
    return len(weights["head.weight"]) if "head.weight" in weights else 0


def completed(recipe: Recipe, run: Path | None = None) -> Recipe:
    """The recipe with its empty fields filled: from the checkpoint of the ``run`` that continues, or from ``init``."""
    empty = [name for name in OPEN if not getattr(recipe, name)]
    if not recipe.init and (needed := [name for name in empty if name not in COLOURS]):
        raise ValueError(f"{needed[0]} is empty: set it, or set init to take it from those weights")
    if not recipe.init or not empty:
        return recipe
    if run is not None and list_checkpoints(run / "checkpoints"):  # the weights of init may be gone
        saved = current(newest_checkpoint(run / "checkpoints")[2]["recipe"])
        names = [*empty, *(["model_options"] if "model" in empty else [])]
        return recipe.override({name: saved[name] for name in names if name in saved})
    return _fitted(recipe, read_start(recipe.init))


def _fitted(recipe: Recipe, start: Start) -> Recipe:
    """The recipe with its empty fields as the weights have them: model, size, crop, resampling, colours."""
    changes: dict[str, Any] = {}
    if not recipe.model:
        if not start.arguments:
            raise ValueError(f"{recipe.init} does not name its model: set model")
        changes |= {"model": start.model, "model_options": _options(start) | recipe.model_options}
    size = recipe.image_size or _square(start)
    crop, view = start.data.get("crop_pct") or 1.0, start.data.get("interpolation")
    changes |= {"image_size": size, "val_resize": recipe.val_resize or int(size / crop + 1e-9)}
    changes |= {"interpolation": recipe.interpolation or view or "bicubic"}
    for name, usual in COLOURS.items():
        changes[name] = getattr(recipe, name) or tuple(start.data.get(name) or usual)
    return dataclasses.replace(recipe, **changes)


def _options(start: Start) -> dict[str, Any]:
    """The arguments in which the model of the weights differs from the one of that name."""
    with torch.device("meta"):
        usual: InfViT = timm.create_model(start.model)  # type: ignore[assignment]
    known = plain(resolved_arguments(usual) | {"attention_grid": usual.attention_grid})
    given = {name: plain(value) for name, value in start.arguments.items() if name not in (*FOLLOWS, "architecture")}
    return {name: value for name, value in given.items() if known.get(name) != value}


def _square(start: Start) -> int:
    """The side of the images that the weights were made for."""
    size = start.arguments.get("img_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise ValueError(
            f"{start.source} was made for images of {height} × {width}: set image_size, the side of a square"
        )
    return height


def load_start(model: InfViT, recipe: Recipe, classes: int | Sequence[str]) -> str:
    """Load the recipe's ``init`` into its model and say in one line what became of the classifier.

    It is kept if the classes are the same. Otherwise it starts anew, but for rows of classes that the weights know by
    name. Positions follow the image size. Another stem than that of the weights starts anew.
    """
    start = read_start(recipe.init)
    saved = start.arguments | {"stem": model.stem}
    check_same_model(saved, {**recipe.model_options, "architecture": recipe.model}, recipe.init)
    wanted = [f"class {index}" for index in range(classes)] if isinstance(classes, int) else list(classes)
    weights, count = dict(start.weights), _classes(start.weights)
    new_stem = start.arguments.get("stem", "patch") != model.stem
    if new_stem:
        own_stem = {name: value for name, value in model.state_dict().items() if name.startswith("patch_embed.")}
        weights = {name: value for name, value in weights.items() if not name.startswith("patch_embed.")} | own_stem
    names = [str(name) for name in start.data.get("label_names") or ()]
    known = len(names) == count and not isinstance(classes, int)
    same = wanted == names if known else len(wanted) == count
    kept = [] if same or not known else [(i, names.index(name)) for i, name in enumerate(wanted) if name in names]
    for part in () if same else ("weight", "bias"):
        own, old = getattr(model.head, part).detach().clone(), weights.get(f"head.{part}")
        for new, place in kept:
            assert old is not None
            own[new] = old[place]
        weights[f"head.{part}"] = own
    try:
        model.load_state_dict(fit_weights(weights, model))
    except (RuntimeError, ValueError) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[:3])
        raise ValueError(f"the weights of {recipe.init} do not fit {recipe.model}: {reason}") from error
    if same:
        head = f"its classifier of {count} classes"
    else:
        head = f"a new classifier: {len(wanted)} classes instead of {count}" + (f", {len(kept)} known" if kept else "")
    stem = f", and a new stem: the weights have another one than {model.stem!r}" if new_stem else ""
    return f"starting from {recipe.init} at {recipe.image_size} px, with {head}{stem}"
