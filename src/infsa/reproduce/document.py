"""The ledger as a page of the documentation."""

from collections import Counter
from typing import Any

from ..report.bench_tables import number
from ..report.table import Table
from .claims import VERDICTS

Ledger = dict[str, Any]
COLUMNS = ["claim", "paper", "ours", "verdict", "conditions"]


def shown(value: float | None, row: dict[str, Any]) -> str:
    """A number with its unit; a statement as yes or no."""
    if value is None:
        return "–"
    if row["kind"] == "statement":
        return "yes" if value else "no"
    if value and not 1e-4 <= abs(value) < 1e7:
        mantissa, _, power = f"{value:.2e}".partition("e")
        text = f"{mantissa}·10^{int(power)}"
    else:
        text = number(value, 4 if row["kind"] == "value" else 3)
        text = text.rstrip("0").rstrip(".") if "." in text else text
    signed = f"+{text}" if row["kind"] == "difference" and value > 0 else text
    return f"{signed} {row['unit']}".strip()


def line(row: dict[str, Any]) -> list[str]:
    """The cells of one claim."""
    ours = shown(row["ours"], row)
    if row.get("error"):
        ours += f" ± {number(row['error'], 2)}"
    said = "not given" if row["paper"] is None else shown(row["paper"], row)
    file = f" [{row['file']}]" if row.get("file") else ""
    cells = [row["claim"], said, ours, f"**{row['verdict']}**: {row['why']}", row.get("conditions", "") + file]
    return [cell.replace("|", "\\|") for cell in cells]


def overview(ledger: Ledger) -> Table:
    """How many claims of each target got which verdict."""
    rows = []
    for name, target in ledger["targets"].items():
        found = Counter(row["verdict"] for row in target["rows"])
        rows.append([f"[`{name}`](#{name})", target["title"], *(str(found[verdict] or "") for verdict in VERDICTS)])
    rows.append(["all", "", *(str(ledger["counts"][verdict]) for verdict in VERDICTS)])
    return Table(["target", "what", *VERDICTS], rows)


def page(ledger: Ledger) -> str:
    """The whole page in Markdown."""
    facts = ledger["made_with"]
    parts = [
        "# What of the paper was reproduced\n",
        "This page is written by `infsa reproduce --document` from `benchmarks/results/ledger.json`; nothing in it is "
        "typed. The command judges every claim again: `infsa reproduce`, or `infsa reproduce table1 fig-markov`.\n",
        "A claim that needs a file which is not there says so, and gets a verdict when the file appears.\n",
        "## The rule\n",
        "".join(f"{place}. {rule}\n" for place, rule in enumerate(ledger["rule"], start=1)),
        "## All targets\n",
        overview(ledger).markdown(),
    ]
    for name, target in ledger["targets"].items():
        parts += [
            f"## {name}\n",
            f"{target['title']}. Source: {target['source']}. Full scale needs {target['needs']}.\n",
        ]
        parts.append(Table(COLUMNS, list(map(line, target["rows"]))).markdown())
    files = ", ".join(f"`{name}`" for name in ledger["files"]) or "none"
    parts.append(f"Result files read: {files}. Computed with infsa {facts['infsa']} and torch {facts['torch']}.\n")
    return "\n".join(parts)
