"""What the page shows, as HTML: pictures with captions, guesses as bars, the slider's step."""

from collections.abc import Sequence
from html import escape

from PIL import Image

from ..report.panels import heatmap, overlay
from .drawings import CURVE_PLACE
from .gigapixel import Scene, View
from .look import Look, Settings
from .model_cache import MECHANISMS
from .pictures import KEPT, data_uri
from .removal import Removal

SHOWN = 480  # longest side of a picture on the page, in pixels

CSS = """
html {scrollbar-gutter: stable}
.gradio-container {width: 100% !important; max-width: 1280px !important; margin: 0 auto !important;
  padding: 12px 24px !important}
#title h1 {font-size: 1.5rem; margin: 0 0 .1rem} #title p {margin: 0; font-size: .95rem; opacity: .8}
.controls {flex: 0 0 380px !important; gap: 8px !important} .results {flex: 1 1 0 !important}
.controls .block {padding: 6px 10px !important} .drop {padding: 0 !important}
.drop .icon-wrap {display: none} .drop .wrap {flex-direction: row; gap: .4em; padding-top: 20px; font-size: .85rem;
  min-height: 0}
.windows {display: grid; grid-template-columns: 1fr 1.5fr 1.5fr; gap: 12px; align-items: start}
.shots {display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; align-items: start}
.pair {display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.7fr); gap: 16px; align-items: start}
figure.card, .chart {margin: 0; background: var(--block-background-fill); color: var(--body-text-color);
  border: 1px solid var(--border-color-primary); border-radius: 8px; overflow: hidden}
figure.card > :is(img, svg), .chart > svg {width: 100%; height: auto; display: block}
figure.card figcaption {padding: 6px 10px; font-size: .85rem} figure.card figcaption b {display: block}
.guess {display: grid; grid-template-columns: 9rem 1fr 3rem; gap: 8px; align-items: center; margin: 3px 0;
  font-size: .92rem}
.guess i {display: block; height: 10px; border-radius: 5px; background: #0072B2; min-width: 2px}
.guess span:last-child {text-align: right; font-variant-numeric: tabular-nums}
.note {font-size: .88rem; opacity: .8; margin: .5rem 0}
h3.part {font-size: 1rem; font-weight: 600; margin: .9rem 0 .4rem}
.chart, .locator {position: relative} .locator img {width: 100%; display: block; border-radius: 8px}
.chart i {position: absolute; width: 2px; background: currentColor}
.big {font-size: 1.5rem; font-weight: 600; margin: .5rem 0}
.locator i {position: absolute; border: 2px solid #fff; outline: 2px solid #0072B2; box-sizing: border-box}
:is(button, input, [role=tab], [role=listbox]):focus-visible {outline: 3px solid #E69F00 !important;
  outline-offset: 2px}
label:has(input[type=radio]:focus-visible) {outline: 3px solid #E69F00; outline-offset: 2px}
@media (max-width: 800px) {.controls {flex: 1 1 100% !important} .pair, .windows {grid-template-columns: 1fr}}
"""


def card(source: str, title: str, text: str = "", alt: str = "") -> str:
    """A picture with its caption; ``source`` is a data URI."""
    return framed(f'<img src="{source}" alt="{escape(alt or f"{title}. {text}")}">', title, text)


def framed(inside: str, title: str, text: str = "") -> str:
    """Anything with a caption; ``inside`` is HTML or SVG."""
    caption = f"<b>{escape(title)}</b>{escape(text)}"
    return f'<figure class="card">{inside}<figcaption>{caption}</figcaption></figure>'


def small(image: Image.Image) -> Image.Image:
    """A copy at the size of the page."""
    scale = SHOWN / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC)


def short(label: str) -> str:
    """The first of the names of a class."""
    return label.split(",")[0]


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
    first = "".join(
        (
            card(
                data_uri(picture), "Picture", f"{kept}{image.width} × {image.height}; the model sees {width} × {height}"
            ),
            card(data_uri(heatmap(explanation.map, picture.size)), "Map", f"{rows} × {columns} patches, bright = high"),
            card(data_uri(overlay(picture, explanation.map)), "Overlay", f"{method}, {which}"),
        )
    )
    side = "".join(
        card(
            data_uri(overlay(picture, other.map)),
            name,
            f"{short(other.predictions[0][0])}, {other.predictions[0][1]:.0%}",
        )
        for name, other in found.others.items()
    )
    known = "The three models are tiny and know 50 classes only, so the first guess is often wrong. "
    beside = "all three mechanisms" if found.others.keys() == MECHANISMS.keys() else "all models"
    return (
        f'<div class="shots">{first}</div><h3 class="part">{escape(settings.mechanism)} takes it for</h3>'
        f"{guesses(explanation.predictions)}"
        f'<p class="note">{known if settings.mechanism in MECHANISMS else ""}'
        "The map shows what the guess was read from.</p>"
        f'<h3 class="part">The same picture by {beside} (class token\'s row, last layer)</h3>'
        f'<div class="shots">{side}</div>'
    )


def show_step(removal: Removal, level: int) -> str:
    """The picture without the patches that are gone, and the probability that is left."""
    chance, gone = float(removal.curves[0, level]), int(removal.counts[level])
    patches = removal.ranks.numel()
    masked = removal.masked(level)
    scale = SHOWN / max(masked.size)
    large = masked.resize((round(masked.width * scale), round(masked.height * scale)), Image.Resampling.NEAREST)
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
    name = "Probability of the first guess against the share of patches removed, in three orders"
    chart = f'<div class="chart" aria-label="{name}">{drawn}<i style="{line}"></i></div>'
    note = '<p class="note">A good map makes the red curve fall fast and the blue one stay up.</p>'
    return f'<div class="pair"><div>{show_step(removal, level)}</div><div>{chart}{note}</div></div>'


def show_view(scene: Scene, seen: View) -> str:
    """A window of a streamed image beside its overlay, the place of the window, and the prediction."""
    width, height = scene.size
    top, left, bottom, right = seen.box
    rows, columns = scene.map.shape
    place = (
        f"left:{left / width:.2%};top:{top / height:.2%};"
        f"width:{(right - left) / width:.2%};height:{(bottom - top) / height:.2%}"
    )
    whole = data_uri(overlay(small(scene.overview), scene.map))
    across = f"{right - left} × {bottom - top} pixels at ({left}, {top})"
    speed = f"{width * height / 1e6:.1f} megapixels, {scene.passes} passes, {scene.seconds:.1f} s"
    locator = (
        f'<div class="locator"><img src="{whole}" alt="The whole image with its map"><i style="{place}"></i></div>'
    )
    return (
        f'<div class="windows">{locator}{card(data_uri(seen.picture), "Window", across)}'
        f"{card(data_uri(seen.overlaid), 'Map of the window', 'bright = high in this window')}</div>"
        f'<h3 class="part">{escape(scene.model)} takes the whole image for</h3>{guesses(scene.predictions)}'
        f'<p class="note">{width} × {height} pixels, {rows} × {columns} patches: {speed}. The frame shows where the '
        f"window lies.{' The model knows 50 classes only.' if scene.model in MECHANISMS else ''}</p>"
    )
