"""Layers of timm that are not converted, by file and class: those refused, and those that only bear the name."""

_CHANNELS = "it scores pairs of channels, not of tokens: there is no token graph to diffuse over"
_TALKING = "talking heads: it mixes the scores and the maps of all heads, and InfSA never forms them"
_SHARED = "its attention shares one projection with the MLP of its block"
_PREDICTED = "its weights are predicted from a token alone, without scores between tokens"
_DIFFERENCE = "it subtracts two softmax maps, and the difference of two InfSA maps is another method"
_FACTORED = "it has no map between tokens: softmax acts on keys alone, and the values are summed first"

REFUSED = {
    "diff_attention.DiffAttention": _DIFFERENCE,
    "vision_transformer.ParallelScalingBlock": _SHARED,
    "vision_transformer.DiffParallelScalingBlock": _SHARED,
    "cait.TalkingHeadAttn": _TALKING,
    "efficientformer_v2.Attention2d": _TALKING,
    "davit.ChannelAttention": _CHANNELS,
    "davit.ChannelAttentionV2": _CHANNELS,
    "edgenext.CrossCovarianceAttn": _CHANNELS,
    "xcit.XCA": _CHANNELS,
    "volo.OutlookAttention": _PREDICTED,
    "coat.FactorAttnConvRelPosEnc": _FACTORED,
    "mobilevit.LinearSelfAttention": _PREDICTED,
    "swiftformer.EfficientAdditiveAttention": "it has no map between tokens: one learned vector scores all of them",
    "convit.GPSA": "it blends softmax maps of content and of position with a gate, and the blend is normalised by rows",
    "efficientvit_msra.CascadedGroupAttention": "each head reads the output of the one before: no heads of one layer",
    "lambda_layer.LambdaLayer": _FACTORED,
    "efficientvit_mit.LiteMLA": "it is linear attention already: ReLU features of queries and keys, no softmax",
    "mvitv2.MultiScaleAttentionPoolFirst": "it multiplies queries with keys laid out by head, not by token",
}

_GATES = (
    "cbam.ChannelAttn cbam.LightChannelAttn cbam.SpatialAttn cbam.LightSpatialAttn coord_attn.CoordAttn "
    "coord_attn.SimpleCoordAttn coord_attn.EfficientLocalAttn coord_attn.StripAttn "
    "selective_kernel.SelectiveKernelAttn split_attn.SplitAttn"
)
KEPT = {
    **dict.fromkeys(_GATES.split(), "it gates channels or positions; there is no attention between tokens"),
    "nextvit.ConvAttention": "it is a grouped convolution; there is no attention between tokens",
    "efficientvim.HSMSSD": "it is a state-space mixer; there is no attention between tokens",
}
