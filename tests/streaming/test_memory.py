"""The memory budget: parsed, obeyed, and refused with the least that works."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import infsa
from infsa.streaming.memory import parse_bytes, resident, show_bytes

from .helpers import picture, small


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2**31), ("500 MB", 500_000_000), ("1.5GiB", 3 * 2**29), ("64", 64), (4096, 4096), ("3g", 3 * 2**30)],
)
def test_sizes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "2 Gib extra", "-1GiB", "0", 0, -5, True, "1e9", None])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="memory must be"):
        parse_bytes(text)


def test_a_refusal_names_what_works():
    model, x = small(), picture()
    with pytest.raises(ValueError, match="too small") as caught:
        infsa.stream(model, x, memory="10MiB")
    number, unit = re.search(r"need ([\d.]+) (MiB|GiB)", str(caught.value)).groups()
    least = float(number) * (2**30 if unit == "GiB" else 2**20) + 2**24  # what it shows is rounded
    assert infsa.stream(model, x, memory=int(least)).logits.shape == (1, 5)


def test_a_spill_that_does_not_fit_names_what_would():
    model, x = small(patch_size=1, img_size=8), picture(400, 400)  # 41 MB of tokens
    with pytest.raises(ValueError, match=r"strategy='spill' keeps 39 MiB .* raise memory to .* or name a scratch"):
        infsa.stream(model, x, tile=64, memory=resident() + 216 * 2**20, strategy="spill")


def test_a_full_disk_is_refused_beforehand(tmp_path, monkeypatch):
    from infsa.streaming import spill

    monkeypatch.setattr(spill.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    model, x = small(patch_size=1, img_size=8, depth=1), picture(400, 400)
    with pytest.raises(ValueError, match="free, the tokens need"):
        infsa.stream(model, x, tile=64, memory=resident() + 216 * 2**20, scratch=tmp_path)


PROBE = """
import re, sys
import infsa, infsa.streaming
from infsa.streaming.memory import parse_bytes, resident

model = infsa.models.InfViT(img_size=64, patch_size=16, embed_dim=64, depth=2, num_heads=4, num_classes=5).eval()
try:
    infsa.stream(model, sys.argv[1], tile=512, memory="1MiB")
except ValueError as error:
    budget = parse_bytes(re.search(r"need ([\\d.]+ (MiB|GiB))", str(error))[1].replace(" ", "")) + 2**23
room = budget - resident()
result = infsa.stream(model, sys.argv[1], tile=512, memory=budget)
print(budget, room, result.peak_memory, result.strategy)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory as Linux counts it")
def test_the_least_budget_is_obeyed(tmp_path):
    """In a process of its own: 6144 × 4096 pixels, whose model input alone would take 288 MiB."""
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 255, (6144, 4096, 3), np.uint8))
    process = subprocess.Popen([sys.executable, "-c", PROBE, str(tmp_path / "image.npy")], stdout=subprocess.PIPE)
    out = process.stdout.read().split()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    budget, room, peak = (int(word) for word in out[:3])
    assert room < 6144 * 4096 * 3 * 4
    assert peak <= usage.ru_maxrss * 1024 <= budget, show_bytes(usage.ru_maxrss * 1024)
