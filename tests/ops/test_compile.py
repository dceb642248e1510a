"""torch.compile, torch.export and the registration of the custom ops."""

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import infsa

from .helpers import (
    assert_close,
    generator,
    gradients,
    head_gammas,
    leaves,
    lengths_mask,
    pure_masks,
    random_mask,
    tokens,
)

LENGTHS = (5, 7, 12, 33)
PURE = {
    "plain": {},
    "causal": {"is_causal": True},
    "hops": {"hops": 3},
    "limit": {"hops": math.inf},
    "auto": {"is_causal": "auto"},
    "dropout": {"dropout_p": 0.2},
}
LINEAR = {
    "plain": {},
    "iterations": {"iterations": 2},
    "queries": {"queries": 3},
    "chunk": {"causal": "chunk", "chunk_size": 4},
}
CASES = [("pure", name) for name in PURE] + [("linear", name) for name in LINEAR]
cases = pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{k}-{n}" for k, n in CASES])
impls = pytest.mark.parametrize("impl", ["auto", "chunked"])


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def operator(kind, name, impl="auto"):
    """A function of (q, k, v, gamma, key_mask)."""
    options = (PURE if kind == "pure" else LINEAR)[name]
    function = getattr(infsa, f"{kind}_attention")

    def attend(q, k, v, gamma, key_mask):
        extra = {}
        if options.get("is_causal") == "auto":
            n = q.shape[2]
            extra = {"attn_mask": torch.ones(n, n, dtype=torch.bool, device=q.device).tril()}
        return function(q, k, v, gamma=gamma, key_mask=key_mask, impl=impl, **options, **extra)

    return attend


def problem(n):
    """Leaves q, k, v, gamma and a key mask."""
    return leaves(*tokens(n, n), head_gammas()), lengths_mask([n, n - 2], n)


def assert_same_as_eager(compiled, eager, n):
    inputs, mask = problem(n)
    torch.manual_seed(0)
    found = compiled(*inputs, mask), *gradients(lambda *x: compiled(*x, mask), inputs)
    torch.manual_seed(0)
    expected = eager(*inputs, mask), *gradients(lambda *x: eager(*x, mask), inputs)
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


@cases
@impls
def test_one_graph_for_every_length(impl, kind, name):
    """No graph break, no recompilation, and values and gradients of the eager function."""
    attend = operator(kind, name, impl)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=counter)
    assert_same_as_eager(compiled, attend, LENGTHS[0])
    graphs = counter.frame_count  # the first compilation may restart, to turn float arguments into constants
    for n in LENGTHS[1:]:
        assert_same_as_eager(compiled, attend, n)
    assert counter.frame_count == graphs


@pytest.mark.parametrize("kind", ["pure", "linear"])
def test_a_marked_dimension_stays_dynamic(kind):
    """mark_dynamic raises if the operator forces the length to one value."""
    counter = CompileCounter()
    compiled = torch.compile(operator(kind, "plain"), fullgraph=True, backend=counter)
    for n in LENGTHS:
        q, k, v = tokens(n, n)
        mask = lengths_mask([n, n - 2], n)
        for x in (q, k, v):
            torch._dynamo.mark_dynamic(x, 2)
        torch._dynamo.mark_dynamic(mask, 1)
        compiled(q, k, v, head_gammas(), mask)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("kind", "name"), [("pure", "plain"), ("pure", "causal"), ("linear", "plain"), ("linear", "chunk")]
)
def test_inductor(kind, name):
    attend = operator(kind, name)
    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    for n in (5, 12):
        assert_same_as_eager(compiled, attend, n)


class Attention(torch.nn.Module):
    def __init__(self, kind, name, masked):
        super().__init__()
        self.attend = operator(kind, name)
        self.gamma = torch.nn.Parameter(head_gammas())
        self.masked = masked

    def forward(self, q, k, v, key_mask=None):
        return self.attend(q, k, v, self.gamma, key_mask if self.masked else None)


EXPORTED = [(k, n) for k, n in CASES if n not in ("dropout", "limit")]


@pytest.mark.parametrize("masked", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize(("kind", "name"), EXPORTED, ids=[f"{k}-{n}" for k, n in EXPORTED])
def test_export(kind, name, masked):
    module = Attention(kind, name, masked)
    n = torch.export.Dim("n", min=4, max=4096)
    example = (*tokens(0, 12), *([random_mask((2, 12), 0)] if masked else []))
    shapes = [{2: n}] * 3 + ([{1: n}] if masked else [])
    if not masked:
        module.forward = lambda q, k, v: Attention.forward(module, q, k, v)
    program = torch.export.export(module, example, dynamic_shapes=shapes)
    for length in (4, 12, 33):
        inputs = (*tokens(length, length), *([random_mask((2, length), 1)] if masked else []))
        assert_close(program.module()(*inputs), module(*inputs))


class Recorder(TorchDispatchMode):
    """Remembers one call of every infsa op for each set of its non-tensor arguments."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "infsa":
            kinds = tuple(type(a).__name__ if isinstance(a, torch.Tensor) else repr(a) for a in args)
            self.calls.setdefault((op, kinds), (args, kwargs or {}))
        return op(*args, **(kwargs or {}))


def every_call():
    recorder = Recorder()
    for kind, name in CASES:
        inputs, mask = problem(6)
        attend = operator(kind, name, "chunked")
        with recorder:
            gradients(lambda *x, attend=attend, mask=mask: attend(*x, mask), inputs)
    for options in (pure_masks("everything", 6, 6), {"hops": math.inf} | pure_masks("bias", 6, 6)):
        bias = options.pop("attn_mask").requires_grad_()
        q, k, v = leaves(*tokens(0, 6))
        with recorder:
            out = infsa.pure_attention(q, k, v, attn_mask=bias, activation="gelu", impl="chunked", **options)
            out.backward(torch.randn(out.shape, generator=generator(1), dtype=out.dtype))
    return recorder.calls


def test_every_registered_op_is_exercised():
    names = {n for n in torch._C._dispatch_get_all_op_names() if n.startswith("infsa::")}
    assert names
    assert names == {op._schema.name for op, _ in every_call()}


def copy(value, requires_grad):
    if isinstance(value, torch.Tensor):
        value = value.detach().clone()
        value.requires_grad_(requires_grad and value.is_floating_point())
    return value


def test_registration_of_every_op():
    """Schemas, fake kernels, autograd and AOT dispatch agree with what the ops do."""
    for (op, _), (args, kwargs) in every_call().items():
        forward = not op._schema.name.endswith("_backward")
        torch.library.opcheck(op, tuple(copy(a, requires_grad=forward) for a in args), kwargs)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("pure", "plain"), ("pure", "hops"), ("pure", "limit"), ("linear", "chunk"), ("linear", "queries")],
)
def test_inductor_with_transposed_and_shared_inputs(kind, name):
    """Gradients must come back in the layout that the compiler was promised, whatever that of the inputs."""
    attend = operator(kind, name, impl="chunked")
    wide = torch.randn(2, 9, 3, 4, generator=generator(3))  # (B, N, H, d), as a projection gives it
    found = []
    for function in (torch.compile(attend, fullgraph=True), attend):
        leaf = wide.clone().requires_grad_()
        x = leaf.transpose(1, 2)
        function(x, x, 2 * x, 0.7, None).square().sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)
