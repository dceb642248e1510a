"""The ledger in one table: how many claims of each topic got which verdict, and the claims that matter most."""

from ..report.table import Table
from .claims import LAUNCH_BOUND, SUPPORTED, VERDICTS
from .topics import ACCURACY, FLOPS, LARGEST, MAPS, PARAMETERS, SPEED, THEORY, TOPICS
from .words import Ledger, ours, row_of_claim, said

MAIN: dict[str, tuple[tuple[str, str, str], ...]] = {  # topic -> what the table calls a claim, its target, its name
    PARAMETERS: (("Linear, 4 layers", "table1", "Linear 4L, parameters"),),
    FLOPS: (("forward pass at 224²", "training-cost", "forward pass at 224²"),),
    SPEED: (
        ("speed-up over softmax (unfused) at 1024²", "table1",
         "Linear 4L, infer 1024², faster than softmax (unfused)"),
        ("less energy there", "table1", "Linear 4L, infer 1024², less energy than softmax (unfused)"),
        ("training speed-up at 512²", "table1", "Linear 4L, train 512², faster than softmax (unfused)"),
    ),
    LARGEST: (
        ("Linear runs at 9216² in 40 GB", "extreme", "Linear 4L completes 9216² inference in 40 GB"),
        ("all others run out of memory there", "extreme", "all other mechanisms run out of 40 GB at 9216²"),
    ),
    ACCURACY: (
        ("Linear minus softmax", "table-classification", "Linear 4L above softmax in the same recipe, top-1"),
        ("Pure minus softmax", "table-classification", "Pure 4L above softmax in the same recipe, top-1"),
    ),
    MAPS: (
        ("Linear minus softmax in MoRF-AOC", "fig-quality", "Linear above softmax, MoRF-AOC"),
        ("Pure minus softmax in box ROC-AUC", "fig-quality", "Pure above softmax, ROC-AUC"),
    ),
    THEORY: (
        ("the sum over all paths converges", "supplement-theory", "Σ γᵗÂᵗ converges for γ < 1"),
        ("rank of Linear's output over tokens", "fig-method", "rank of 64 Linear heads over tokens"),
    ),
}  # fmt: skip


def in_short(ledger: Ledger, label: str, target: str, claim: str) -> str:
    """One claim: our number, the paper's, the verdict."""
    row = row_of_claim(ledger, target, claim)
    effect = row["kind"] in ("difference", "ratio") and row["verdict"] == SUPPORTED
    why = "launch-bound" if row["why"] == LAUNCH_BOUND else row["why"] if effect else ""
    verdict = row["verdict"] + (f" ({why})" if why else "")
    if row["kind"] == "statement":
        return f"{label}: **{verdict}**"
    bare = {**row, "error": 0, "unit": ""}
    attached, apart = ("×", "") if row["unit"] == "×" else ("", row["unit"] and f" {row['unit']}")
    return f"{label}: {ours(bare)}{attached}, paper {said(bare)}{attached}{apart}, **{verdict}**"


def topic_table(ledger: Ledger) -> str:
    """Topics, how many claims and verdicts they have, and the main claims; what launch-bound means."""
    rows = []
    for topic in TOPICS:
        counts = ledger["counts_by_topic"][topic]
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
        main = "; ".join(in_short(ledger, *claim) for claim in MAIN[topic])
        rows.append([topic, str(sum(counts.values())), verdicts, main])
    return Table(["topic", "claims", "verdicts", "main claims"], rows).markdown() + launch_note(ledger)


def launch_note(ledger: Ledger) -> str:
    """Why rows are launch-bound and what would decide them; empty if none is open."""
    rows = [row for target in ledger["targets"].values() for row in target["rows"]]
    if not any(row["why"] == LAUNCH_BOUND for row in rows):
        return ""
    return (
        "\nLaunch-bound: the GPU waits for the host, so eager times say little about the mechanism. The "
        "CUDA-graph rows that would decide have not been measured yet.\n"
    )
