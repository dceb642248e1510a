"""One HTML file that needs nothing else: text, tables, and pictures inside as data."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from ..files import write_atomically
from .table import Table

STYLE = """
:root { color-scheme: light; }
body { font: 17px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: #222; background: #fff; margin: 0; }
main { max-width: 62rem; margin: 0 auto; padding: 1.2rem 1rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .4rem 0; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .4rem; border-top: 1px solid #ddd; padding-top: 1.2rem; }
p { max-width: 44rem; }
.found { background: #eef5fb; border-left: 4px solid #0072B2; padding: .6rem .9rem; max-width: 42rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .93rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #e3e3e3; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; }
.wide img { max-width: none; width: max(100%, 44rem); }
figcaption { font-size: .88rem; color: #555; }
.gallery { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem; margin: 1rem 0; }
.gallery figure { margin: 0; }
.gallery img { width: 100%; border-radius: 4px; display: block; }
footer { margin-top: 3rem; font-size: .85rem; color: #666; }
"""


@dataclass(frozen=True)
class Picture:
    """A picture as data, with the words that stand for it and below it."""

    uri: str
    words: str
    caption: str = ""
    wide: bool = False  # scrolls sideways on a small screen, so that its text stays legible

    @classmethod
    def of(cls, source: Image.Image | Figure | Path, words: str, caption: str = "", wide: bool = False) -> "Picture":
        """From an image (as JPEG), a figure or a PNG file."""
        data, kind = io.BytesIO(), "png"
        if isinstance(source, Image.Image):
            source.convert("RGB").save(data, "JPEG", quality=85)
            kind = "jpeg"
        elif isinstance(source, Figure):
            source.savefig(data, format="png", dpi=120)
        else:
            data.write(source.read_bytes())
        text = base64.b64encode(data.getvalue()).decode("ascii")
        return cls(f"data:image/{kind};base64,{text}", words, caption, wide)

    def html(self) -> str:
        """The picture as a figure."""
        below = f"<figcaption>{escape(self.caption)}</figcaption>" if self.caption else ""
        kind = ' class="scroll wide"' if self.wide else ""
        return f'<figure{kind}><img src="{self.uri}" alt="{escape(self.words)}">{below}</figure>\n'


@dataclass(frozen=True)
class Section:
    """A heading, what was found in one sentence, an explanation, and tables, galleries and pictures."""

    title: str
    found: str
    text: str = ""
    galleries: Sequence[Sequence[Picture]] = field(default_factory=list)
    tables: Sequence[Table] = field(default_factory=list)
    pictures: Sequence[Picture] = field(default_factory=list)

    def html(self) -> str:
        """The section."""
        parts = [f'<h2>{escape(self.title)}</h2>\n<p class="found">{escape(self.found)}</p>\n']
        parts += [f"<p>{escape(self.text)}</p>\n"] if self.text else []
        parts += [f'<div class="gallery">{"".join(p.html() for p in gallery)}</div>\n' for gallery in self.galleries]
        parts += [table.html() for table in self.tables]
        parts += [picture.html() for picture in self.pictures]
        return "".join(parts)


def write_page(path: str | Path, title: str, opening: str, sections: Sequence[Section], footer: str) -> Path:
    """Write the page; it asks the network for nothing."""
    head = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
    head += f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    body = f"<h1>{escape(title)}</h1>\n<p>{escape(opening)}</p>\n" + "".join(s.html() for s in sections)
    page = f"{head}{body}<footer>{escape(footer)}</footer>\n</main>\n</body>\n</html>\n"
    write_atomically(Path(path), lambda aside: aside.write_text(page, encoding="utf-8"))
    return Path(path)
