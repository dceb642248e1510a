"""Every table and figure of the paper as a named target, and the ledger of what was reproduced."""

from .claims import RULE, VERDICTS, Claim, Reading, Unavailable, judge
from .ledger import check_ledger, make_ledger
from .sources import Sources, committed, holds_results, paper
from .targets import TARGETS, Target

__all__ = [
    "RULE",
    "TARGETS",
    "VERDICTS",
    "Claim",
    "Reading",
    "Sources",
    "Target",
    "Unavailable",
    "check_ledger",
    "committed",
    "holds_results",
    "judge",
    "make_ledger",
    "paper",
]
