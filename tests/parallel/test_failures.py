"""A rank that is lost is named as such to the others, within the group's time limit."""

import re

import pytest

from infsa import parallel
from tests.parallel import children
from tests.train.helpers import together


@pytest.mark.parametrize(
    ("attention", "moment"),
    [("infsa_linear", "forward"), ("infsa_linear", "raises"), ("infsa_pure", "backward"), ("infsa_linear", "absent")],
)
def test_a_lost_rank_is_one_line(attention, moment, tmp_path):
    world = 3
    codes = together(world, children.lose_a_rank, str(tmp_path), attention, moment, console=tmp_path / "console")
    assert codes == [0, {"absent": 0, "raises": 1}.get(moment, -9), 0]
    for rank in (0, 2):
        told = (tmp_path / f"{rank}.txt").read_text()
        assert re.match(rf"rank {rank} of {world}: .* failed, a rank has ended or did not arrive in time: ", told), told
        assert "\n" not in told


def test_no_group_is_one_line():
    with pytest.raises(ValueError, match="there is no process group"):
        parallel.Ranks.of(None)
