"""What ``benchmarks/eager.py`` measures beside our models computes what they compute."""

import torch

from tests.scripts import load_script


@torch.no_grad()
def test_the_equations_as_they_stand_give_the_same_logits():
    eager = load_script("eager")
    linear, written = (eager.built(kind, 24, 32, True).float().eval() for kind in ("linear", eager.WRITTEN))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(eager.DEVICE)
    torch.testing.assert_close(written(images), linear(images), rtol=1e-4, atol=1e-5)
