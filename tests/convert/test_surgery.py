"""Surgery: the folded projection is the nearest tied one, the layer is the paper's, and revert undoes it."""

import pytest
import torch

import infsa
from infsa.conversion import converted_layers
from infsa.conversion.surgery import fold

from .models import build
from .oracle import Formula

KINDS = ["timm vit", "deit", "torchvision vit", "encoder", "encoder, sequence first"]


def test_fold_is_the_nearest_positive_form():
    """Against a dense eigenvalue decomposition of the whole symmetric part, head by head."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 4, 12, dtype=torch.float64)
    tied, lost = fold(query, key)
    for head in range(3):
        form = query[head].T @ key[head]
        values, vectors = torch.linalg.eigh((form + form.T) / 2)
        nearest = vectors[:, -4:] @ values[-4:].clamp_min(0).diag() @ vectors[:, -4:].T
        torch.testing.assert_close(tied[head].T @ tied[head], nearest, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(lost[head], (nearest - form).norm() / form.norm())
        for other in (query, key, (query + key) / 2):
            assert (other[head].T @ other[head] - form).norm() >= (nearest - form).norm()


def test_tied_heads_lose_nothing():
    weight = torch.randn(3, 4, 12, dtype=torch.float64)
    tied, lost = fold(weight, weight)
    assert lost.max() < 1e-12
    torch.testing.assert_close(tied.mT @ tied, weight.mT @ weight)


def test_narrow_layers_fold():
    """A head wider than half the tokens: the span of queries and keys is the whole space."""
    query, key = torch.randn(2, 1, 4, 5, dtype=torch.float64)
    tied, _ = fold(query, key)
    assert tied.shape == query.shape
    assert tied.isfinite().all()


@pytest.mark.parametrize("name", KINDS)
def test_the_layer_is_linear_infsa_on_the_folded_weights(name):
    model, inputs, _ = build(name)
    converted = infsa.convert(model, "linear", level="surgery")
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, converted.state_dict()[key])}
    parts = ("qkv.weight", "qkv.bias", "in_proj_weight", "in_proj_bias")
    assert {key for key in changed if not key.endswith(parts)} == set()
    folded = infsa.convert(model, "linear", level="surgery")
    state = folded.state_dict()
    model.load_state_dict({key: state[key] for key in model.state_dict()})
    with Formula("linear"):
        expected = model(*inputs)
    torch.testing.assert_close(converted(*inputs), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_revert_brings_the_projections_back(name):
    model, inputs, _ = build(name)
    expected = model(*inputs)
    converted = infsa.convert(model, "linear", level="surgery")
    assert "folded into one, which changes the scores' form by" in str(
        infsa.plan_conversion(model, "linear", level="surgery")
    )
    assert torch.equal(infsa.revert(converted)(*inputs), expected)
    assert set(converted.state_dict()) == set(model.state_dict())


def test_a_tied_model_is_not_changed():
    """Where queries and keys are equal already, surgery and swap agree."""
    model, inputs, _ = build("timm vit")
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[16:32] = block.attn.qkv.weight[:16]
            block.attn.qkv.bias[16:32] = block.attn.qkv.bias[:16]
    swap, surgery = (infsa.convert(model, "linear", level=level) for level in ("swap", "surgery"))
    torch.testing.assert_close(surgery(*inputs), swap(*inputs), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ["timm vit, qk-norm", "eva", "decoder", "cross", "pooling"])
def test_what_cannot_be_folded_is_refused(name):
    model, _, _ = build(name)
    with pytest.raises(ValueError, match="surgery"):
        infsa.convert(model, "linear", level="surgery")


def test_folded_heads_cannot_die():
    """Σ α_j q̄·q_j = ‖q̄‖² > 0: a tied head always gives something."""
    model, (image,), _ = build("timm vit")
    converted = infsa.convert(model, "linear", level="surgery")
    rows = []
    for layer in converted_layers(converted).values():
        layer.proj.register_forward_pre_hook(lambda module, args: rows.append(args[0]))
    converted(image)
    assert all(row.unflatten(-1, (2, 8)).abs().amax(-1).min() > 0 for row in rows)


@pytest.mark.parametrize("name", ["timm vit", "encoder", "timm gate"])
def test_training_keeps_the_projections_tied(name):
    """Every kind of call goes on using one projection for queries and keys."""
    model, inputs, _ = build(name)
    converted = infsa.convert(model, "linear", level="surgery", chunk_size=2)
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.3)
    converted(*inputs).square().mean().backward()
    optimizer.step()
    layer = next(iter(converted_layers(converted).values()))
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    fused = layer.in_proj_weight if name == "encoder" else layer.qkv.weight
    bias = layer.in_proj_bias if name == "encoder" else layer.qkv.bias
    calls = [{"need_weights": False}, {}, {"is_causal": True, "need_weights": False}] if name == "encoder" else []
    calls = calls or [{}, {"is_causal": True}]

    def run():
        return [layer(x, x, x, **call)[0] if name == "encoder" else layer(x, **call) for call in calls]

    free = run()
    with torch.no_grad():  # the key rows are a copy that nothing reads
        fused[16:32], bias[16:32] = torch.nan, torch.nan
    assert all(torch.equal(*pair) for pair in zip(free, run(), strict=True))
    if name == "encoder":
        torch.testing.assert_close(free[0], free[1])


def test_meta_device_needs_no_numbers():
    model, _, _ = build("timm vit")
    assert converted_layers(infsa.convert(model.to("meta"), "linear", level="surgery"))
