"""Tables for the terminal: columns where they fit, lines where they do not."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ..report.table import Rows

INDENT = 4  # of the lines that a row is folded into
GAP = "   "  # between two values of such a line
ANY_WIDTH = 10_000
NONE = ("", "–")  # cells that say nothing
NUMBER = "+-–~0123456789"  # how the cells of a column of numbers begin


class FittedTable:
    """Rows of words. If no column has to be broken: a table. Otherwise every row as lines, each value with its name."""

    def __init__(self, rows: "Rows", title: str = "", caption: str = "") -> None:
        self.columns, self.rows = rows.columns, [[str(cell) for cell in row] for row in rows.rows]
        self.title, self.caption = title, caption

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.title:
            yield Text(self.title, style="bold")
        table = self.table()
        wanted = Measurement.get(console, options.update_width(ANY_WIDTH), table).maximum
        if wanted <= options.max_width:
            yield table
        else:
            yield Text("\n".join(self.lines(console, options.max_width)), no_wrap=True, overflow="ignore")
        if self.caption:
            yield Text(self.caption, style="dim italic")

    def table(self) -> Table:
        """As columns, numbers to the right."""
        table = Table(box=SIMPLE_HEAD)
        for index, column in enumerate(self.columns):
            numbers = all(not row[index] or row[index][0] in NUMBER for row in self.rows)
            table.add_column(Text(column), justify="right" if index and numbers else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def lines(self, console: Console, width: int) -> Iterator[str]:
        """As lines: the first value of a row, and below it the others with the names of their columns."""
        first = ""
        for row in self.rows:
            first = row[0] or first  # an empty cell stands for the one above it
            yield from broken(console, f"{self.columns[0]}: {first}", width)
            pairs = [
                f"{name}: {cell}" for name, cell in zip(self.columns[1:], row[1:], strict=True) if cell not in NONE
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
