"""The ledger as a page of the documentation: the headline, the rule, conditions, tables."""

from ..report.table import Table
from .claims import (
    DIFFERS,
    INCONCLUSIVE,
    LARGER,
    LAUNCH_BOUND,
    NOT,
    OF_PAPER,
    REPRODUCED,
    SAME_DIRECTION,
    SMALLER,
    SUPPORTED,
    UNTESTABLE,
)
from .headline import topic_table
from .words import Ledger, Row, ours, said, shown, slug

COLUMNS = ["claim", "paper", "ours", "verdict", "conditions"]
FAR_LARGER = 200  # per cent of the paper's effect
SPEED_UP = ", faster than softmax (unfused)"
SYMBOLS = {  # in tables of several claims a row
    REPRODUCED: "✓", LARGER: "↑", SMALLER: "↓", NOT: "✗", INCONCLUSIVE: "?", SUPPORTED: "≈", DIFFERS: "≠",
    UNTESTABLE: "–",
}  # fmt: skip


def line(row: Row) -> list[str]:
    """The cells of one claim, as the command prints them."""
    parts = (row.get("setting"), row.get("detail"), row.get("file"))
    return [row["claim"], said(row), ours(row), f"{row['verdict']}: {row['why']}", "; ".join(filter(None, parts))]


def in_words(setting: str) -> str:
    """Conditions in a few words: what stands before the colon."""
    return setting.partition(": ")[0]


def conditions(ledger: Ledger) -> str:
    """The conditions that need more than a few words."""
    rows = [row for target in ledger["targets"].values() for row in target["rows"]]
    names = dict.fromkeys(row["setting"] for row in rows if ": " in row.get("setting", ""))
    lines: list[str] = []
    known: set[str] = set()
    for name in names:
        parts = name.partition(": ")[2].split("; ")
        new = [part for part in parts if part not in known]
        lines.append(f"- **{in_words(name)}**: {'; '.join(new)}{'; otherwise the same' * (new != parts)}\n")
        known.update(parts)
    return "".join(lines)


def compact(table: Table) -> str:
    """A table in Markdown without the spaces around its bars."""
    return table.markdown().replace(" | ", "|").replace("| ", "|").replace(" |\n", "|\n")


def both(row: Row) -> str:
    """The paper's number and ours, without units and errors; the paper's alone where ours cannot be compared."""
    bare = {**row, "unit": ""}
    return shown(row["paper"], bare) + ("" if row["verdict"] == UNTESTABLE else f"→{shown(row['ours'], bare)}")


def grid(rows: list[Row]) -> str:
    """Claims of several groups: a row for each subject, a column for each group."""
    groups = list(dict.fromkeys(row["group"] for row in rows))
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        subject = row["claim"].removesuffix(row["group"]).strip()
        found.setdefault(subject, {})[row["group"]] = f"{both(row)} {SYMBOLS[row['verdict']]}"
    heads = [group.replace(SPEED_UP, ", speed-up").strip(", ") for group in groups]
    reasons: dict[str, dict[str, None]] = {}
    for row in rows:
        reasons.setdefault(row["verdict"], {})[_why_open(row)] = None
    shown_reasons = {verdict: "; ".join(filter(None, whys)) for verdict, whys in reasons.items()}
    legend = ", ".join(f"{SYMBOLS[v]} {v}{f' ({why})' if why else ''}" for v, why in shown_reasons.items())
    table = Table(["model", *heads], [[name, *(row.get(g, "") for g in groups)] for name, row in found.items()])
    blank = "; blank: not claimed" if any(len(row) < len(groups) for row in found.values()) else ""
    return f"Paper→ours; {legend}{blank}.\n\n{compact(table)}"


def _why_open(row: Row) -> str:
    if row["why"] == LAUNCH_BOUND:
        return "launch-bound"
    return str(row["why"]) if row["verdict"] == UNTESTABLE else ""


def judged(row: Row) -> str:
    """The verdict, and its reason where the columns do not show it; of a share, the number."""
    if row["why"] == LAUNCH_BOUND:
        reason = "launch-bound"
    elif row["kind"] in ("ratio", "difference"):
        reason = "" if row["why"] == SAME_DIRECTION else _share(row["why"].partition(OF_PAPER)[0])
    else:
        reason = row["detail"] if row["verdict"] in (NOT, DIFFERS) and not row["note"] else ""
    return ", ".join(filter(None, [f"**{row['verdict']}**", reason, row["note"]]))


def _share(words: str) -> str:
    """A share of the paper's effect; a large one as a multiple."""
    number = words.removesuffix("%")
    return f"{int(number) / 100:.0f} times" if number.isdigit() and int(number) >= FAR_LARGER else words


def cells(row: Row) -> list[str]:
    """A claim that stands alone: unit with the claim, the paper's number, ours with its error."""
    short = row["unit"] in ("×", "%")
    bare = {**row, "unit": ""}
    unit = row["unit"] if short else ""
    claim = row["claim"] + (f", {row['unit']}" if row["unit"] and not short and row["unit"] != "points" else "")
    paper = shown(row["paper"], bare) + (unit if row["paper"] is not None else "")
    return [cell.replace("|", "\\|") for cell in (claim, paper, ours(bare).replace(" ± ", "±") + unit)]


def open_lines(rows: list[Row]) -> str:
    """Claims that cannot be tested here, those of one reason in one line."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row["why"], []).append(f"{row['claim']} ({said(row)})")
    return "".join(f"- {UNTESTABLE.capitalize()}, {why}: {', '.join(found)}\n" for why, found in reasons.items())


def elsewhere(rows: list[Row], ledger: Ledger, here: list[str]) -> str:
    """Numbers that the paper prints twice, with a link to the target where they count unless it is one of ``here``."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["same_as"][0], []).append(f"{row['claim']} ({said(row)})")
    lines = []
    for target, claims in found.items():
        title = ledger["targets"][target]["title"]
        where = "above" if target in here else f"in [{title}](#{slug(title)})"
        lines.append(f"- Counted {where}: {', '.join(claims)}\n")
    return "".join(lines)


def sections(ledger: Ledger) -> list[list[str]]:
    """The names of the targets, those of one source together."""
    found: dict[str, list[str]] = {}
    for name, target in ledger["targets"].items():
        found.setdefault(target["source"], []).append(name)
    return list(found.values())


def section(names: list[str], ledger: Ledger) -> str:
    """The targets of one source: what they are, what was decided, what was not."""
    target = ledger["targets"][names[0]]
    every = [row for name in names for row in ledger["targets"][name]["rows"]]
    rows = [row for row in every if not any(row["same_as"])]
    under = dict.fromkeys(in_words(row["setting"]) for row in every if row.get("setting"))
    ids = ", ".join(f"`{name}`" for name in names)
    parts = [f"## {target['title']}\n\n{target['source']} ({ids}). Here: {'; '.join(under) or 'not measured'}.\n"]
    if grouped := [row for row in rows if row["group"]]:
        parts.append(grid(grouped))
    single = [row for row in rows if not row["group"]]
    if decided := [row for row in single if row["verdict"] != UNTESTABLE]:
        parts.append(compact(Table(COLUMNS[:4], [[*cells(row), judged(row)] for row in decided])))
    below = open_lines([row for row in single if row["verdict"] == UNTESTABLE])
    below += elsewhere([row for row in every if any(row["same_as"])], ledger, names)
    return "\n".join([*parts, *([below] if below else [])])


def page(ledger: Ledger) -> str:
    """The whole page in Markdown."""
    facts = ledger["made_with"]
    beyond = [
        [*cells({"paper": None, **row})[::2], row.get("detail") or row.get("why", "")] for row in ledger["beyond"]
    ]
    return "\n".join([
        "# Which claims of the paper hold\n",
        topic_table(ledger),
        "Written by `infsa reproduce --document`; values: `benchmarks/results/ledger.json`.\n",
        "## The rule\n",
        "".join(f"{place}. {rule}\n" for place, rule in enumerate(ledger["rule"], start=1)),
        "## Conditions\n",
        "4L: 4 layers of 64 heads; 24L: 24 of 16. Pure, Linear: the paper's InfViT; softmax (unfused): its Standard "
        "ViT. Here: our conditions. Differences: in points. ±: standard error; –: not given. Percentages beside "
        "verdicts: of the paper's effect, from 200% as multiples. Slashes separate "
        "runs.\n",
        conditions(ledger),
        *(section(names, ledger) for names in sections(ledger)),
        "## Beyond the paper\n",
        compact(Table(["check", "ours", "detail"], beyond)),
        f"infsa {facts['infsa']}, torch {facts['torch']}.\n",
    ])  # fmt: skip
