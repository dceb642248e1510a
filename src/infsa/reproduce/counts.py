"""What is counted: parameters and FLOPs."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..bench.cases import Case
from ..bench.flops import attention_formula, formula
from ..bench.presets import DEEP, FOUR, VIT_B
from ..models import create_model
from .claims import Claim, Reading
from .sources import Sources, paper

CONFIGS: dict[str, dict[str, Any]] = {"4L-64H": FOUR, "24L-16H": DEEP}
KNOWN = ("softmax", "infsa_pure", "infsa_linear")  # whose configuration the paper gives


def parameters(config: str, mechanism: str, sources: Sources) -> Reading:
    """Counted parameters in millions, with the two extra D×D layers of ``paper_params=True``."""
    fields = CONFIGS[config]

    def count() -> dict[str, Any]:
        name = f"infvit_linear_{fields['depth']}l{fields['heads']}h_patch16_224"
        found = {}
        for kind in (True, False):
            with torch.device("meta"):
                model = create_model(name, attention=mechanism, num_heads=fields["heads"], paper_params=kind)
            found["paper" if kind else "plain"] = sum(p.numel() for p in model.parameters()) / 1e6
        return found

    found = sources.computed("parameters", {"config": config, "attention": mechanism}, count)
    detail = f"plain model {found['plain']:.2f}"
    needs = "the peer's unpublished configuration"
    known = mechanism in KNOWN
    return Reading(
        found["paper"],
        0.0,
        "parameters counted (`paper_params=True`)",
        detail,
        known,
        needs=needs,
        comparable=known,
    )


def forward_macs(case: Case) -> int:
    """Multiply-adds of an InfViT as the paper writes it: one more D×D layer in every block and one before the
    classifier; values of Linear-InfSA projected token by token before they are pooled.
    """
    n, square, counted = case.tokens, case.width**2, attention_formula(case)
    # of Linear-InfSA: q, v, output; central query, scores, weighted sum
    attention = 3 * n * square + 3 * n * case.width if case.mechanism == "infsa_linear" else counted
    return formula(case) + case.depth * (attention - counted + n * square) + square


def training_cost() -> list[Claim]:
    """FLOPs of a forward pass, of training and of evaluation; heads; where softmax becomes dearer."""
    said = paper()["training-cost"]
    linear = Case("infsa_linear", size=(224, 224), **FOUR)
    macs = forward_macs(linear)
    setting = "counted by formula, two FLOPs per multiply-add"

    def total(times: float, sources: Sources, macs: int = macs) -> Reading:
        return Reading(2 * macs * times, 0.0, setting, f"{macs / 1e9:.2f} GMAC per image", same=True)

    def by_heads(sources: Sources) -> Reading:
        counts = [formula(Case("softmax", 4, heads, (224, 224))) for heads in (16, 64)]
        counts += [forward_macs(replace(linear, heads=heads)) for heads in (16, 64)]
        few, many, linear_few, linear_many = counts
        detail = f"GMAC at 16/64 heads: softmax {few / 1e9:.2f}/{many / 1e9:.2f}, "
        detail += f"Linear {linear_few / 1e9:.2f}/{linear_many / 1e9:.2f}"
        return Reading(float(many > few and linear_many > linear_few), 0.0, setting, detail, same=True)

    def crossover(sources: Sources) -> Reading:
        vit = Case("softmax", size=(224, 224), **VIT_B)
        cheaper = [side for side in range(16, 4097, 16) if forward_macs(linear.at(side)) < formula(vit.at(side))]
        detail = f"at 224²: {macs / 1e9:.1f} against {formula(vit) / 1e9:.1f} GMAC; "
        detail += f"fewer from {min(cheaper)} px on"
        return Reading(float(224 not in cheaper), 0.0, setting, detail, same=True)

    training = said["images"] * said["epochs"] * said["passes"]
    forward = ("training-cost", "forward pass at 224²")
    return [
        Claim("forward pass at 224²", "value", said["forward_gflops"], partial(total, 1e-9), "GFLOPs", 0.5),
        Claim("Pure 4L, forward pass at 224²", "value", said["forward_gflops"],
              partial(total, 1e-9, macs=forward_macs(replace(linear, mechanism="infsa_pure"))), "GFLOPs", 0.5),
        Claim("training", "value", said["training_flops"], partial(total, training), "FLOPs", 5e16,
              same_as=forward),
        Claim("evaluation", "value", said["evaluation_flops"], partial(total, said["evaluation_images"]), "FLOPs",
              5e12, same_as=forward),
        Claim("64 heads cause the 59 GFLOPs", "statement", 1, by_heads),
        Claim("Linear 4L needs more FLOPs than ViT-B/16 at 224², fewer beyond about 512²", "statement", 1, crossover),
    ]  # fmt: skip
