"""Compiled, exported and ONNX programs agree with eager, at other sizes than they were made for."""

import numpy as np
import onnxruntime
import pytest
import torch

from .helpers import NAMES, images, small

MAIN = ("softmax", "infsa_pure", "infsa_linear")


@pytest.mark.parametrize("attention", NAMES)
def test_compiles_whole(attention):
    torch._dynamo.reset()
    model = small(attention)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(images()), model(images()))


@pytest.mark.parametrize("attention", ["infsa_pure", "infsa_linear"])
def test_compiled_training_equals_eager(attention):
    torch._dynamo.reset()
    model = small(attention).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        run(images()).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("attention", NAMES)
def test_exports(attention):
    model = small(attention)
    program = torch.export.export(model, (images(),))
    torch.testing.assert_close(program.module()(images()), model(images()))


@pytest.mark.parametrize("attention", MAIN)
def test_exports_with_dynamic_batch_and_resolution(attention):
    model = small(attention)
    batch = torch.export.Dim("batch", min=1, max=64)
    h, w = torch.export.Dim("h", min=2, max=64), torch.export.Dim("w", min=2, max=64)
    example = (images(batch=3, height=40, width=56),)
    program = torch.export.export(model, example, dynamic_shapes=({0: batch, 2: 8 * h, 3: 8 * w},))
    for x in (images(batch=2, height=64, width=24), images(batch=5, height=32, width=32)):
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("attention", MAIN)
def test_onnx_in_onnxruntime(attention, tmp_path):
    model = small(attention)
    path = tmp_path / "model.onnx"
    example = (images(batch=3, height=40, width=56),)
    batch = torch.export.Dim("batch", min=1, max=64)
    h, w = torch.export.Dim("h", min=2, max=64), torch.export.Dim("w", min=2, max=64)
    torch.onnx.export(
        model, example, path, dynamo=True, verbose=False, dynamic_shapes=({0: batch, 2: 8 * h, 3: 8 * w},)
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for x in (*example, images(batch=2, height=64, width=24)):
        (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        np.testing.assert_allclose(out, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", NAMES)
@pytest.mark.filterwarnings("ignore")
def test_traces_at_one_size(attention):
    model = small(attention)
    traced = torch.jit.trace(model, images())
    with torch.no_grad():
        torch.testing.assert_close(traced(images(batch=3)), model(images(batch=3)))
        with pytest.raises(RuntimeError):
            traced(images(height=48))


@pytest.mark.filterwarnings("ignore")
def test_the_old_onnx_exporter_is_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^torch\.onnx\.export needs dynamo=True for this model, got dynamo=False$"):
        torch.onnx.export(small(), (images(),), tmp_path / "model.onnx", dynamo=False)
