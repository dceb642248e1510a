"""The chunked operator never holds N×N: 32,768 tokens would need 4 GB for one score matrix."""

import subprocess
import sys
from pathlib import Path

import pytest

PROBE = Path(__file__).with_name("memory_probe.py")
LIMIT = 200  # MB beyond inputs, output and gradients
N = 32768

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")


def peaks(impl, n, causal="full"):
    """MB above the inputs in the forward pass, and above inputs and results in both passes."""
    command = [sys.executable, str(PROBE), impl, str(n), causal]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(map(float, done.stdout.split()))


def test_the_probe_sees_a_dense_matrix():
    """The dense reference at 8,192 tokens holds at least one matrix of 256 MB."""
    forward, both = peaks("reference", 8192)
    assert forward > 256
    assert both > 256


@pytest.mark.parametrize("causal", ["full", "causal"])
def test_chunked_memory_is_linear(causal):
    forward, both = peaks("chunked", N, causal)
    assert forward < LIMIT
    assert both < LIMIT
