"""The whole of every mechanism compiles, and exports with a grid left open."""

import pytest
import torch

from .helpers import BASE, BLOCK, DIM, LARGER, NAMES, build, gradients, tokens

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_compiled_and_eager_agree(name):
    torch._dynamo.reset()  # the mechanisms share one forward, and compiled versions of it are counted
    module = build(name, dtype=torch.float32)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = tokens(LARGER, dtype=torch.float32).requires_grad_()
    out, expected = compiled(x, LARGER), module(x, LARGER)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(out, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


class FromImage(torch.nn.Module):
    """A mechanism behind a prefix token, with the grid taken from the image's shape."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.prefix = torch.nn.Parameter(torch.randn(1, 1, DIM))

    def forward(self, image):
        x = torch.cat([self.prefix.expand(image.shape[0], -1, -1), image.flatten(2).mT], 1)
        return self.attention(x, (image.shape[2], image.shape[3]))


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_exports_with_a_dynamic_grid(name):
    model = FromImage(build(name, dtype=torch.float32)).eval()
    h, w = torch.export.Dim("h", min=2, max=64), torch.export.Dim("w", min=2, max=64)
    program = torch.export.export(model, (torch.randn(2, DIM, 4, 6),), dynamic_shapes=({2: h, 3: w},))
    for grid in (BASE, LARGER, (9, 2)):
        image = torch.randn(2, DIM, *grid)
        torch.testing.assert_close(program.module()(image), model(image), rtol=1e-4, atol=1e-5)
