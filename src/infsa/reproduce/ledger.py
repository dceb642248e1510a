"""The ledger: for every claim the paper's value, ours, the conditions and the verdict; and checks of our own."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..provenance import provenance
from .beyond import Check, checks
from .claims import RULE, UNTESTABLE, VERDICTS, Claim, Reading, Unavailable, judge
from .sources import Sources, paper
from .targets import TARGETS, check_target
from .topics import TOPICS

Ledger = dict[str, Any]
MEASURED = ("the paper's conditions", "other conditions", "not measured")
SAME = 1e-3  # relative difference that another machine may make in a computed number


def make_ledger(
    names: Iterable[str], sources: Sources, report: Callable[[str, int, int], None] = lambda text, done, total: None
) -> Ledger:
    """Judge every claim of the named targets.

    Example:
        >>> make_ledger(["fig-markov"], Sources("benchmarks/results", "runs/reproduce"))["counts"]["reproduced"]
        2
    """
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        check_target(name)
    targets: dict[str, Any] = {}
    for done, name in enumerate(chosen):
        report("Judging", done, len(chosen))
        target = TARGETS[name]
        rows = [{"topic": target.topic} | row_of(claim, sources) for claim in target.claims()]
        targets[name] = {
            "title": target.title, "source": paper()[target.source]["source"], "needs": target.needs, "rows": rows,
        }  # fmt: skip
    report("Judging", len(chosen), len(chosen))
    every = (row for target in targets.values() for row in target["rows"])
    rows = [row for row in every if row["same_as"][0] not in targets]  # a number that is printed twice counts once
    return {
        "rule": list(RULE),
        "made_with": provenance(),
        "counts": counted(rows),
        "counts_by_topic": {name: counted(row for row in rows if row["topic"] == name) for name in TOPICS},
        "targets": targets,
        "beyond": [check_of(check, sources) for check in checks()] if set(chosen) == set(TARGETS) else [],
        "files": sorted(sources.read),
    }


def counted(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How many rows got which verdict."""
    found = Counter(row["verdict"] for row in rows)
    return {verdict: found[verdict] for verdict in VERDICTS}


def row_of(claim: Claim, sources: Sources) -> dict[str, Any]:
    """One line of the ledger."""
    row: dict[str, Any] = {"claim": claim.what, "kind": claim.kind, "unit": claim.unit, "paper": claim.paper}
    row |= {"tolerance": claim.tolerance, "group": claim.group, "same_as": list(claim.same_as)}
    row |= {"topic": claim.topic} if claim.topic else {}
    try:
        reading = claim.read(sources)
    except Unavailable as error:
        return {**row, "ours": None, "measured": MEASURED[2], "verdict": UNTESTABLE, "why": str(error)}
    verdict, why = judge(claim, reading)
    measured = MEASURED[0] if reading.same else MEASURED[1]
    return {**row, **found_of(reading), "measured": measured, "verdict": verdict, "why": why}


def found_of(reading: Reading) -> dict[str, Any]:
    """What a row keeps of a measurement."""
    return {
        "ours": rounded(reading.value), "error": rounded(reading.error), "setting": reading.setting,
        "detail": reading.detail, "file": reading.file, "comparable": reading.comparable,
        "launch_bound": reading.launch_bound, "at_least": reading.at_least, "note": reading.note,
    }  # fmt: skip


def check_of(check: Check, sources: Sources) -> dict[str, Any]:
    """One check of our own, without a verdict."""
    row = {"claim": check.what, "kind": check.kind, "unit": check.unit}
    try:
        return {**row, **found_of(check.read(sources))}
    except Unavailable as error:
        return {**row, "ours": None, "why": str(error)}


def rounded(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")


def check_ledger(saved: Ledger, made: Ledger) -> list[str]:
    """What differs between a saved ledger and one made now, in words; empty if nothing does."""
    differences = []
    for name in {**saved["targets"], **made["targets"]}:
        old, new = (
            {row["claim"]: row for row in side["targets"].get(name, {}).get("rows", ())} for side in (saved, made)
        )
        for claim in {**old, **new}:
            a, b = old.get(claim), new.get(claim)
            if a is None or b is None:
                differences.append(f"{name}: {claim}: only in one ledger")
            elif a["verdict"] != b["verdict"] or a["paper"] != b["paper"] or not _alike(a["ours"], b["ours"]):
                differences.append(f"{name}: {claim}: {a['ours']} ({a['verdict']}) became {b['ours']} ({b['verdict']})")
    return differences


def _alike(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=SAME, abs_tol=1e-9)
