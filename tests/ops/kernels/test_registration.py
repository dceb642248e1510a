"""The kernels as operators of torch: schemas, fakes, autograd, the compiler, FLOP counts."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

import infsa
from infsa.ops.pure import triton_register as register

from ..helpers import leaves, lengths_mask
from .helpers import DEVICE, attend, problem, value_and_gradients


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("dtype", "is_causal"), [(torch.float32, False), (torch.bfloat16, True)], ids=str)
def test_opcheck(dtype, is_causal):
    q, k, v, gamma = leaves(*problem(0, 9, dtype=dtype, heads=1))
    gamma = gamma.detach().view(-1, 1, 1).requires_grad_()
    torch.library.opcheck(torch.ops.infsa_triton.pure, (q, k, v, gamma, None, "relu", is_causal, 1e-6))
    z, norm = (x.detach() for x in register.pure(q, k, v, gamma, None, "relu", is_causal, 1e-6))
    inputs = [x.detach() for x in (torch.ones_like(z), q, k, v, gamma)]
    options = (None, z, norm, "relu", is_causal, 1e-6)
    torch.library.opcheck(torch.ops.infsa_triton.pure_backward, (*inputs, *options))


def test_one_graph_for_every_length():
    def function(q, k, v, gamma, mask):
        return infsa.pure_attention(q, k, v, gamma=gamma, key_mask=mask, is_causal=True, impl="triton")

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    graphs = None
    for n in (7, 12):
        inputs, mask = problem(n, n, heads=1), lengths_mask([n - 2], n).to(DEVICE)
        found = value_and_gradients(lambda *x, mask=mask: compiled(*x, mask), inputs)
        expected = value_and_gradients(lambda *x, mask=mask: function(*x, mask), inputs)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
        graphs = graphs or counter.frame_count
    assert counter.frame_count == graphs


def test_inductor_with_a_packed_projection():
    """Gradients come back in the layout that the compiler was promised."""
    packed = torch.randn(1, 9, 3, 2, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def function(x):
        return attend()(*x.permute(2, 0, 3, 1, 4).unbind(), 0.7).transpose(1, 2).flatten(2)

    found = value_and_gradients(torch.compile(function, fullgraph=True), [packed])
    for x, y in zip(found, value_and_gradients(function, [packed]), strict=True):
        torch.testing.assert_close(x, y)


def test_flops():
    """Two products forward and five backward, per pair of tokens."""
    q, k, v, gamma = leaves(*problem(2, 9, 12, width=16, value_width=20))
    with FlopCounterMode(display=False) as forward:
        out = attend()(q, k, v, gamma)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    pairs = 2 * 9 * 12  # heads, queries, keys
    assert forward.get_total_flops() == 2 * pairs * (16 + 20)
    assert backward.get_total_flops() == 2 * pairs * (3 * 16 + 2 * 20)
