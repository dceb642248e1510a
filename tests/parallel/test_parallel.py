"""Tokens spread over two or four processes give what one process gives."""

import json

import pytest

from tests.parallel import children
from tests.train.helpers import together


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What every check of a group came to, on every rank; each group is started once."""
    done = {}

    def of(world):
        if world not in done:
            out = tmp_path_factory.mktemp(f"world-{world}")
            together(world, children.run_checks, str(out), console=out / "console")
            done[world] = [json.loads((out / f"{rank}.json").read_text()) for rank in range(world)]
        return done[world]

    return of


@pytest.mark.parametrize(
    ("world", "name"),
    [(world, name) for world in (2, 4) for name in children.names(world)],
    ids=lambda value: str(value),
)
def test_equals_one_process(world, name, outcomes):
    for rank, outcome in enumerate(outcomes(world)):
        assert outcome.get(name, "not reached") == "ok", f"rank {rank}: {outcome.get(name)}"
