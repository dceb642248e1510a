import pytest
from hypothesis import settings

from .helpers import small_tiles

# Deterministic examples, and no deadline: a test never asserts a time.
settings.register_profile("infsa", derandomize=True, deadline=None, max_examples=30, print_blob=True)
settings.load_profile("infsa")


@pytest.fixture
def small_blocks():
    """Several tiles for a few dozen tokens."""
    with small_tiles():
        yield
