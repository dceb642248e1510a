"""The example of the document runs under torchrun, and both ranks agree."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "distributed.md"
# A model keeps its group, and so threads that may still let go of the last message; if Python ends first, they abort
ENDING = "import gc\n\ndel trained, model, loss\ngc.collect()\n"


def test_example_runs_under_torchrun(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    script = tmp_path / "strips.py"
    script.write_text(example + ENDING)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = sorted(re.findall(r"rank (\d): rows (\d+) to (\d+), loss ([\d.]+)", done.stdout))
    assert [place[:3] for place in said] == [("0", "0", "256"), ("1", "256", "512")]
    assert said[0][3] == said[1][3]
