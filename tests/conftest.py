"""Every test draws the same numbers, whatever ran before it."""

import pytest
import torch

torch.manual_seed(0)  # for what modules build while they are collected


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
