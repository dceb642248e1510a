"""On a GPU the instruments give the numbers of the CPU."""

import pytest
import torch

from infsa.evaluate import align, removal_curves, removal_ranks
from tests.models.helpers import images, small

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("fill", ["mean", "blur", "road", "tokens"])
@pytest.mark.parametrize("attention", ["softmax", "infsa_pure", "infsa_linear"])
def test_curves(fill, attention):
    model, batch = small(attention).double(), images().double()
    ranks = removal_ranks(torch.rand(2, 16), torch.rand(2, 16))
    classes = torch.tensor([1, 2])
    host = removal_curves(model, batch, ranks, torch.arange(2), classes, grid=(4, 4), fill=fill)
    moved = [x.cuda() for x in (batch, ranks, torch.arange(2), classes)]
    found = removal_curves(model.cuda(), *moved, grid=(4, 4), fill=fill)
    torch.testing.assert_close(found.cpu(), host, atol=1e-4 if fill == "road" else 1e-6, rtol=1e-5)


def test_alignment():
    model, batch = small("infsa_pure").double(), images().double()
    host = align(model, batch)["blocks.1.attn"]
    found = align(model.cuda(), batch.cuda())["blocks.1.attn"].cpu()
    torch.testing.assert_close(found.cosine["a"], host.cosine["a"])
    torch.testing.assert_close(found.ratio, host.ratio)
