"""timm's architectures, tiny: whole models where the surroundings matter, single layers where they do not."""

from timm.layers import Attention2d, AttentionPool2d, MultiQueryAttention2d, RotAttentionPool2d
from timm.layers.bottleneck_attn import BottleneckAttn
from timm.models import (
    cait,
    convit,
    crossvit,
    davit,
    efficientformer,
    fastvit,
    gcvit,
    hiera,
    hieradet_sam2,
    levit,
    maxxvit,
    metaformer,
    mvitv2,
    nest,
    nextvit,
    pvt_v2,
    shvit,
    swin_transformer_v2_cr,
    tiny_vit,
    tnt,
    twins,
    visformer,
    vision_transformer_sam,
    volo,
)
from torch import nn

from .models import BOTH, PURE, image, randn, tokens


def maps(width=16, side=4):
    return lambda: (randn(2, width, side, side),)


def last(width=16, side=4):
    """A map with its channels last."""
    return lambda: (randn(2, side, side, width),)


def sized(count=36, side=6):
    return lambda: (*tokens(count), (side, side))


def maxvit(**options):
    """Two stages, of windows and grids."""
    transformer = maxxvit.MaxxVitTransformerCfg(dim_head=8, **options)
    config = maxxvit.MaxxVitCfg(
        embed_dim=(16, 16), depths=(1, 1), block_type=("M", "M"), stem_width=8, transformer_cfg=transformer
    )
    return maxxvit.MaxxVit(config, img_size=(32, 32), num_classes=5)


def coatnet(**options):
    transformer = maxxvit.MaxxVitTransformerCfg(dim_head=8, **options)
    config = maxxvit.MaxxVitCfg(
        embed_dim=(16, 16), depths=(1, 2), block_type=("C", "T"), stem_width=8, transformer_cfg=transformer
    )
    return maxxvit.MaxxVit(config, img_size=(32, 32), num_classes=5)


def mvit(**options):
    config = mvitv2.MultiScaleVitCfg(
        depths=(1, 2), embed_dim=16, num_heads=2, stride_q=((1, 1), (2, 2)), stride_kv=((2, 2), (1, 1)), **options
    )
    return mvitv2.MultiScaleVit(config, img_size=(32, 32), num_classes=5)


class Queries(nn.Module):
    """GC ViT's window attention with its global queries."""

    def __init__(self):
        super().__init__()
        self.attn = gcvit.WindowAttentionGlobal(16, 2, (3, 3), use_global=True)

    def forward(self, x, q):
        return self.attn(x, q)


# name: builder, inputs, variants, attention layers
HIERA = {"embed_dim": 16, "num_heads": 2, "num_classes": 5, "q_pool": 2}
ARCHITECTURES = {
    "maxvit": (lambda: maxvit(window_size=(4, 4), grid_size=(4, 4)), lambda: image(32), PURE, 4),
    "maxvit, mlp positions": (
        lambda: maxvit(window_size=(2, 2), grid_size=(2, 2), rel_pos_type="mlp", head_first=False),
        lambda: image(32),
        PURE,
        4,
    ),
    "maxvit, map": (
        lambda: maxvit(window_size=(4, 4), grid_size=(4, 4), use_nchw_attn=True, rel_pos_type="bias_tf"),
        lambda: image(32),
        PURE,
        4,
    ),
    "coatnet": (lambda: coatnet(), lambda: image(32), PURE, 2),
    "coatnet, no positions": (lambda: coatnet(rel_pos_type=None), lambda: image(32), BOTH, 2),
    "davit window": (lambda: davit.WindowAttention(16, (3, 3), 2), lambda: tokens(9), BOTH, 1),
    "tiny_vit": (
        lambda: tiny_vit.TinyVit(
            num_classes=5,
            embed_dims=(8, 16, 16, 16),
            depths=(1, 1, 1, 1),
            num_heads=(1, 2, 2, 2),
            window_sizes=(3, 3, 3, 2),
        ),
        lambda: image(32),
        PURE,
        3,
    ),
    "levit": (
        lambda: levit.Levit(
            32, embed_dim=(16, 24), key_dim=4, depth=(1, 1), num_heads=(2, 3), stem_type="s8", num_classes=5
        ),
        lambda: image(32),
        PURE,
        3,
    ),
    "levit, convolutions": (
        lambda: levit.Levit(
            40,
            embed_dim=(16, 24),
            key_dim=4,
            depth=(1, 1),
            num_heads=(2, 3),
            stem_type="s8",
            use_conv=True,
            num_classes=5,
        ),
        lambda: image(40),
        PURE,
        3,
    ),
    "efficientformer": (lambda: efficientformer.Attention(16, 4, 2, resolution=3), lambda: tokens(9), PURE, 1),
    "hiera": (
        lambda: hiera.Hiera(
            (32, 32),
            **HIERA,
            stages=(1, 1, 1),
            mask_unit_size=(4, 4),
            mask_unit_attn=(True, True, False),
        ),
        lambda: image(32),
        BOTH,
        3,
    ),
    "hieradet": (
        lambda: hieradet_sam2.HieraDet(
            **HIERA,
            stages=(1, 2, 1),
            global_pos_size=(4, 4),
            window_spec=(4, 3, 2),
            global_att_blocks=(2,),
        ),
        lambda: image(32),
        BOTH,
        4,
    ),
    "pvt_v2": (
        lambda: pvt_v2.PyramidVisionTransformerV2(
            num_classes=5, depths=(1, 1), embed_dims=(16, 16), num_heads=(2, 2), sr_ratios=(2, 1), mlp_ratios=(2, 2)
        ),
        lambda: image(32),
        BOTH,
        2,
    ),
    "pvt_v2, linear": (
        lambda: pvt_v2.PyramidVisionTransformerV2(
            num_classes=5, depths=(1,), embed_dims=(16,), num_heads=(2,), sr_ratios=(2,), mlp_ratios=(2,), linear=True
        ),
        lambda: image(64),
        BOTH,
        1,
    ),
    "mvitv2": (lambda: mvit(), lambda: image(32), PURE, 3),
    "mvitv2, class token": (lambda: mvit(use_cls_token=True, expand_attn=False), lambda: image(32), PURE, 3),
    "mvitv2, no positions": (lambda: mvit(rel_pos_type="none", mode="avg"), lambda: image(32), PURE, 3),
    "swinv2_cr": (
        lambda: swin_transformer_v2_cr.SwinTransformerV2Cr(
            24, patch_size=2, window_size=3, num_classes=5, embed_dim=8, depths=(2,), num_heads=(2,)
        ),
        image,
        PURE,
        2,
    ),
    "nest": (lambda: nest.Attention(16, 2, qkv_bias=True), lambda: (randn(2, 3, 5, 16),), BOTH, 1),
    "twins, local": (lambda: twins.LocallyGroupedAttn(16, 2, ws=4), sized(), BOTH, 1),
    "twins, global": (lambda: twins.GlobalSubSampleAttn(16, 2, sr_ratio=2), sized(), BOTH, 1),
    "nextvit": (lambda: nextvit.EfficientAttention(16, head_dim=8, sr_ratio=2), lambda: tokens(16), BOTH, 1),
    "gcvit": (lambda: gcvit.WindowAttentionGlobal(16, 2, (3, 3), use_global=False), lambda: tokens(9), PURE, 1),
    "gcvit, global": (
        lambda: Queries(),
        lambda: (randn(4, 9, 16), randn(2, 2, 9, 8).reshape(2, 9, 16).unsqueeze(1)),
        PURE,
        1,
    ),
    "attention2d": (lambda: Attention2d(16, num_heads=2), maps(), BOTH, 1),
    "attention2d, head first": (lambda: Attention2d(16, 24, num_heads=2, head_first=True), maps(), BOTH, 1),
    "multi-query": (lambda: MultiQueryAttention2d(16, num_heads=2, query_strides=2, kv_stride=2), maps(), BOTH, 1),
    "multi-query, all tokens": (lambda: MultiQueryAttention2d(16, 24, num_heads=2, value_dim=4), maps(), BOTH, 1),
    "visformer": (lambda: visformer.Attention(16, 2), maps(), BOTH, 1),
    "fastvit": (lambda: fastvit.Attention(16, head_dim=8), maps(), BOTH, 1),
    "volo": (lambda: volo.Attention(16, 2), last(), BOTH, 1),
    "sam": (lambda: vision_transformer_sam.Attention(16, 2, use_rel_pos=True, input_size=(4, 4)), last(), PURE, 1),
    "sam, qk-norm": (lambda: vision_transformer_sam.Attention(16, 2, qk_norm=True), last(), BOTH, 1),
    "shvit": (lambda: shvit.SHSA(16, 4, 8), maps(), BOTH, 1),
    "caformer": (lambda: metaformer.Attention(16, head_dim=8), tokens, BOTH, 1),
    "convit": (lambda: convit.MHSA(16, 2), tokens, BOTH, 1),
    "tnt": (lambda: tnt.Attention(16, 8, 2), tokens, BOTH, 1),
    "botnet": (lambda: BottleneckAttn(16, feat_size=(4, 4), stride=2, num_heads=2), maps(), PURE, 1),
    "botnet, scaled": (
        lambda: BottleneckAttn(16, 24, feat_size=(4, 4), num_heads=2, dim_head=4, scale_pos_embed=True),
        maps(),
        PURE,
        1,
    ),
    "pooled map": (lambda: AttentionPool2d(16, num_heads=2, feat_size=3, qkv_separate=True), maps(), BOTH, 1),
    "pooled map, class token": (lambda: AttentionPool2d(16, 5, num_heads=2, class_token=True), maps(), BOTH, 1),
    "pooled map, rotary": (lambda: RotAttentionPool2d(16, num_heads=2, pool_type=""), maps(), BOTH, 1),
    "cait, class": (lambda: cait.ClassAttn(16, 2), tokens, BOTH, 1),
    "volo, class": (lambda: volo.ClassAttention(16, 2, head_dim=4), tokens, PURE, 1),
    "crossvit": (lambda: crossvit.CrossAttention(16, 2), tokens, BOTH, 1),
}
CASES = [(name, variant) for name, (_, _, variants, _) in ARCHITECTURES.items() for variant in variants]
BIASED = [  # those that score pairs of positions, which Linear-InfSA cannot
    name
    for name, (_, _, variants, _) in ARCHITECTURES.items()
    if variants == PURE and name not in ("mvitv2, no positions", "volo, class")
]
