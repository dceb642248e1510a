"""Counted multiply-adds are those of the equations."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from infsa.bench.build import build, build_module, count_parameters
from infsa.bench.cases import NINE, Case
from infsa.bench.flops import attention_formula, count, flop_crossover, formula
from infsa.models import InfViT

MECHANISMS = [*NINE, "mean", "energy", "fastformer"]
SHAPES = [  # depth, heads, width, size
    (4, 64, 1024, (224, 224)),
    (24, 16, 1024, (1024, 1024)),
    (3, 4, 128, (256, 448)),
    (1, 8, 64, (112, 112)),
]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_counts_are_the_formulas(mechanism, shape):
    depth, heads, width, size = shape
    case = Case(mechanism, depth, heads, size, width=width)
    assert count(case).macs == formula(case)
    assert count(case).attention_macs == depth * attention_formula(case)
    layer = replace(case, depth=1, part="attention")
    assert count(layer).macs == attention_formula(case)


@pytest.mark.parametrize(("width", "patch", "size"), [(128, 16, (64, 96)), (40, 8, (64, 48)), (24, 1, (5, 7))])
def test_convolutions_count(width, patch, size):
    case = Case("infsa_linear", 2, 4, size, width=width, patch=patch, stem="conv")
    assert count(case).macs == formula(case)
    assert count(case).attention_macs == 2 * attention_formula(case)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_backward_pass_is_two_forward_passes(mechanism):
    """Every product has two gradients, except that images and constant factors need none."""
    depth, heads, width = 2, 4, 64
    case = Case(mechanism, depth, heads, (64, 96), width=width)
    h, w = case.grid
    stem = h * w * 3 * 16**2 * width
    pooled = {"agent": 7, "soft": 14}.get(mechanism, 0)
    constant = width * pooled * (h * w + w * pooled)  # bins of the pooling
    if mechanism == "performer":
        constant = 2 * case.tokens * width * int(16 * math.log(16))  # random directions
    if mechanism == "mean":
        constant = heads * case.tokens * width  # 1/N
    if mechanism == "soft":  # 20 Newton steps without gradient; two products after them with one gradient each
        constant += heads * 49**3 * (2 * 2 * 20 + 2)
    assert count(replace(case, mode="train")).macs == 3 * formula(case) - stem - depth * constant


@pytest.mark.parametrize("mechanism", ["linformer", "performer"])
def test_counts_do_not_depend_on_the_batch(mechanism):
    """Against torch's count of three images, forward and backward, run for real."""
    case = Case(mechanism, 2, 4, (64, 96), "train", batch=3, width=64, dtype="float32")
    built = build(case, "cpu")
    with FlopCounterMode(display=False) as counter:
        built.call()
    assert 3 * count(case).flops == counter.get_total_flops()


def test_two_depths_tell_all():
    """Against torch's count of the whole model, run for real."""
    model = InfViT((64, 96), embed_dim=64, depth=5, num_heads=4, attention="mlla", attention_grid=(14, 14))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(1, 3, 64, 96))
    assert count(Case("mlla", 5, 4, (64, 96), width=64)).macs == counter.get_total_flops() // 2


def test_published_sizes():
    """ViT-B/16 and ViT-L/16 at 224² are known to need 17.6 and 61.6 billion multiply-adds."""
    assert formula(Case("softmax", 12, 12, (224, 224), width=768)) / 1e9 == pytest.approx(17.6, abs=0.05)
    assert formula(Case("softmax", 24, 16, (224, 224))) / 1e9 == pytest.approx(61.6, abs=0.05)


def test_variants_of_a_mechanism_count_alike():
    counts = {count(Case(name)) for name in ("softmax", "softmax-naive", "softmax-flash", "softmax-cudnn")}
    counts |= {count(Case(name)) for name in ("infsa_pure", "infsa_pure-triton")}
    assert len(counts) == 1


def test_the_crossover_is_where_the_curves_meet():
    deep, shallow = Case("infsa_linear", 24, 16), Case("softmax", 4, 16)
    side = flop_crossover(deep, shallow)
    assert formula(deep.at(side)) < formula(shallow.at(side))
    assert formula(deep.at(side - 16)) >= formula(shallow.at(side - 16))
    assert flop_crossover(shallow, deep) is None
    assert flop_crossover(Case("infsa_linear"), Case("softmax")) == 16


def test_the_papers_crossover_does_not_follow_from_its_figures():
    vit_b = Case("softmax", 12, 12, (224, 224), width=768)
    assert flop_crossover(Case("infsa_linear"), vit_b) == 16  # cheaper at every size
    assert formula(vit_b) < 59e9


def test_parameters_are_those_of_224_pixels():
    counts = {count_parameters(build_module(Case("linformer", size=(s, s)), "meta", {})) for s in (224, 512, 1024)}
    assert len(counts) == 1
    assert round(counts.pop() / 1e6, 2) == 52.81
