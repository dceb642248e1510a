"""On a machine without a GPU, the other files of this folder run in Triton's interpreter.

The interpreter is chosen when Triton is first imported, so it gets a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from infsa.ops.dispatch import HAS_TRITON, INTERPRETED

from .conftest import ANYWHERE

HERE = Path(__file__).parent
FILES = sorted(p.name for p in HERE.glob("test_*.py") if p.name not in ANYWHERE)
GROUPS = [[name for name in FILES if (name == "test_pure.py") == alone] for alone in (True, False)]

pytestmark = pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available() or not HAS_TRITON, reason="the files are collected themselves"
)


@pytest.mark.parametrize("names", GROUPS, ids="+".join)
def test_in_the_interpreter(names):
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *(str(HERE / name) for name in names)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=HERE.parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
