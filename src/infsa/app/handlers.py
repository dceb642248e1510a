"""What happens when something on the page is chosen: values of the controls in, HTML out. No Gradio in here."""

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

from ..ops.checks import check_choice
from .drawings import draw_centralities, draw_removal, draw_walk
from .html import framed, show_look, show_removal, small
from .look import METHODS, Settings, explained, look, model_input
from .model_cache import borrow, is_linear, trained_side
from .removal import LEVELS, Removal, remove
from .walks import compared, token_graph, walk

MEAN = "Mean of heads"
HOPS = {"1": 1.0, "2": 2.0, "3": 3.0, "5": 5.0, "All": math.inf}
STARTS = ("Class token", "Highest patch of the map", "Middle patch")


@dataclass(frozen=True)
class Curves:
    """A removal with its drawing, kept while the slider moves."""

    removal: Removal
    drawn: str


def sides(mechanism: str) -> dict[str, int]:
    """How large a model may see the picture: as it was trained, or twice that."""
    side = trained_side(mechanism)
    return {f"{side} px, as trained": side, f"{2 * side} px": 2 * side}


def settings_of(mechanism: str, layer: float, head: str, method: str, gamma: float, hops: str, side: str) -> Settings:
    """The controls of the page as settings."""
    allowed = sides(mechanism)
    for name, value, accepted in (("method", method, METHODS), ("hops", hops, HOPS), ("resolution", side, allowed)):
        check_choice(name, value, accepted)
    if layer is None or layer != int(layer) or layer < 1:
        raise ValueError(f"layer must be a whole number of at least 1, got {layer!r}")
    if gamma is None or not 0 < gamma < 1:
        raise ValueError(f"γ must lie strictly between 0 and 1, got {gamma!r}")
    if head != MEAN and not (head or "").isdecimal():
        raise ValueError(f"head must be {MEAN!r} or a number, got {head!r}")
    which = None if head == MEAN else int(head) - 1
    return Settings(mechanism, int(layer) - 1, which, METHODS[method], gamma, HOPS[hops], allowed[side])


def map_tab(image: Image.Image, settings: Settings, method: str) -> str:
    """The first tab: the map."""
    return show_look(image, look(image, settings), settings, method)


def graph_tab(image: Image.Image, settings: Settings, start: str) -> str:
    """The second tab: the token graph, a walk on it, and the centralities."""
    check_choice("start", start, STARTS)
    found = explained(image, settings)
    rows, columns = found.map.shape
    with borrow(settings.mechanism) as model:
        prefix = model.num_prefix_tokens
        batch = model_input(model, image, found.size)
        graph = token_graph(model, batch, settings.layer, settings.head, settings.gamma)
    places = {
        STARTS[0]: 0 if prefix else int(found.map.argmax()),
        STARTS[1]: prefix + int(found.map.argmax()),
        STARTS[2]: prefix + (rows // 2) * columns + columns // 2,
    }
    followed = walk(graph, places[start], settings.hops)
    scaled = (
        " Rows that would add up to more than one were scaled down, all by one number." if followed.rescaled else ""
    )
    text = (
        f"{graph.size} tokens, γ = {settings.gamma:g}, spectral radius {graph.spectral_radius():.3f}. At each hop the "
        f"walk moves by γ times the attention weights, or ends.{scaled} Orange: steps from the start. Blue: "
        "the strongest steps of all. Size: expected visits."
    )
    if start == STARTS[0] and not prefix:
        text += " The model has no class token: the walk starts at the highest patch."
    if is_linear(settings.mechanism):
        text += " All rows of this graph are equal: after one hop every walk looks the same."
    picture = small(image)
    walked = draw_walk(picture, followed, (rows, columns), prefix)
    central = draw_centralities(picture, compared(graph), (rows, columns), prefix)
    return (
        framed(walked, "A random walk on the token graph", text)
        + '<h3 class="part">Centralities compared</h3>'
        + framed(central, "Which tokens matter, by six measures", "If all agree with degree, one hop is enough.")
    )


def curves_of(image: Image.Image, settings: Settings) -> Curves:
    """The third tab's curves."""
    removal = remove(image, settings)
    return Curves(removal, draw_removal(removal))


def removal_tab(curves: Curves | None, percent: float) -> str:
    """The third tab at a position of its slider, in percent."""
    if curves is None:
        return '<p class="note">Choose a picture first.</p>'
    level = min(LEVELS, max(0, round((percent or 0) / 100 * LEVELS)))
    return show_removal(curves.removal, curves.drawn, level)


def named_files(paths: list[Path]) -> dict[str, Path]:
    """Files of the command line by the names that the page shows; equal names are numbered."""
    found: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        name, number = path.name, 1
        while name in found:
            number += 1
            name = f"{path.name} ({number})"
        found[name] = path
    return found


def one_line(error: Exception) -> str:
    """An error as one line of text that is safe on a page."""
    return escape(" ".join(str(error).split()) or type(error).__name__)
