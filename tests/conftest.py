"""Every test draws the same numbers, whatever ran before it."""

import pytest
import torch

pytest.register_assert_rewrite("tests.train.helpers")  # failed comparisons of runs say what differs
torch.manual_seed(0)  # for what modules build while they are collected


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
