"""Parameter counts to the digit, on the meta device, and life after it."""

import pytest
import torch

from infsa.nn.peers import MLLABlock, create_attention

from .helpers import BASE, BLOCK, NAMES, build, tokens

D = 1024
SQUARE = D * D + D  # one projection
STEM_AND_HEAD = 3 * 16 * 16 * D + D + D + 197 * D + 2 * D + D * 1000 + 1000
NORMS_AND_MLP = 4 * D + 2 * D * 4096 + 4096 + D
SIZES = ((4, 64), (24, 16))  # layers, heads

# name, options: totals (4 layers of 64 heads, 24 layers of 16 heads), in millions and exactly
TOTALS = [
    ("softmax", {}, (52.40, 304.33), (52_402_152, 304_326_632)),
    ("infsa_pure", {}, (52.40, 304.33), (52_402_152, 304_326_632)),
    ("performer", {}, (52.40, 304.33), (52_402_152, 304_326_632)),
    ("linformer", {"rank": 256}, (52.81, 306.75), (52_805_608, 306_747_368)),
    ("soft", {}, (48.21, 279.54), (48_210_344, 279_537_512)),
    ("flatten", {}, (53.21, 309.21), (53_210_728, 309_208_040)),
    ("agent", {}, (54.40, 307.51), (54_399_976, 307_507_688)),
    ("agent", {"position_bias": False}, (52.44, 304.57), (52_443_112, 304_572_392)),
    ("mlla", {}, (48.24, 279.38), (48_244_712, 279_381_992)),
    ("infsa_linear", {}, (48.20, 279.14), (48_203_752, 279_136_232)),
]


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "options", "millions", "exact"), TOTALS)
def test_totals_of_the_plain_transformer(name, options, millions, exact):
    for (layers, heads), rounded, total in zip(SIZES, millions, exact, strict=True):
        with torch.device("meta"):
            attention = create_attention(name, D, heads, grid=(14, 14), **options)
        found = STEM_AND_HEAD + layers * (NORMS_AND_MLP + count(attention))
        assert found == total
        assert round(found / 1e6, 2) == rounded


@pytest.mark.parametrize(
    ("size", "rounded", "total"),
    [(SIZES[0], 56.76, 56_764_392), (SIZES[1], 330.50, 330_500_072)],
)
def test_totals_of_the_mlla_block(size, rounded, total):
    layers, heads = size
    with torch.device("meta"):
        block = MLLABlock(D, heads, grid=(14, 14))
    found = STEM_AND_HEAD + layers * count(block)
    assert found == total
    assert round(found / 1e6, 2) == rounded


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("softmax", lambda h: 4 * SQUARE),
        ("linformer", lambda h: 4 * SQUARE + 2 * 197 * 256),
        ("soft", lambda h: 3 * SQUARE + (D // h) ** 2 * 4 + D // h + 2 * D // h + 9 * h),
        ("flatten", lambda h: 4 * SQUARE + D + 196 * D + 26 * D // h),
        ("agent", lambda h: 4 * SQUARE + 10 * D + h * 49 * (98 + 4 * 14 + 2)),
        ("mlla", lambda h: 3 * SQUARE + 10 * D),
        ("infsa_linear", lambda h: 3 * SQUARE),
        ("mean", lambda h: 2 * SQUARE),
        ("energy", lambda h: 3 * SQUARE),
        ("fastformer", lambda h: 3 * SQUARE + 2 * D * h),
    ],
)
def test_counts_follow_the_formula(name, own):
    for _, heads in SIZES:
        attention = create_attention(name, D, heads, grid=(14, 14), device="meta")
        assert count(attention) == own(heads)
        more = create_attention(name, D, heads, grid=(14, 14), device="meta", extra_proj=True)
        assert count(more) == own(heads) + SQUARE


@pytest.mark.parametrize("name", [*NAMES, BLOCK])
def test_a_meta_module_can_be_given_memory_and_drawn(name):
    with torch.device("meta"):
        module = build(name, noise=0.0)
    assert all(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])
    module.to_empty(device="cpu")
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data.fill_(float("nan"))
    module.reset_parameters()
    assert all(tensor.isfinite().all() for tensor in [*module.parameters(), *module.buffers()])
    x = tokens()
    assert module(x, BASE).isfinite().all()
    ordinary = build(name, noise=0.0)
    drawn = {key: value.std() for key, value in module.state_dict().items() if value.numel() > 100}
    for key, spread in drawn.items():  # the same distributions
        torch.testing.assert_close(spread, ordinary.state_dict()[key].std(), rtol=0.3, atol=1e-9)
    for key, value in module.named_buffers():
        assert torch.equal(value, dict(ordinary.named_buffers())[key])


@pytest.mark.parametrize("name", NAMES)
def test_device_and_type_reach_every_tensor(name):
    module = create_attention(name, 16, 2, grid=BASE, extra_proj=True, device="meta", dtype=torch.bfloat16)
    tensors = [*module.parameters(), *module.buffers()]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert all(tensor.is_meta for tensor in tensors)
