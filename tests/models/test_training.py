"""Every mechanism learns: 200 steps on generated data lower the loss."""

import pytest
import torch

from .helpers import NAMES, small


def batch(generator, size=16):
    """A square somewhere on noise; the class is its colour."""
    x = 0.3 * torch.randn(size, 3, 32, 32, generator=generator)
    label = torch.randint(3, (size,), generator=generator)
    corner = torch.randint(16, (size, 2), generator=generator)
    for image, colour, (row, column) in zip(x, label.tolist(), corner.tolist(), strict=True):
        image[colour, row : row + 16, column : column + 16] += 1.5
    return x, label


@pytest.mark.parametrize("attention", NAMES)
def test_two_hundred_steps_lower_the_loss(attention):
    model = small(attention, num_classes=3, depth=2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(200):
        x, label = batch(generator)
        loss = torch.nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    first, last = sum(losses[:20]) / 20, sum(losses[-20:]) / 20
    assert last < 0.5 * first, (first, last)
