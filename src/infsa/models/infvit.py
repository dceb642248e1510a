"""InfViT: one Pre-LN Vision Transformer in which the attention is the only thing that changes.

Here are its arguments. :class:`Embedding` makes tokens of images, :class:`Trunk` logits of tokens.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import nn

from ..nn.peers.base import reset_submodules
from ..ops.checks import check_choice, check_count
from .maps import attention_maps
from .options import LayerOptions, TokenOptions, check_pool, check_rate, short_names
from .timm_interface import TimmInterface

WEIGHT_INITS = ("normal", "xavier", "preserving")
PACKED = ("qkv", "qk")  # linear layers that hold several square projections, one below the other


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
        check_count(num_classes, "num_classes", at_least=0)
        check_pool(global_pool, class_token)
        check_rate("drop_rate", drop_rate)
        tokens = TokenOptions(**{name: arguments[name] for name in TokenOptions.__dataclass_fields__})
        layers = LayerOptions(**{name: arguments[name] for name in LayerOptions.__dataclass_fields__})
        arguments["attention"] = short_names(layers.names)
        self.num_classes, self.global_pool = num_classes, global_pool
        self.num_features = self.head_hidden_size = embed_dim
        self.grad_checkpointing = False
        self._build_tokens(tokens, factory)
        self.attention_grid = tuple(attention_grid or self.patch_embed.grid_size)
        self._build_layers(layers, num_heads, self.attention_grid, factory)
        self.norm = nn.LayerNorm(embed_dim, eps=1e-6, **factory)
        self.pre_logits = nn.Linear(embed_dim, embed_dim, **factory) if paper_params else None
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dim, num_classes, **factory) if num_classes else nn.Identity()
        reduction = self.patch_embed.feat_ratio()
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": embed_dim, "reduction": reduction} for i in range(depth)
        ]
        self.init_weights()

    @torch.no_grad()
    def init_weights(self, scheme: str = "normal") -> None:
        """Draw all weights anew.

        Args:
            scheme: ``"normal"``: truncated normal (σ = 0.02) for linear layers and positions. ``"xavier"``: uniform
                Xavier weights for the linear layers of the blocks, of queries, keys and values separately.
                ``"preserving"``: the same, and the output projection of every attention times √N. The mean of N
                unrelated tokens is √N times smaller than a token; this makes up for it, with the N of ``img_size``.
                Mechanisms always reset their own parameters.
        """
        check_choice("scheme", scheme, WEIGHT_INITS)
        reset_submodules(self)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                init_linear(module)
        if scheme != "normal":
            tokens = self.num_prefix_tokens + self.patch_embed.num_patches
            init_xavier(self.blocks, math.sqrt(tokens) if scheme == "preserving" else 1.0)
        self.init_tokens()

    def init_tokens(self) -> None:
        """Start the class and register tokens near zero, and the positions small."""
        for token in (self.cls_token, self.reg_token):
            if token is not None:
                nn.init.normal_(token, std=1e-6)
        if self.pos_embed is not None:
            nn.init.trunc_normal_(self.pos_embed, std=0.02)

    attention_maps = attention_maps


def init_linear(module: nn.Linear) -> None:
    """Truncated normal weights, σ = 0.02, and zero biases."""
    nn.init.trunc_normal_(module.weight, std=0.02)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def init_xavier(blocks: nn.Module, output_scale: float) -> None:
    """Uniform Xavier weights and zero biases; the output projections of attention layers times ``output_scale``."""
    for path, module in blocks.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        name = path.rpartition(".")[2]
        parts = module.weight.split(module.in_features) if name in PACKED else (module.weight,)
        for part in parts:
            nn.init.xavier_uniform_(part, gain=output_scale if name == "proj" else 1.0)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def not_an_infvit(model: object, caller: str) -> TypeError:
    """The error of a function that takes nothing but an InfViT; it says how a timm ViT becomes one."""
    kind = type(model).__name__
    hint = "; infsa.conversion.as_infvit makes one of a converted plain ViT" if kind == "VisionTransformer" else ""
    return TypeError(f"{caller} takes an InfViT, got {kind}{hint}")
