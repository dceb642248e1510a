"""The ledger as a page of the documentation: findings, the rule, conditions, tables."""

from typing import Any

from ..report.bench_tables import number
from ..report.table import Table
from .claims import INCONCLUSIVE, LAUNCH_BOUND, NOT, PARTLY, UNTESTABLE, VERDICTS

Ledger = dict[str, Any]
Row = dict[str, Any]
COLUMNS = ["claim", "paper", "ours", "verdict", "conditions"]
OPEN = (INCONCLUSIVE, UNTESTABLE)  # listed below the tables, by their reason


def shown(value: float | None, row: Row) -> str:
    """A number with its unit; a statement as yes or no."""
    if value is None:
        return "–"
    if row["kind"] == "statement":
        return "yes" if value else "no"
    if value and not 1e-4 <= abs(value) < 1e7:
        mantissa, _, power = f"{value:.2e}".partition("e")
        text = f"{mantissa}·10^{int(power)}"
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


def line(row: Row) -> list[str]:
    """The cells of one claim, as the command prints them."""
    parts = (row.get("setting"), row.get("detail"), row.get("file"))
    return [row["claim"], said(row), ours(row), f"{row['verdict']}: {row['why']}", "; ".join(filter(None, parts))]


def counts_table(ledger: Ledger) -> Table:
    """How many claims got which verdict, by the conditions of our measurements."""
    counts = {**ledger["counts_by_conditions"], "all claims": ledger["counts"]}
    rows = [[name, *(str(found[verdict] or "–") for verdict in VERDICTS)] for name, found in counts.items()]
    return Table(["measured under", *VERDICTS], rows)


def _found(ledger: Ledger, target: str, claim: str) -> str:
    """A claim's numbers and verdict in a few words."""
    row = next(row for row in ledger["targets"][target]["rows"] if row["claim"] == claim)
    if row["kind"] == "statement":
        return row["verdict"]
    return f"{ours(row)}, paper {said(row)} ({row['verdict']})"


def summary(ledger: Ledger) -> str:
    """The finding in five lines."""

    def found(target: str, claim: str) -> str:
        return _found(ledger, target, claim)

    speed = "faster than Standard ViT"
    lines = [
        f"**Speed.** Linear 4L against unfused softmax at 1024²: {found('fig-dashboard', 'speed-up over Standard ViT')}"
        f"; energy: {found('table1', 'InfViT Linear 4L-64H, infer 1024², less energy than Standard ViT')}; training at "
        f"512²: {found('table1', f'InfViT Linear 4L-64H, train 512², {speed}')}.",
        "**Memory.** Linear infers 9216² in 40 GB: "
        f"{found('extreme', 'Linear 4L completes 9216² inference in 40 GB')}; all others run out: "
        f"{found('extreme', 'all other mechanisms run out of 40 GB at 9216²')}.",
        "**Accuracy, small scale.** Above softmax: Linear "
        f"{found('table-classification', 'InfViT-Linear (4L) above a ViT of the same recipe, top-1')}; Pure "
        f"{found('table-classification', 'InfViT-Pure (4L) above a ViT of the same recipe, top-1')}.",
        "**Attention maps, small scale.** Above softmax: Linear MoRF-AOC "
        f"{found('fig-quality', 'Linear InfSA above Standard ViT, MoRF-AOC')}; Pure box ROC-AUC "
        f"{found('fig-quality', 'Pure InfSA above Standard ViT, ROC-AUC')}.",
        "**Theory.** Cosine of a with the Perron vector: "
        f"{found('table-alignment', 'cosine of a and the Perron vector')}; ρ(Â) < 1: "
        f"{found('supplement-theory', '‖Â‖ = 1 makes Â contractive: ρ(Â) < 1')}; dimensions of a Linear layer over "
        f"tokens: {found('fig-method', 'dimensions that 64 Linear heads span over tokens')}.",
    ]
    return "".join(f"- {text}\n" for text in lines)


def settings(ledger: Ledger) -> dict[str, str]:
    """A letter for each of the conditions that rows share."""
    rows = [row for target in ledger["targets"].values() for row in target["rows"]] + ledger["beyond"]
    names = dict.fromkeys(row["setting"] for row in rows if row.get("setting"))
    return {name: chr(ord("A") + place) for place, name in enumerate(names)}


def open_lines(rows: list[Row]) -> str:
    """Claims without a decision, those of one reason in one line."""
    reasons: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        group = row["group"] if row["group"] and row["claim"].endswith(row["group"]) else ""
        reasons.setdefault((row["verdict"], row["why"]), {}).setdefault(group, []).append(row)
    lines = []
    for (verdict, why), groups in reasons.items():
        parts = []
        for group, found in groups.items():
            items = ", ".join(f"{_short(row, group)} ({both(row)})" for row in found)
            parts.append(f"{group}: {items}" if group else items)
        reason = "launch-bound, rule 7" if why == LAUNCH_BOUND else why
        lines.append(f"- **{verdict}** ({reason}): {'; '.join(parts)}\n")
    return "".join(lines)


def both(row: Row) -> str:
    """The paper's number and ours, without errors; the paper's alone where ours cannot be compared."""
    if row["verdict"] == UNTESTABLE or row["paper"] is None:
        return said(row) if row["paper"] is not None else shown(row["ours"], row)
    return f"{shown(row['paper'], {**row, 'unit': ''})}→{shown(row['ours'], row)}"


def _short(row: Row, group: str) -> str:
    return str(row["claim"].removesuffix(group).strip(" ,")) if group else str(row["claim"])


def compact(table: Table) -> str:
    """A table in Markdown without the spaces around its bars."""
    return table.markdown().replace(" | ", "|").replace("| ", "|").replace(" |\n", "|\n")


def judged(row: Row) -> str:
    """The verdict, and its reason where the columns do not show it."""
    effect = row["kind"] in ("ratio", "difference")
    shows = row["verdict"] == NOT or (row["kind"] == "value" and row["verdict"] == PARTLY)
    reason = row["why"] if effect else row["detail"] if shows else ""
    return f"**{row['verdict']}**" + (f", {reason}" if reason else "")


def section(name: str, target: dict[str, Any], letters: dict[str, str]) -> str:
    """A target: what it is, what was decided, what was not."""
    rows = target["rows"]
    used = sorted({letters[row["setting"]] for row in rows if row.get("setting")})
    under = f" Conditions {', '.join(used)}." if used else ""
    parts = [f"## {name}\n\n{target['title']} ({target['source']}).{under}\n"]
    decided = [row for row in rows if row["verdict"] not in OPEN]
    if decided:
        cells = [[row["claim"], said(row), ours(row), judged(row)] for row in decided]
        escaped = [[cell.replace("|", "\\|") for cell in row] for row in cells]
        parts.append(compact(Table(COLUMNS[:4], escaped)))
    pending = open_lines([row for row in rows if row["verdict"] in OPEN])
    return "\n".join([*parts, *([pending] if pending else [])])


def page(ledger: Ledger) -> str:
    """The whole page in Markdown."""
    facts, letters = ledger["made_with"], settings(ledger)
    beyond = [[row["claim"], ours(row), row.get("detail") or row.get("why", "")] for row in ledger["beyond"]]
    files = ", ".join(f"`{name}`" for name in ledger["files"]) or "none"
    return "\n".join([
        "# What of the paper was reproduced\n",
        counts_table(ledger).markdown(),
        summary(ledger),
        "`infsa reproduce` judges every claim again from the result files; `infsa reproduce --document` writes this "
        "page and `benchmarks/results/ledger.json`, which has the full conditions, raw values and file of every row.\n",
        "## The rule\n",
        "".join(f"{place}. {rule}\n" for place, rule in enumerate(ledger["rule"], start=1)),
        "## Conditions\n",
        "".join(f"- {letter}: {name}\n" for name, letter in letters.items()),
        "Below the tables, what could not be decided (paper→ours).\n",
        *(section(name, target, letters) for name, target in ledger["targets"].items()),
        "## Beyond the paper\n",
        "Checks of our own; no verdicts, not counted.\n",
        compact(Table(["check", "ours", "detail"], beyond)),
        f"Result files read: {files}. Computed with infsa {facts['infsa']} and torch {facts['torch']}.\n",
    ])  # fmt: skip
