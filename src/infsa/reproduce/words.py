"""The numbers of a row of the ledger in words."""

from typing import Any

from ..report.bench_tables import number

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Ledger = dict[str, Any]
Row = dict[str, Any]


def shown(value: float | None, row: Row) -> str:
    """A number with its unit; a statement as yes or no."""
    if value is None:
        return "–"
    if row["kind"] == "statement":
        return "yes" if value else "no"
    if value and not 1e-4 <= abs(value) < 1e7:
        mantissa, _, power = f"{value:.2e}".partition("e")
        text = f"{mantissa}·10{str(int(power)).translate(RAISED)}"
    else:
        text = number(value, 4 if row["kind"] in ("value", "score") else 3)
        text = text.rstrip("0").rstrip(".") if "." in text else text
    signed = f"+{text}" if row["kind"] == "difference" and value > 0 else text
    return f"{signed} {row['unit']}".strip()


def ours(row: Row) -> str:
    """Our number with its standard error."""
    found = shown(row["ours"], row)
    return found + (f" ± {number(row['error'], 2)}" if row.get("error") else "")


def said(row: Row) -> str:
    """The paper's number."""
    return "not given" if row["paper"] is None else shown(row["paper"], row)


def row_of_claim(ledger: Ledger, target: str, claim: str) -> Row:
    """A row by its target and claim."""
    return next(row for row in ledger["targets"][target]["rows"] if row["claim"] == claim)


def slug(title: str) -> str:
    """The anchor of a heading of plain words."""
    return title.lower().replace(" ", "-")
