"""The memory budget: parsed, obeyed, and refused with the least that works."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import infsa
from infsa.streaming.memory import parse_bytes, resident, show_bytes

from .helpers import picture, small


def test_a_size_is_shown_in_the_unit_it_rounds_to():
    assert [show_bytes(2**30 - 1), show_bytes(2**29)] == ["1.00 GiB", "512 MiB"]


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


@pytest.mark.parametrize("patch", [16, (8, 2)])
def test_the_plan_knows_what_a_stem_holds(patch):
    """Of the largest tile with its margin: what any convolution reads and gives, at once; for gradients, all of it."""
    from infsa.streaming.plan import graph_bytes, working_bytes
    from infsa.streaming.run import prepare
    from infsa.streaming.source import open_source

    model, x, held = small(patch_size=patch, stem="conv", embed_dim=64, depth=1), picture(200, 200), []
    plain = small(patch_size=patch, embed_dim=64, depth=1)
    network, feed = prepare(model, open_source(x), 100)
    for module in model.patch_embed.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda _, given, made: held.append(given[0].nbytes + made.nbytes))
    middle = max((network.tiling[number] for number in range(len(network.tiling))), key=lambda tile: tile.lead)
    network.embed(next(feed([middle.number]))[1], middle)
    assert max(held) < working_bytes(network)
    assert sum(held) < graph_bytes(network, 1) - graph_bytes(prepare(plain, open_source(x), 100)[0], 1)


def test_a_spill_that_does_not_fit_names_what_would():
    model, x = small(patch_size=1, img_size=8), picture(400, 400)  # 41 MB of tokens
    with pytest.raises(ValueError, match=r"strategy='spill' keeps 39 MiB .* raise memory to .* or name a scratch"):
        infsa.stream(model, x, tile=64, memory=resident() + 216 * 2**20, strategy="spill")


def test_a_full_disk_is_refused_beforehand(tmp_path, monkeypatch):
    """Streaming keeps 39 MiB of tokens; the backward pass, of one layer, as much again for their gradients."""
    from infsa.streaming import plan, stream_backward

    free = 60 * 2**20
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    monkeypatch.setattr(plan, "available", lambda: 0)
    model, x = small(patch_size=1, img_size=8, depth=1), picture(400, 400)
    assert infsa.stream(model, x, tile=64, scratch=tmp_path).strategy == "spill"
    with pytest.raises(ValueError, match=r"has 60 MiB free, the tokens need 78 MiB"):
        stream_backward(model, x, lambda logits: logits.sum(), tile=64, scratch=tmp_path)
    free = 1000
    with pytest.raises(ValueError, match="free, the tokens need 39 MiB"):
        infsa.stream(model, x, tile=64, scratch=tmp_path)


def test_a_disk_that_fills_up_is_named(tmp_path, monkeypatch):
    from infsa.streaming import plan, spill

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan, "available", lambda: 0)
    monkeypatch.setattr(spill.os, "pwrite", full)
    with pytest.raises(OSError, match=f"{tmp_path}: No space left on device"):
        infsa.stream(small(), picture(), tile=64, scratch=tmp_path)


def test_a_container_limits_what_is_available(tmp_path):
    from infsa.streaming.memory import container_room

    assert container_room(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert container_room(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 250\n")
    assert container_room(tmp_path) == 550  # cached files give way


COUNTING = 4 * 2**20  # Linux keeps part of both counters per processor: they agree only to within some pages

PROBE = """
import re, sys
import infsa, infsa.streaming
from infsa.streaming.memory import parse_bytes, resident

model = infsa.models.InfViT(img_size=64, patch_size=16, embed_dim=64, depth=1, num_heads=4, num_classes=5).eval()
try:
    infsa.stream(model, sys.argv[1], tile=512, memory="1MiB")
except ValueError as error:
    budget = parse_bytes(re.search(r"need ([\\d.]+ (MiB|GiB))", str(error))[1].replace(" ", "")) + 2**23
room = budget - resident()
result = infsa.stream(model, sys.argv[1], tile=512, memory=budget)
status = open("/proc/self/status").read()
print(budget, room, result.peak_memory, int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory as Linux counts it")
def test_the_least_budget_is_obeyed(tmp_path):
    """In a process of its own: 6144 × 4096 pixels, whose model input alone would take 288 MiB."""
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 255, (6144, 4096, 3), np.uint8))
    command = [sys.executable, "-c", PROBE, str(tmp_path / "image.npy")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    budget, room, peak, highest = (int(word) for word in out.split())
    assert room < 6144 * 4096 * 3 * 4
    assert max(peak, highest) <= budget, show_bytes(max(peak, highest))
    assert peak <= highest + COUNTING, "a peak that never was"
