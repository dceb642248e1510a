"""Failed comparisons of runs say what differs."""

import pytest

pytest.register_assert_rewrite("tests.train.helpers")
