"""The models under examination: shipped ones by name, trained ones by file."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from ..conversion import as_infvit, load_converted
from ..models import InfViT, create_model, list_models
from ..models.folder import DEFAULT_ARCHITECTURE
from ..models.header import read_header
from ..models.presets import SHIPPED
from ..models.weights import read_saved, weight_file
from .held_out import unfinished


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
            >>> Subject.of("vit_tiny").load().attention
            'softmax'
        """
        return load_model(self.source, device)


def _stem(path: Path) -> str:
    return path.stem if path.suffix == ".safetensors" else path.name


def load_model(source: str | Path, device: torch.device | str = "cpu") -> InfViT:
    """A model by its name, with the weights shipped for it, or from saved weights, in eval mode.

    The folder of a training run stands for its model; before the run has ended, for its best checkpoint. A file of
    :func:`infsa.conversion.save_converted` is accepted if :func:`infsa.conversion.as_infvit` supports its model.

    Example:
        >>> load_model("infvit_pure_tiny").attention
        'infsa_pure'
    """
    if str(source) in list_models():
        return create_model(str(source), pretrained=True).eval().to(device)
    if run := unfinished(source):
        if run.best is None:
            raise ValueError(str(run))
        source = run.best
    if not Path(source).exists():
        hint = "; convert the model of another library first (infsa convert, infsa adapt)" * (":" in str(source))
        raise FileNotFoundError(
            f"no model called {source} and no weights there; shipped models: {', '.join(SHIPPED)}{hint}"
        )
    if "conversion" in read_header(weight_file(source)).texts:
        return as_infvit(load_converted(source)).eval().to(device)
    _, arguments = read_saved(source)
    if not arguments:
        raise ValueError(f"{source} does not say which model it belongs to; infsa.models.save_weights writes that")
    name = arguments.get("architecture", DEFAULT_ARCHITECTURE)
    return create_model(name, pretrained=source).eval().to(device)
