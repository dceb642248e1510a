"""Small models and images for streaming."""

import torch

from infsa.models import InfViT

SMALL = {
    "img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 5,
    "dynamic_img_pad": True,
}  # fmt: skip
VARIANTS = {
    "plain": {},
    "registers": {"reg_tokens": 2},
    "avg": {"global_pool": "avg"},
    "no prefix": {"global_pool": "avg", "class_token": False},
    "series": {"readout": "series"},
    "series avg": {"readout": "series", "global_pool": "avg", "class_token": False},
    "sincos": {"pos_embed": "sincos"},
    "no positions": {"pos_embed": "none"},
    "paper": {"paper_params": True, "decay": "geometric"},
    "learned gamma": {"learn_gamma": True},
    "gelu": {"activation": "gelu"},
    "abs": {"activation": "abs"},
    "iterations": {"attention_options": {"iterations": 3}},
    "queries": {"attention_options": {"queries": 3}},
    "queries series": {"attention_options": {"queries": 3}, "readout": "series", "global_pool": "avg"},
    "untied": {"attention_options": {"tied": False}},
    "patch 8 x 4": {"patch_size": (8, 4)},
    "conv": {"stem": "conv"},
    "conv 8 x 2": {"stem": "conv", "patch_size": (8, 2), "img_size": 8, "pos_embed": "sincos"},
}


def small(dtype=torch.float64, seed=0, **options):
    """A model with weights large enough that every part of it matters; the same ones, rounded, in every type."""
    torch.manual_seed(seed)
    model = InfViT(**{**SMALL, **options}).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.to(dtype)


def picture(height=101, width=77, dtype=torch.float64, seed=1):
    return torch.randn(3, height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def relative(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())
