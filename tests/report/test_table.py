"""Tables in the terminal: never wider than it, and nothing of them lost."""

import io
import random
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from infsa.cli.app import main
from infsa.report.table import Table, packed

LETTERS = "ab [/]*…×é漢γ0.5"


def printed(table, width):
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return stream.getvalue()


def letters(text):
    return "".join(character for character in text if character not in " \n─")


@pytest.mark.parametrize("seed", range(20))
def test_a_table_fits_and_keeps_every_cell(seed):
    chance = random.Random(seed)

    def word():
        return "".join(chance.choices(LETTERS, k=chance.randrange(30))).strip()

    columns = [word() or "a" for _ in range(chance.randrange(1, 7))]
    rows, title, width = [[word() for _ in columns] for _ in range(4)], word(), chance.randrange(20, 120)
    text = printed(Table(columns, rows, title, caption="the end"), width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    kept = letters(text)
    assert all(letters(cell) in kept for cell in (title, "the end", *(cell for row in rows for cell in row)))


def test_a_narrow_terminal_gets_lines_with_names():
    rows = Table(["model", "MoRF", "LeRF"], [["softmax", "41.2 ± 0.3", "–"], ["", "12", "0.5"]])
    assert "model" in printed(rows, 60).splitlines()[1]
    assert printed(rows, 20).splitlines() == [
        "model: softmax",
        "    MoRF: 41.2 ± 0.3",
        "model: softmax",
        "    MoRF: 12",
        "    LeRF: 0.5",
    ]


def test_numbers_stand_to_the_right():
    lines = printed(Table(["name", "number", "word"], [["a", "5", "x"], ["b", "1,234", "longer"]]), 60)
    five, many = (line.split("x")[0].split("longer")[0].rstrip() for line in lines.splitlines()[-3:-1])
    assert len(five) == len(many)


def test_words_are_packed():
    assert packed(["a: 1", "b: 2", "c: 3"], 12) == ["a: 1   b: 2", "c: 3"]
    assert packed([], 12) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["reproduce", "--list"],
        ["reproduce", "table-alignment"],
        ["convert", "-m", "timm:deit_tiny_patch16_224", "--model-option", "depth=2", "--plan"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_fit_eighty_columns(arguments, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["infsa", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    lines = capsys.readouterr().out.splitlines()
    assert stop.value.code == 0
    assert len(lines) > 3
    notes = ("  ", "Read from ", "Written: ")  # sentences and paths are left to the terminal
    assert not [line for line in lines if len(line) > 80 and not line.startswith(notes)]
