"""What the page shows, as HTML: pictures with captions, guesses as bars, the slider's step."""

from collections.abc import Sequence
from html import escape

from PIL import Image

from ..report.panels import heatmap, overlay, scaled, short
from .drawings import CURVE_PLACE
from .gigapixel import Scene
from .look import Look, Settings
from .model_cache import MECHANISMS
from .pictures import KEPT, data_uri
from .removal import Removal
from .tiles import publish

SHOWN = 480  # longest side of a picture on the page, in pixels


def card(source: str, title: str, text: str = "", alt: str = "") -> str:
    """A picture with its caption; ``source`` is a data URI."""
    return framed(f'<img src="{source}" alt="{escape(alt or f"{title}. {text}")}">', title, text)


def framed(inside: str, title: str, text: str = "") -> str:
    """Anything with a caption; ``inside`` is HTML or SVG."""
    caption = f"<b>{escape(title)}</b>{escape(text)}"
    return f'<figure class="card">{inside}<figcaption>{caption}</figcaption></figure>'


def small(image: Image.Image) -> Image.Image:
    """A copy at the size of the page."""
    return scaled(image, SHOWN)


def guesses(predictions: Sequence[tuple[str, float]]) -> str:
    """The likeliest classes as bars."""
    rows = [
        f'<div class="guess"><span>{escape(short(label))}</span><span><i style="width:{chance:.1%}"></i></span>'
        f"<span>{chance:.0%}</span></div>"
        for label, chance in predictions[:3]
    ]
    return "".join(rows)


def show_look(image: Image.Image, found: Look, settings: Settings, method: str) -> str:
    """The picture, its map and their overlay, what the model takes it for, and the three mechanisms side by side."""
    picture, explanation = small(image), found.explanation
    rows, columns = explanation.map.shape
    width, height = explanation.size
    kept = "kept at " if max(image.size) == KEPT else ""  # larger ones are shrunk when they are read
    which = "mean of heads" if settings.head is None else f"head {settings.head + 1}"
    shown = [
        (picture, "Picture", f"{kept}{image.width} × {image.height}; the model sees {width} × {height}"),
        (heatmap(explanation.map, picture.size), "Map", f"{rows} × {columns} patches, bright = high"),
        (overlay(picture, explanation.map), "Overlay", f"{method}, {which}"),
    ]
    first = "".join(card(data_uri(drawn), title, text) for drawn, title, text in shown)
    side = "".join(
        card(data_uri(overlay(picture, other.map)), name, f"{short(label)}, {chance:.0%}")
        for name, other in found.others.items()
        for label, chance in other.predictions[:1]
    )
    known = "The three models are tiny and have only 50 classes, so the top prediction is often wrong. "
    beside = "all three mechanisms" if found.others.keys() == MECHANISMS.keys() else "all models"
    return (
        f'<div class="shots">{first}</div><h3 class="part">{escape(settings.mechanism)} predicts</h3>'
        f"{guesses(explanation.predictions)}"
        f'<p class="note">{known if settings.mechanism in MECHANISMS else ""}'
        "The tab Removal tests whether bright patches matter.</p>"
        f'<h3 class="part">The same picture by {beside} (class token\'s row, last layer)</h3>'
        f'<div class="shots">{side}</div>'
    )


def show_step(removal: Removal, level: int) -> str:
    """The picture without the patches that are gone, and the probability that is left."""
    chance, gone = float(removal.curves[0, level]), int(removal.counts[level])
    patches = removal.ranks.numel()
    large = scaled(removal.masked(level), SHOWN, Image.Resampling.NEAREST)
    text = f"{gone} of {patches} patches removed; {short(removal.label)}: {chance:.1%}"
    return (
        f"{card(data_uri(large), 'What the model sees', f'{gone} of {patches} patches removed', alt=text)}"
        f'<p class="big" role="status" id="chance">{escape(short(removal.label))}: {chance:.1%}</p>'
    )


def show_removal(removal: Removal, drawn: str, level: int) -> str:
    """The curves with a line at the level of the slider, beside the picture at that level."""
    left, bottom, width, height = CURVE_PLACE
    share = float(removal.counts[level]) / removal.ranks.numel()
    line = f"left:{left + share * width:.2%};top:{1 - bottom - height:.2%};height:{height:.2%}"
    name = "Probability of the top prediction against the share of patches removed, in three orders"
    chart = f'<div class="chart" aria-label="{name}">{drawn}<i style="{line}"></i></div>'
    note = '<p class="note">A good map makes the orange curve fall fast and the blue one stay up.</p>'
    return f'<div class="pair"><div>{show_step(removal, level)}</div><div>{chart}{note}</div></div>'


def show_scene(scene: Scene) -> str:
    """A streamed image in a viewer, with its map over it, and the prediction."""
    (width, height), (rows, columns) = scene.size, scene.map.shape
    speed = f"{width * height / 1e6:.1f} megapixels, {scene.passes} passes, {scene.seconds:.1f} s"
    return (
        f'<infsa-viewer key="{publish(scene)}" width="{width}" height="{height}" patch="{scene.patch}" '
        f'rows="{rows}" columns="{columns}"></infsa-viewer>'
        f'<h3 class="part">{escape(scene.model)} predicts for the whole image</h3>{guesses(scene.predictions)}'
        f'<p class="note">{width} × {height} pixels, {columns} × {rows} patches: {speed}. Drag to move, scroll '
        f"to zoom.{' The model has only 50 classes.' if scene.model in MECHANISMS else ''}</p>"
    )
