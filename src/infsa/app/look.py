"""One picture and one choice of settings: the map, the prediction, and the other mechanisms beside them."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..evaluate import Explanation, explain, model_input
from .model_cache import borrow, names, trained_side
from .walks import token_graph, walk_scores

WALKS = "walks"  # the map that γ and hops shape; with all hops, the incoming Katz centrality
METHODS = {
    "Class token's row": "last",
    "Decayed walks (γ, hops)": WALKS,
    "Rollout over layers": "rollout",
    "Gradient of the class": "gradient",
    "TokenRank": "tokenrank",
    "Degree (one hop)": "degree",
    "Random": "random",
}


@dataclass(frozen=True)
class Settings:
    """What can be chosen on the page.

    Example:
        >>> Settings(mechanism="softmax", method="rollout").layer
        -1
    """

    mechanism: str = "Pure InfSA"  # or the name of an own model
    layer: int = -1
    head: int | None = None  # None: the mean over heads
    method: str = "last"
    gamma: float = 0.7  # of the walks; the models keep the γ they were trained with
    hops: float = math.inf  # longest walk
    side: int = 64  # pixels of the square whose area the model sees


@dataclass(frozen=True)
class Look:
    """What was found."""

    explanation: Explanation
    others: dict[str, Explanation]  # every model at its last layer's map


def look(image: Image.Image, settings: Settings) -> Look:
    """The map of one model by the settings, and those of all models beside it, enlarged or not like this one.

    Example:
        >>> picture = infsa.app.read_picture(infsa.app.examples()["Portrait"])
        >>> list(look(picture, Settings()).others)
        ['Pure InfSA', 'Linear-InfSA', 'softmax']
    """
    others, enlarged = {}, settings.side / trained_side(settings.mechanism)
    for name in names():
        side = round(enlarged * trained_side(name))
        with borrow(name) as model:
            others[name] = explain(model, image, side=side)
    return Look(explained(image, settings), others)


def explained(image: Image.Image, settings: Settings) -> Explanation:
    """The map and prediction by the settings, walks included."""
    walks = settings.method == WALKS
    method = "last" if walks else settings.method
    with borrow(settings.mechanism) as model:
        found = explain(model, image, method, layer=settings.layer, head=settings.head, side=settings.side)
        if not walks:
            return found
        graph = token_graph(model, model_input(model, image, found.size), settings.layer, settings.head, settings.gamma)
        scores = walk_scores(graph, settings.hops)[model.num_prefix_tokens :]
    return replace(found, map=on_grid(scores, found.map.shape), method=WALKS)


def on_grid(scores: Tensor, grid: tuple[int, ...]) -> NDArray[np.float32]:
    """Scores of patches (N,) as a map (h, w) of sum 1."""
    shares: NDArray[np.float32] = (scores / scores.sum()).reshape(grid).float().numpy()
    return shares
