"""The ledger: for every claim the paper's value, ours, the conditions and the verdict."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..provenance import provenance
from .claims import RULE, UNTESTABLE, VERDICTS, Claim, Unavailable, judge
from .sources import Sources, paper
from .targets import TARGETS, check_target

Ledger = dict[str, Any]
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
        rows = [row_of(claim, sources) for claim in target.claims()]
        targets[name] = {
            "title": target.title, "source": paper()[target.source]["source"], "needs": target.needs, "rows": rows,
        }  # fmt: skip
    report("Judging", len(chosen), len(chosen))
    found = Counter(row["verdict"] for target in targets.values() for row in target["rows"])
    return {
        "rule": list(RULE),
        "made_with": provenance(),
        "files": sorted(sources.read),
        "counts": {verdict: found[verdict] for verdict in VERDICTS},
        "targets": targets,
    }


def row_of(claim: Claim, sources: Sources) -> dict[str, Any]:
    """One line of the ledger."""
    row: dict[str, Any] = {"claim": claim.what, "kind": claim.kind, "unit": claim.unit, "paper": claim.paper}
    try:
        reading = claim.read(sources)
    except Unavailable as error:
        return {**row, "ours": None, "verdict": UNTESTABLE, "why": str(error)}
    verdict, why = judge(claim, reading)
    found = {"ours": rounded(reading.value), "error": rounded(reading.error), "conditions": reading.conditions}
    return {**row, **found, "file": reading.file, "verdict": verdict, "why": why}


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
