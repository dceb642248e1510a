"""InfViT: one Pre-LN Vision Transformer in which the attention is the only thing that changes.

Here are its arguments and its parts. :class:`Embedding` makes tokens of images, :class:`Trunk` logits of tokens.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from timm.layers import PatchEmbed
from torch import Tensor, nn

from ..nn.peers import MLLABlock, create_attention
from ..nn.peers.base import reset_submodules
from ..ops.checks import check_count
from .blocks import Block
from .maps import attention_maps
from .options import WITH_DECAY, LayerOptions, TokenOptions, check_pool, check_rate, short_names
from .stem import ConvStem
from .timm_interface import TimmInterface


class InfViT(TimmInterface):
    """A Vision Transformer with a choice of attention, behind timm's model interface.

    Args:
        img_size: base image size; with ``dynamic_img_size`` other sizes run too.
        patch_size: side of a patch.
        stem: ``"patch"`` embeds every patch by itself; ``"conv"`` by a few convolutions that see its neighbours too,
            for patches whose sides are powers of two; see :class:`infsa.models.stem.ConvStem`.
        in_chans: image channels.
        num_classes: classes; 0 for features only.
        global_pool: ``"token"`` (CLS), ``"avg"``, ``"max"``, ``"avgmax"`` or ``""``; see timm.
        embed_dim: width D.
        depth: number of blocks L.
        num_heads: H; must divide D.
        mlp_ratio: hidden width of the MLP over D.
        attention: a name of ``infsa.nn.peers.ATTENTIONS`` for all layers, or a list with a name for each layer.
        attention_options: further options of that mechanism; of several mechanisms, a table of options for each name.
        attention_grid: the patch grid that its learned position tables are made for; default that of ``img_size``.
        gamma: decay, for the mechanisms that have one; their default is 0.7.
        learn_gamma: learn one γ per head, in the layers that have one.
        activation: ``"relu"``, ``"gelu"`` or ``"abs"``, for the layers with InfSA.
        decay: ``"constant"`` (γ at every layer) or ``"geometric"`` (γ^l at layer l).
        readout: ``"last"`` classifies the last layer; ``"series"`` classifies LN(Σ_l γ^l Z^(l)), the attention
            outputs after their projection and without their own γ; a learned γ is that of each head.
        class_token: prepend a CLS token.
        reg_tokens: register tokens after it.
        pos_embed: ``"learn"``, ``"sincos"`` or ``"none"``.
        dynamic_img_size: accept any image size; learned positions are resized bicubically.
        dynamic_img_pad: pad images to a multiple of the patch instead of refusing them.
        mlp_chunk: tokens per MLP call for long inputs; see :class:`Block`.
        mlla_block: with ``attention="mlla"``, use the whole MLLA block instead of its core.
        paper_params: add the two further D×D projections that the paper's parameter counts contain: one per
            block before the output projection, one with tanh before the classifier.
        drop_rate: dropout before the classifier.
        proj_drop_rate: dropout after the attention and in the MLP.
        attn_drop_rate: dropout on attention weights, for the mechanisms that have it.
        drop_path_rate: stochastic depth, rising linearly over the blocks.

    Example:
        >>> model = InfViT(depth=4, num_heads=64, attention="infsa_linear")
        >>> model(torch.randn(1, 3, 256, 448)).shape
        torch.Size([1, 1000])
        >>> mixed = InfViT(depth=3, num_heads=16, attention=["softmax", "infsa_pure", "infsa_linear"])
        >>> mixed.attentions
        ('softmax', 'infsa_pure', 'infsa_linear')
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        embed_dim: int = 1024,
        depth: int = 4,
        num_heads: int = 64,
        mlp_ratio: float = 4.0,
        attention: str | Sequence[str] = "infsa_linear",
        attention_options: dict[str, Any] | None = None,
        attention_grid: tuple[int, int] | None = None,
        gamma: float | None = None,
        learn_gamma: bool = False,
        activation: str | None = None,
        decay: Literal["constant", "geometric"] = "constant",
        readout: Literal["last", "series"] = "last",
        class_token: bool = True,
        reg_tokens: int = 0,
        pos_embed: Literal["learn", "sincos", "none"] = "learn",
        dynamic_img_size: bool = True,
        dynamic_img_pad: bool = False,
        mlp_chunk: int | None = None,
        mlla_block: bool = False,
        paper_params: bool = False,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        stem: Literal["patch", "conv"] = "patch",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        arguments = {k: deepcopy(v) for k, v in locals().items() if k not in ("self", "__class__", "device", "dtype")}
        super().__init__()
        self.arguments = arguments  # what it takes to build this model again
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if global_pool is None:
            global_pool = "token" if class_token else "avg"
        tokens = TokenOptions(**{name: arguments[name] for name in TokenOptions.__dataclass_fields__})
        layers = LayerOptions(**{name: arguments[name] for name in LayerOptions.__dataclass_fields__})
        check_count(num_classes, "num_classes", at_least=0)
        check_pool(global_pool, class_token)
        check_rate("drop_rate", drop_rate)
        arguments["attention"] = short_names(layers.names)
        self.num_classes, self.global_pool = num_classes, global_pool
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.gamma = 0.7 if gamma is None else gamma
        self.decay, self.readout = decay, readout
        self.grad_checkpointing = False
        self._build_tokens(tokens, factory)
        self.attention_grid = tuple(attention_grid or self.patch_embed.grid_size)
        self._build_layers(layers, factory)
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6, **factory)
        self.pre_logits = nn.Linear(embed_dim, embed_dim, **factory) if paper_params else None
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dim, num_classes, **factory) if num_classes else nn.Identity()
        self.init_weights()

    def _build_tokens(self, options: TokenOptions, factory: dict[str, Any]) -> None:
        """What :class:`Embedding` needs."""
        width, prefix = options.embed_dim, options.num_prefix
        self.in_chans, self.stem, self.pos_kind = options.in_chans, options.stem, options.pos_embed
        self.has_class_token, self.num_prefix_tokens = options.class_token, prefix
        self.dynamic_img_size = options.dynamic_img_size
        self.patch_embed = (ConvStem if options.stem == "conv" else PatchEmbed)(
            options.img_size, options.patch_size, options.in_chans, width,  # type: ignore[arg-type]  # a pair too
            output_fmt="NHWC", strict_img_size=False, dynamic_img_pad=options.dynamic_img_pad, **factory,
        )  # fmt: skip
        rows = {"cls_token": int(options.class_token), "reg_token": options.reg_tokens}
        rows["pos_embed"] = prefix + self.patch_embed.num_patches if options.pos_embed == "learn" else 0
        for name, count in rows.items():
            setattr(self, name, nn.Parameter(torch.empty(1, count, width, **factory)) if count else None)

    def _build_layers(self, options: LayerOptions, factory: dict[str, Any]) -> None:
        """The blocks."""
        width, heads, own = self.embed_dim, self.num_heads, options.by_mechanism()
        shared = {"grid": self.attention_grid, "num_prefix": self.num_prefix_tokens, **factory}
        self.blocks = nn.ModuleList()
        rates = torch.linspace(0, options.drop_path_rate, options.depth, device="cpu").tolist()
        for layer, (name, rate) in enumerate(zip(options.names, rates, strict=True), start=1):
            if options.mlla_block:
                self.blocks.append(MLLABlock(width, heads, mlp_ratio=options.mlp_ratio, **shared))
                continue
            further: dict[str, Any] = {"gamma": self.layer_gamma(layer)} if name in WITH_DECAY else {}
            if name == "performer":
                further["seed"] = layer  # every layer its own random features
            attn = create_attention(name, width, heads, extra_proj=options.paper_params, **further | shared | own[name])
            unread = options.readout == "series" and layer == options.depth  # the series ends before the last MLP
            hidden = 0 if unread else int(width * options.mlp_ratio)
            chances = {"dropout": options.proj_drop_rate, "drop_path": rate}
            self.blocks.append(Block(width, attn, hidden=hidden, mlp_chunk=options.mlp_chunk, **chances, **factory))
        reduction = self.patch_embed.feat_ratio()
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": width, "reduction": reduction} for i in range(options.depth)
        ]

    @torch.no_grad()
    def init_weights(self) -> None:
        """Truncated normal (σ = 0.02) for linear layers and positions; mechanisms reset what is their own."""
        reset_submodules(self)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_linear(module)
        self.init_tokens()

    def init_tokens(self) -> None:
        """Start the class and register tokens near zero, and the positions small."""
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                nn.init.normal_(token, std=1e-6)
        if self.pos_embed is not None:
            nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def attention_maps(
        self,
        images: Tensor,
        layer: int = -1,
        head: int | None = None,
        method: str = "last",
        **options: Any,
    ) -> Tensor:
        """Where the model looks, (B, h, w), each map summing to 1; see :func:`infsa.models.maps.attention_maps`."""
        return attention_maps(self, images, layer=layer, head=head, method=method, **options)


def init_linear(module: nn.Linear) -> None:
    """Truncated normal weights, σ = 0.02, and zero biases."""
    nn.init.trunc_normal_(module.weight, std=0.02)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
