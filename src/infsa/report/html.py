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

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


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
    head += f"<title>{escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    body = f"<h1>{escape(title)}</h1>\n<p>{escape(opening)}</p>\n" + "".join(s.html() for s in sections)
    page = f"{head}{body}<footer>{escape(footer)}</footer>\n</main>\n</body>\n</html>\n"
    write_atomically(Path(path), lambda aside: aside.write_text(page, encoding="utf-8"))
    return Path(path)
