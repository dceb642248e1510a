"""Tiny models of every family, in float64 and with weights large enough for attention to matter."""

import pytest
import timm
import torch
import torchvision
from timm.layers import Attention, AttentionPoolLatent, AttentionRope
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import nn

VIT = {"img_size": 24, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def image(size=24):
    return (randn(2, 3, size, size),)


def tokens(count=10, width=16):
    return (randn(2, count, width),)


def triple():
    return (*tokens(), *tokens(7), *tokens(7))


class Cross(nn.Module):
    """An attention layer called as torch's encoders do."""

    def __init__(self, **options):
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True, **options)

    def forward(self, query, key, value):
        return self.attn(query, key, value, need_weights=False)[0]


BOTH, PURE = ("pure", "linear"), ("pure",)
UNKNOWN = ("cross", "cross, other widths")  # blocks that do not say whether queries may know each other
# name: builder, inputs, variants, attention layers
FAMILIES = {
    "encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        ),
        tokens,
        BOTH,
        2,
    ),
    "encoder, sequence first": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, norm_first=True, bias=False),
        tokens,
        BOTH,
        1,
    ),
    "decoder": (
        lambda: nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        lambda: (*tokens(), *tokens(7)),
        BOTH,
        2,
    ),
    "cross": (lambda: Cross(), triple, BOTH, 1),
    "cross, other widths": (
        lambda: Cross(kdim=8, vdim=12),
        lambda: (*tokens(), *tokens(7, 8), *tokens(7, 12)),
        BOTH,
        1,
    ),
    "torchvision vit": (
        lambda: torchvision.models.VisionTransformer(24, 8, 2, 2, 16, 32, num_classes=5),
        image,
        BOTH,
        2,
    ),
    "torchvision swin": (
        lambda: torchvision.models.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [3, 3], num_classes=5),
        image,
        PURE,
        4,
    ),
    "torchvision swin v2": (
        lambda: torchvision.models.SwinTransformer(
            [2, 2],
            8,
            [2],
            [2],
            [3, 3],
            num_classes=5,
            block=torchvision.models.swin_transformer.SwinTransformerBlockV2,
            downsample_layer=torchvision.models.swin_transformer.PatchMergingV2,
        ),
        image,
        PURE,
        2,
    ),
    "timm vit": (lambda: VisionTransformer(**VIT), image, BOTH, 2),
    "timm vit, qk-norm": (lambda: VisionTransformer(**VIT, qk_norm=True, scale_attn_norm=True), image, BOTH, 2),
    "timm gate": (lambda: Attention(16, 2, qkv_bias=True, gated=True), tokens, BOTH, 1),
    "deit": (
        lambda: timm.create_model("deit3_small_patch16_224", **VIT),
        image,
        BOTH,
        2,
    ),
    "dinov2": (
        lambda: VisionTransformer(**VIT, init_values=1.0, reg_tokens=2, dynamic_img_size=True),
        image,
        BOTH,
        2,
    ),
    "siglip": (lambda: VisionTransformer(**VIT, class_token=False, global_pool="map"), image, BOTH, 3),
    "eva": (lambda: Eva(**VIT, use_rot_pos_emb=True, scale_attn_inner=True), image, BOTH, 2),
    "eva, separate": (lambda: Eva(**VIT, qkv_fused=False, use_rot_pos_emb=True), image, BOTH, 2),
    "eva, rope": (lambda: Eva(**VIT, attn_type="rope", use_rot_pos_emb=True), image, BOTH, 2),
    "grouped keys": (
        lambda: AttentionRope(16, 4, qkv_fused=False, num_kv_heads=2, num_prefix_tokens=0),
        tokens,
        BOTH,
        1,
    ),
    "beit": (lambda: Beit(**VIT, use_rel_pos_bias=True), image, PURE, 2),
    "beit, shared": (lambda: Beit(**VIT, use_shared_rel_pos_bias=True), image, PURE, 2),
    "relative": (lambda: VisionTransformerRelPos(**VIT, class_token=False), image, PURE, 2),
    "relative, shared": (
        lambda: VisionTransformerRelPos(**VIT, shared_rel_pos=True, rel_pos_type="bias"),
        image,
        PURE,
        2,
    ),
    "timm swin": (
        lambda: SwinTransformer(24, 2, num_classes=5, embed_dim=8, depths=(2, 2), num_heads=(2, 4), window_size=3),
        image,
        PURE,
        4,
    ),
    "timm swin v2": (
        lambda: SwinTransformerV2(24, 2, num_classes=5, embed_dim=8, depths=(2,), num_heads=(2,), window_size=3),
        image,
        PURE,
        2,
    ),
    "pooling": (lambda: AttentionPoolLatent(16, num_heads=2, latent_len=3, pool_type="avg"), tokens, BOTH, 1),
}
CASES = [(name, variant) for name, (_, _, variants, _) in FAMILIES.items() for variant in variants]
PURE_ONLY = [name for name, (_, _, variants, _) in FAMILIES.items() if variants == PURE]


def settings(name, variant):
    """What a family needs to be told to be converted."""
    return {"pool_queries": True} if name in UNKNOWN and variant == "linear" else {}


def build(name, dtype=torch.float64):
    """A model of the family in evaluation mode, its inputs, and how many attention layers it has."""
    return build_from(FAMILIES[name], dtype)


def build_from(recipe, dtype=torch.float64):
    """The same for a row of a table like ``FAMILIES``."""
    torch.manual_seed(0)
    builder, inputs, _, layers = recipe
    try:
        model = builder().to(dtype)
    except TypeError as error:
        pytest.skip(f"an older timm: {error}")
    model.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype))
    return model, tuple(x.to(dtype) if torch.is_tensor(x) else x for x in inputs()), layers
