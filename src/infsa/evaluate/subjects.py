"""The models under examination: shipped ones by name, trained ones by file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm.data
import torch

from ..models import InfViT, create_model, list_models
from ..models.folder import DEFAULT_ARCHITECTURE
from ..models.weights import read_saved


@dataclass(frozen=True)
class Subject:
    """A model to examine. Subjects of one group are the same model trained with different seeds.

    Example:
        >>> Subject.of("runs/softmax-0.safetensors")
        Subject(name='softmax-0', group='softmax', source='runs/softmax-0.safetensors')
    """

    name: str
    group: str
    source: str

    @classmethod
    def of(cls, source: str | Path) -> "Subject":
        """A subject from a model's name, the path of its weights, or ``NAME=PATH``.

        Without a name of its own it is called like the file; ``-SEED`` at the end of a name is not the group's.

        Example:
            >>> Subject.of("softmax-0=runs/tiny/model").group
            'softmax'
        """
        name, equals, path = str(source).partition("=")
        if not equals:
            path, name = name, name if name in list_models() else _stem(Path(name))
        return cls(name, re.sub(r"-\d+$", "", name), path)

    def load(self, device: torch.device | str = "cpu") -> InfViT:
        """The model with its weights, in eval mode.

        Example:
            >>> model = Subject.of("runs/softmax-0.safetensors").load()
        """
        return load_model(self.source, device)


def _stem(path: Path) -> str:
    return path.stem if path.suffix == ".safetensors" else path.name


def load_model(source: str | Path, device: torch.device | str = "cpu") -> InfViT:
    """A model by its name, with the weights shipped for it, or from saved weights, in eval mode.

    Example:
        >>> model = load_model("runs/softmax-0.safetensors")
    """
    if str(source) in list_models():
        return create_model(str(source), pretrained=True).eval().to(device)
    if not Path(source).exists():
        raise FileNotFoundError(f"no model called {source} and no weights there; models: {', '.join(list_models())}")
    _, arguments = read_saved(source)
    if not arguments:
        raise ValueError(f"{source} does not say which model it belongs to; infsa.models.save_weights writes that")
    name = arguments.get("architecture", DEFAULT_ARCHITECTURE)
    return create_model(name, pretrained=source).eval().to(device)


def class_names(model: InfViT) -> list[str]:
    """What the classes are called: the names saved with the weights, or their numbers.

    Example:
        >>> class_names(infsa.create_model("vit_tiny", num_classes=2))
        ['class 0', 'class 1']
    """
    names = getattr(model, "pretrained_cfg", {}).get("label_names")
    if names and len(names) == model.num_classes:
        return [str(name) for name in names]
    return [f"class {index}" for index in range(model.num_classes)]


def data_config(model: InfViT) -> dict[str, Any]:
    """timm's data configuration of a model, at the size that the model itself was built for.

    Example:
        >>> data_config(infsa.create_model("vit_tiny", img_size=96))["input_size"]
        (3, 96, 96)
    """
    config: dict[str, Any] = timm.data.resolve_model_data_config(model)
    return config | {"input_size": (model.in_chans, *model.patch_embed.img_size)}
