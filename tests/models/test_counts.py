"""Parameter counts of every mechanism and of the paper's table, on the meta device."""

import pytest
import torch

import infsa

MILLIONS = {  # 4 layers of 64 heads, 24 layers of 16 heads
    "softmax": (52.40, 304.33),
    "infsa_pure": (52.40, 304.33),
    "performer": (52.40, 304.33),
    "linformer": (52.81, 306.75),
    "soft": (48.21, 279.54),
    "flatten": (53.21, 309.21),
    "agent": (54.40, 307.51),
    "mlla": (48.24, 279.38),
    "infsa_linear": (48.20, 279.14),
}


def count(name, **options):
    with torch.device("meta"):
        return sum(p.numel() for p in infsa.create_model(name, **options).parameters())


@pytest.mark.parametrize(("attention", "expected"), MILLIONS.items())
def test_every_mechanism(attention, expected):
    base = {"attention": attention}
    four = count("vit_4l16h_patch16_224", num_heads=64, **base)
    deep = count("vit_24l16h_patch16_224", **base)
    assert (round(four / 1e6, 2), round(deep / 1e6, 2)) == expected


def test_mlla_block_and_agent_without_biases():
    four = {"name": "vit_4l16h_patch16_224", "num_heads": 64}
    deep = {"name": "vit_24l16h_patch16_224"}
    for options, expected in (
        ({"attention": "mlla", "mlla_block": True}, (56.76, 330.50)),
        ({"attention": "agent", "attention_options": {"position_bias": False}}, (52.44, 304.57)),
    ):
        assert tuple(round(count(**size, **options) / 1e6, 2) for size in (four, deep)) == expected


@pytest.mark.parametrize(
    ("name", "plain", "paper"),
    [
        ("vit_4l16h_patch16_224", 52.40, 57.65),
        ("vit_24l16h_patch16_224", 304.33, 330.57),
        ("infvit_pure_4l16h_patch16_224", 52.40, 57.65),
        ("infvit_pure_24l16h_patch16_224", 304.33, 330.57),
        ("infvit_linear_4l64h_patch16_224", 48.20, 53.45),
        ("infvit_linear_24l16h_patch16_224", 279.14, 305.38),
        ("infvit_linear_conv_4l64h_patch16_224", 63.06, 68.30),
    ],
)
def test_the_papers_table(name, plain, paper):
    assert round(count(name) / 1e6, 2) == plain
    assert round(count(name, paper_params=True) / 1e6, 2) == paper


def test_exact_integers():
    """A plain ViT of width 1024: counted by hand."""
    d, classes = 1024, 1000
    stem = 3 * 16 * 16 * d + d + d + 197 * d
    block = 4 * d + (3 * d * d + 3 * d) + (d * d + d) + (2 * 4 * d * d + 4 * d + d)
    head = 2 * d + d * classes + classes
    assert count("vit_4l16h_patch16_224") == stem + 4 * block + head
    tied = d * d + d
    assert count("infvit_linear_4l64h_patch16_224") == stem + 4 * (block - tied) + head
    extra = d * d + d
    assert count("vit_4l16h_patch16_224", paper_params=True) == stem + 4 * (block + extra) + head + extra


def test_parameters_do_not_depend_on_resolution():
    model = infsa.create_model("infvit_linear_tiny")
    before = {name: p.shape for name, p in model.named_parameters()}
    with torch.no_grad():
        model(torch.randn(1, 3, 96, 40))
    assert {name: p.shape for name, p in model.named_parameters()} == before
