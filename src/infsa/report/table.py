"""Tables of words: for the terminal (columns where they fit, lines where they do not), for Markdown and for HTML."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

INDENT = 4  # of the lines that a row is folded into
GAP = "   "  # between two values of such a line
ANY_WIDTH = 10_000
NONE = "–"
NUMBER = "+-–~0123456789"  # how the cells of a column of numbers begin


@dataclass(frozen=True)
class Table:
    """Column names and rows of words, with a title and a caption for the terminal.

    Printed by rich, it has columns if none has to be broken; otherwise every row is lines, each value with its name.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""

    def titled(self, title: str, caption: str = "") -> "Table":
        """The same table with a title and a caption."""
        return replace(self, title=title, caption=caption)

    def markdown(self) -> str:
        """The columns and rows in Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def html(self) -> str:
        """The columns and rows in HTML."""
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows)
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n'

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.title:
            yield Text(self.title, style="bold")
        table = self.in_columns()
        wanted = Measurement.get(console, options.update_width(ANY_WIDTH), table).maximum
        if wanted <= options.max_width:
            yield table
        else:
            yield Text("\n".join(self.in_lines(console, options.max_width)), no_wrap=True, overflow="ignore")
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def in_columns(self) -> RichTable:
        """As columns, numbers to the right."""
        table = RichTable(box=SIMPLE_HEAD)
        for index, column in enumerate(self.columns):
            numbers = all(not row[index] or row[index][0] in NUMBER for row in self.rows)
            table.add_column(Text(column), justify="right" if index and numbers else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def in_lines(self, console: Console, width: int) -> Iterator[str]:
        """As lines: the first value of a row, and below it the others with the names of their columns."""
        first = ""
        for row in self.rows:
            first = row[0] or first  # an empty cell stands for the one above it
            yield from broken(console, f"{self.columns[0]}: {first}", width)
            pairs = [
                f"{name}: {cell}"
                for name, cell in zip(self.columns[1:], row[1:], strict=True)
                if cell not in ("", NONE)
            ]
            for line in packed(pairs, width - INDENT):
                yield from (" " * INDENT + part for part in broken(console, line, width - INDENT))


def broken(console: Console, line: str, width: int) -> list[str]:
    """A line that is too long as several, broken between words where possible."""
    return [part.plain.rstrip() for part in Text(line, overflow="fold").wrap(console, max(1, width))]


def packed(words: list[str], width: int) -> list[str]:
    """Words side by side, as many to a line as fit."""
    lines: list[str] = []
    for word in words:
        if lines and cell_len(lines[-1]) + len(GAP) + cell_len(word) <= width:
            lines[-1] += GAP + word
        else:
            lines.append(word)
    return lines
