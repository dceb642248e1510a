"""What is done to a model beside training it (hooks, other modules, attributes) counts in its fast form too."""

import types

import numpy as np
import pytest
import torch
from torch import nn

import infsa
from infsa.models import fast
from infsa.models.blocks import Block
from infsa.models.graphs import Snapshot
from infsa.models.tokenwise import is_plain_mlp

from .test_graphs import Stored, first_number, table  # noqa: F401  # a fixture
from .test_speed import images, small


def assert_same(model):
    """The fast logits are the model's, also the second time."""
    quick, x = fast(model, compile=False, chunk=4), images()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(quick(x), model(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("part", ["blocks.0", "blocks.1.attn", "blocks.1.norm1", "blocks.1.mlp.fc1", "norm"])
@torch.no_grad()
def test_what_hooks_keep_is_not_written_over(part):
    model, x, kept = small(), images(), []
    model.get_submodule(part).register_forward_hook(lambda _, inputs, output: kept.append((inputs[0], output)))
    model(x)
    fast(model, compile=False, chunk=4)(x)
    for expected, found in zip(*kept, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "part", ["", "patch_embed.norm", "blocks.0.drop_path1", "blocks.1.norm2", "blocks.1.mlp.act", "blocks.2"]
)
def test_what_hooks_change_is_changed(part):
    """Hooks see all tokens of each image."""

    def mix(module, inputs, output):
        return torch.cat([output[:, 1:].mean(1, keepdim=True), 2 * output[:, 1:]], 1)

    model, x = small(), images()
    model.get_submodule(part).register_forward_hook(mix)
    assert_same(model)
    torch.testing.assert_close(fast(model, compile=False)(x), model(x), rtol=1e-10, atol=1e-10)


def test_another_forward_is_the_one_that_runs():
    class Doubled(infsa.models.InfViT):
        def forward(self, images, patch_mask=None):
            return 2 * super().forward(images, patch_mask)

    class Shifted(infsa.models.InfViT):
        def forward_features(self, images, patch_mask=None):
            return super().forward_features(images, patch_mask) + 1

    for kind in (Doubled, Shifted):
        model = small()
        model.__class__ = kind
        assert_same(model)
    model = small()
    layer = model.blocks[1].mlp.fc1
    before = Snapshot(model)
    layer.forward = types.MethodType(lambda self, x: 2 * nn.functional.linear(x, self.weight, self.bias), layer)
    assert not before.holds()
    assert Snapshot(model).heard(), "a graph would not run it"
    assert_same(model)


class Tokenwise(nn.Module):
    """Treats the class token in another way."""

    def forward(self, x):
        return torch.cat([x[:, :1], 3 * x[:, 1:]], 1)


class Turned(Block):
    """Its result lies in memory the other way round."""

    def add(self, x, attended):
        return super().add(x, attended).mT.contiguous().mT


class Remembering(Block):
    """Returns what it keeps."""

    def add(self, x, attended):
        if not hasattr(self, "found"):
            self.found = super().add(x, attended)
        return self.found


@pytest.mark.parametrize("part", ["norm1", "norm2", "drop", "drop_path1", "mlp.norm"])
@pytest.mark.parametrize("module", [Tokenwise, nn.Identity])
def test_other_modules_take_the_place_of_those_known(part, module):
    model = small()
    for block in model.blocks[:2]:
        block.set_submodule(part, module().eval())
    assert_same(model)


@pytest.mark.parametrize("kind", [Turned, Remembering])
def test_results_of_other_blocks_may_lie_anywhere(kind):
    model = small()
    model.blocks[0].__class__ = kind
    assert_same(model)


def test_a_replaced_dropout_is_no_idle_one():
    model, x = small(), torch.zeros(1, 4, 32, dtype=torch.float64)
    assert is_plain_mlp(model.blocks[0], x)
    model.blocks[0].drop_path2 = Tokenwise().eval()
    assert not is_plain_mlp(model.blocks[0], x)


@pytest.mark.parametrize("after", ["gone", "another"])
@torch.no_grad()
def test_attributes_come_and_go(after):
    model, x = small(), images()
    model.note = np.zeros(3)
    quick = fast(model, compile=False)
    quick(x)
    if after == "gone":
        del model.note
    else:
        model.note = np.ones(3)
    torch.testing.assert_close(quick(x), model(x), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_eight_bits_are_refused_for_a_model_that_became_another():
    model, x = small(dtype=torch.bfloat16), images(torch.bfloat16)
    quick = fast(model, fp8=True)
    quick(x)
    handle = model.blocks[1].mlp.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"^fp8=True takes modules without hooks"):
        quick(x)
    handle.remove()
    quick(x)
    model.blocks[1].mlp = type(model.blocks[1].mlp)(32, 40, dtype=torch.bfloat16).eval()
    with pytest.raises(ValueError, match=r"^fp8=True takes widths that are multiples of 16, got \(32, 40\)$"):
        quick(x)
    model.float()
    with pytest.raises(ValueError, match=r"^fp8=True needs a bfloat16 model"):
        quick(x.float())


def test_eight_bits_are_refused_where_no_product_would_be_rounded():
    with pytest.raises(ValueError, match=r"^fp8=True takes readout='last', got 'series'$"):
        fast(small(dtype=torch.bfloat16, readout="series"), fp8=True)
    model = small(dtype=torch.bfloat16)
    model.blocks[2].mlp = nn.Sequential(nn.Linear(32, 32, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"^fp8=True takes MLPs of timm's class Mlp, got Sequential$"):
        fast(model, fp8=True)


@pytest.mark.parametrize("change", ["norm1", "norm2", "mlp.fc1", "mlp.norm", "class"])
@torch.no_grad()
def test_eight_bits_are_refused_where_a_block_would_go_without(change):
    model = small(dtype=torch.bfloat16)
    block = model.blocks[1]
    if change == "class":
        block.__class__ = Turned
    elif change == "mlp.fc1":
        nn.utils.parametrize.register_parametrization(block.mlp.fc1, "weight", nn.Identity())
    else:
        block.set_submodule(change, nn.RMSNorm(128 if change == "mlp.norm" else 32, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"^fp8=True takes blocks of plain norms and MLPs of one dtype, got others$"):
        fast(model.eval(), fp8=True)(images(torch.bfloat16))


def test_graphs_tell_masks_of_other_types_apart(table):  # noqa: F811
    x, mask = images(), torch.ones(2, 3, 5, dtype=torch.bool)
    table.run(first_number, x, mask)
    assert table.run(first_number, x, mask.int()) == x.flatten()[0], "the model refuses it; a graph would not"


def test_graphs_tell_precisions_apart_however_they_were_set(table):  # noqa: F811
    """After the newer setting of torch, its older one cannot be asked for."""
    x, matmul = images(), torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "ieee"
        table.run(first_number, x, None)
        matmul.fp32_precision = "tf32"
        assert table.run(first_number, x, None) == x.flatten()[0], "another kind"
        assert table.run(first_number, x, None) > 90
    finally:
        matmul.fp32_precision = before


def test_graphs_hold_no_more_memory_for_images_than_these_need(table):  # noqa: F811
    small_images, large = images(size=(8, 8)), images(size=(40, 40))
    table.run(first_number, small_images, None)
    assert table.bytes == small_images.nbytes + Stored.bytes
    table.run(first_number, large, None)
    table.run(first_number, images(size=(16, 16)), None)
    assert table.bytes == small_images.nbytes + large.nbytes + 3 * Stored.bytes, "smaller ones share its place"
    for x in (small_images, large):
        assert table.run(first_number, x, None) == x.flatten()[0] + 100
