"""Plans and commands that the tests of the benchmark share."""

import sys
from pathlib import Path

from infsa.bench.cases import Case
from infsa.bench.settings import Settings
from infsa.bench.suite import run_plan

HERE = Path(__file__).parent
FAKE = (sys.executable, "-S", str(HERE / "fake_worker.py"))
ALLOCATING = (sys.executable, str(HERE / "allocating_worker.py"))


def cases(*names, **fields):
    return [Case(name, depth=1, heads=2, width=32, size=(64, 64), **fields) for name in names]


def run(plan, path, command=FAKE, **settings):
    return run_plan(plan, path, "cpu", Settings(**{"row_limit": 1.0, **settings}), command=command)


def rows_by_name(content):
    return {row["case"]["mechanism"]: row for row in content["rows"].values()}
