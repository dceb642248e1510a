"""What a run is for: its model, from the tensors of the run, with the names of its classes."""

from collections.abc import Mapping

from torch import Tensor

from ..data.tasks import Tasks
from ..models.infvit import InfViT
from ..models.weights import describe_data
from .module import build_model
from .recipe import Recipe


def trained_model(recipe: Recipe, tasks: Tasks, tensors: Mapping[str, Tensor]) -> InfViT:
    """The model of a run, with the average of the weights where the run keeps one."""
    model = build_model(recipe, tasks.outputs, fresh=False)
    state = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    state |= {name.removeprefix("average."): value for name, value in tensors.items() if name.startswith("average.")}
    model.load_state_dict(state)
    view = {"crop_pct": recipe.image_size / recipe.val_resize, "interpolation": recipe.interpolation}
    several = {"tasks": tasks.as_list()} if len(tasks) > 1 else {}
    describe_data(model, label_names=tasks.names, **view, **several)
    return model
