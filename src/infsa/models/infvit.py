"""InfViT: one Pre-LN Vision Transformer in which the attention is the only thing that changes."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from timm.layers import PatchEmbed, global_pool_nlc
from timm.models._manipulate import checkpoint
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..nn.peers import MLLABlock, create_attention
from ..ops.checks import check_choice
from ..ops.dtypes import accumulation_dtype
from ..ops.rows import linear
from .block import WEIGHT_INITS, Block, init_linear, init_xavier
from .maps import attention_maps
from .options import WITH_DECAY, check_options, layer_names, layer_options, short_names
from .patches import ALL, ConvStem, embed_patches, learned_positions, sincos_positions
from .timm_interface import TimmInterface

Context = tuple[tuple[int, int], int, Tensor | None]  # grid, prefix tokens, key mask: what blocks get beside tokens
Step = Callable[[int, nn.Module, Tensor, Context, int | None], Tensor]


class InfViT(TimmInterface):
    """A Vision Transformer with a choice of attention, behind timm's model interface.

    Args:
        img_size: base image size; with ``dynamic_img_size`` other sizes run too.
        patch_size: side of a patch.
        stem: ``"patch"`` embeds every patch by itself; ``"conv"`` by a few convolutions that see its neighbours too,
            for patches whose sides are powers of two; see :class:`infsa.models.patches.ConvStem`.
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
        self.arguments: dict[str, Any] = arguments  # what it takes to build this model again
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if global_pool is None:
            global_pool = "token" if class_token else "avg"
        check_options(arguments | {"global_pool": global_pool})
        layers = layer_names(attention, depth)
        arguments["attention"] = short_names(layers)
        self.num_classes, self.global_pool, self.in_chans = num_classes, global_pool, in_chans
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.has_class_token = class_token
        self.num_prefix_tokens = int(class_token) + reg_tokens
        self.gamma = 0.7 if gamma is None else gamma
        self.decay, self.readout = decay, readout
        self.dynamic_img_size = dynamic_img_size
        self.grad_checkpointing = False

        self.stem = stem
        self.patch_embed: PatchEmbed = (ConvStem if stem == "conv" else PatchEmbed)(
            img_size, patch_size, in_chans, embed_dim,  # type: ignore[arg-type]  # a pair is a patch size too
            output_fmt="NHWC", strict_img_size=False, dynamic_img_pad=dynamic_img_pad, **factory,
        )  # fmt: skip
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim, **factory)) if class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, reg_tokens, embed_dim, **factory)) if reg_tokens else None
        self.pos_kind = pos_embed
        length = self.num_prefix_tokens + self.patch_embed.num_patches
        self.pos_embed = nn.Parameter(torch.empty(1, length, embed_dim, **factory)) if pos_embed == "learn" else None

        self.attention_grid = tuple(attention_grid or self.patch_embed.grid_size)
        chosen = {"learn_gamma": learn_gamma, "activation": activation, "dropout": attn_drop_rate}
        options = layer_options(layers, attention_options, {name: value for name, value in chosen.items() if value})
        shared = {"grid": self.attention_grid, "num_prefix": self.num_prefix_tokens, **factory}
        hidden = int(embed_dim * mlp_ratio)
        self.blocks = nn.ModuleList()
        for layer, rate in enumerate(torch.linspace(0, drop_path_rate, depth, device="cpu").tolist(), start=1):
            if mlla_block:
                self.blocks.append(MLLABlock(embed_dim, num_heads, mlp_ratio=mlp_ratio, **shared))
                continue
            name = layers[layer - 1]
            own: dict[str, Any] = {"gamma": self.layer_gamma(layer)} if name in WITH_DECAY else {}
            if name == "performer":
                own["seed"] = layer  # every layer its own random features
            own |= {**shared, **options[name]}
            attn = create_attention(name, embed_dim, num_heads, extra_proj=paper_params, **own)
            rates: dict[str, Any] = {"dropout": proj_drop_rate, "drop_path": rate, "mlp_chunk": mlp_chunk}
            unread = readout == "series" and layer == depth  # the series ends before the last MLP
            self.blocks.append(Block(embed_dim, attn, hidden=0 if unread else hidden, **rates, **factory))
        self.feature_info = [
            {"module": f"blocks.{i}", "num_chs": embed_dim, "reduction": self.patch_embed.feat_ratio()}
            for i in range(depth)
        ]
        self.norm: nn.Module = nn.LayerNorm(embed_dim, eps=1e-6, **factory)
        self.pre_logits = nn.Linear(embed_dim, embed_dim, **factory) if paper_params else None
        self.head_drop = nn.Dropout(drop_rate)
        self.head: nn.Module = nn.Linear(embed_dim, num_classes, **factory) if num_classes else nn.Identity()
        self.init_weights()

    @property
    def attentions(self) -> tuple[str, ...]:
        """The mechanism of every layer."""
        names = self.arguments["attention"]
        return (names,) * len(self.blocks) if isinstance(names, str) else tuple(names)

    @property
    def attention(self) -> str:
        """The mechanism of all layers; in a mixed model their names, in order."""
        names = self.arguments["attention"]
        return names if isinstance(names, str) else ", ".join(names)

    def layer_gamma(self, layer: int) -> float:
        """γ of layer 1, 2, ...: γ, or γ^l if the decay is geometric."""
        return self.gamma**layer if self.decay == "geometric" else self.gamma

    @torch.no_grad()
    def init_weights(self, scheme: str = "normal") -> None:
        """Draw all weights anew.

        Args:
            scheme: ``"normal"``: truncated normal (σ = 0.02) for linear layers and positions. ``"xavier"``: uniform
                Xavier weights for the linear layers of the blocks, of queries, keys and values each by themselves.
                ``"preserving"``: the same, and the output projection of every attention times √N. The mean of N
                unrelated tokens is √N times smaller than a token; this makes up for it, with the N of ``img_size``.
                Mechanisms always reset what is their own.
        """
        check_choice("scheme", scheme, WEIGHT_INITS)
        for module in self.modules():
            reset = getattr(module, "reset_parameters", None)
            if module is not self and callable(reset):
                reset()
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

    def grid_of(self, images: Tensor) -> tuple[int, int]:
        """The patch grid (h, w) of a batch of images (B, C, H, W), or a one-line refusal."""
        if images.dim() != 4 or images.shape[1] != self.in_chans:
            raise ValueError(f"images must be (B, {self.in_chans}, H, W), got {tuple(images.shape)}")
        height, width = images.shape[-2:]
        if torch.jit.is_tracing():  # sizes are tensors then, and the traced model takes images of this size alone
            if torch.onnx.is_in_onnx_export():
                raise ValueError("torch.onnx.export needs dynamo=True for this model, got dynamo=False")
            height, width = int(height), int(width)
        if height < 1 or width < 1:
            raise ValueError(f"images must have at least one pixel a side, got {(height, width)}")
        if not self.dynamic_img_size and (height, width) != tuple(self.patch_embed.img_size):
            raise ValueError(
                f"images must be {tuple(self.patch_embed.img_size)}, got {(height, width)}; "
                "dynamic_img_size=True accepts any size"
            )
        rows, columns = self.patch_embed.patch_size
        if not self.patch_embed.dynamic_img_pad and (height % rows or width % columns):
            raise ValueError(
                f"image sides must be multiples of the patch {(rows, columns)}, got {(height, width)}; "
                "dynamic_img_pad=True pads them"
            )
        return self.patch_embed.dynamic_feat_size((height, width))

    def positions(self, grid: tuple[int, int]) -> Tensor | None:
        """Positions of prefix and patches on a grid, (1, N, D), or None; prefix tokens of sin-cos get zeros."""
        if self.pos_embed is not None and self._is_base(grid):
            return self.pos_embed
        return self.join_positions(self.patch_positions(grid), self.num_prefix_tokens)

    def patch_positions(self, grid: tuple[int, int], rows: slice = ALL, columns: slice = ALL) -> Tensor | None:
        """Positions of the patches in a window of a grid, (rows · columns, D), or None."""
        base = self.patch_embed.grid_size
        if self.pos_kind == "none":
            return None
        if self.pos_embed is None:
            return sincos_positions(base, grid, self.embed_dim, self.patch_embed.proj.weight, rows, columns)
        table = self.pos_embed[0, self.num_prefix_tokens :]
        if self._is_base(grid):
            return table.unflatten(0, base)[rows, columns].flatten(0, 1)
        return learned_positions(table, base, grid, rows, columns).to(table.dtype)

    def join_positions(self, patches: Tensor | None, prefix: int) -> Tensor | None:
        """Positions of so many prefix tokens and of patches (n, D) in one table, (1, prefix + n, D)."""
        if patches is None:
            return None
        if self.pos_embed is None:
            return nn.functional.pad(patches, (0, 0, prefix, 0)).unsqueeze(0)
        return torch.cat([self.pos_embed[:, :prefix], patches.unsqueeze(0)], 1)

    def _is_base(self, grid: tuple[int, int]) -> bool:
        """Whether a grid surely is the base grid; asked this way, a dynamic size stays dynamic."""
        base = self.patch_embed.grid_size
        return all(statically_known_true(size == b) for size, b in zip(grid, base, strict=True))

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Images to tokens with positions, (B, N, D), and their grid."""
        grid = self.grid_of(images)
        return self.with_positions(self.embed_patches(images), grid), grid

    def embed_patches(self, images: Tensor, rows: slice = ALL, columns: slice = ALL) -> Tensor:
        """Images to patches without positions, (B, h·w, D); see :func:`infsa.models.patches.embed_patches`."""
        if self.stem == "conv":
            return self._checkpointed(embed_patches, self.patch_embed, images, rows, columns)
        return embed_patches(self.patch_embed, images, rows, columns)

    def with_positions(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Embedded patches (B, h·w, D) with the prefix tokens before them and positions added, (B, N, D)."""
        x = self.with_prefix(patches)
        positions = self.positions(grid)
        return x if positions is None else x + positions

    def with_prefix(self, patches: Tensor, positions: Tensor | None = None) -> Tensor:
        """Patches (B, h·w, D) with the class and register tokens before them, to which positions are added if given."""
        tokens: list[Tensor] = [token for token in (self.cls_token, self.reg_token) if token is not None]
        if positions is not None and tokens:
            tokens = [torch.cat(tokens, 1) + positions]
        return torch.cat([*(token.expand(patches.shape[0], -1, -1) for token in tokens), patches], 1)

    def key_mask(self, patch_mask: Tensor | None, grid: tuple[int, int]) -> Tensor | None:
        """A patch mask (B, h, w), True for real patches, as a token mask (B, N); prefix tokens are real."""
        if patch_mask is None:
            return None
        if patch_mask.dtype != torch.bool or tuple(patch_mask.shape[1:]) != tuple(grid):
            shape = tuple(patch_mask.shape)
            raise ValueError(f"patch_mask must be boolean (B, {grid[0]}, {grid[1]}), got {patch_mask.dtype} {shape}")
        return nn.functional.pad(patch_mask.flatten(1), (self.num_prefix_tokens, 0), value=True)

    def run(self, images: Tensor, patch_mask: Tensor | None = None) -> Tensor:
        """Images (B, C, H, W) to the tokens that the final norm reads, (B, N, D)."""
        return self.run_blocks(*self.embed(images), patch_mask)

    def run_blocks(
        self,
        x: Tensor,
        grid: tuple[int, int],
        patch_mask: Tensor | None = None,
        *,
        step: Step | None = None,
        visit: Callable[[int, Tensor, Tensor], None] | None = None,
        depth: int | None = None,
        classify: bool = False,
    ) -> Tensor:
        """The token loop: what ``embed`` returns to the tokens that the final norm reads, (B, N, D).

        Args:
            x: tokens (B, N, D).
            grid: their patch grid (h, w).
            patch_mask: boolean (B, h, w), True for real patches.
            step: ``step(index, block, x, context, leaving)`` returns the first ``leaving`` tokens after a block (all
                if None); the block itself if not given. ``context`` is what blocks are called with beside tokens.
            visit: ``visit(index, before, after)`` sees the tokens around each block.
            depth: stop after so many blocks.
            classify: let only those tokens leave the last block that the classifier reads: where that is the class
                token alone, (B, 1, D), the last MLP runs for one token instead of N.
        """
        context = (grid, self.num_prefix_tokens, self.key_mask(patch_mask, grid))
        total = torch.zeros_like(x) if self.readout == "series" else None
        last = len(self.blocks) - 1 if classify and self.global_pool == "token" else None
        for index, block in enumerate(self.blocks[:depth]):
            before = x
            if total is None:
                leaving = 1 if index == last and isinstance(block, Block) else None
                x = (step or self._step)(index, block, x, context, leaving)
            else:
                assert isinstance(block, Block)
                attended, term = self._series_term(index, block, x, context)
                total = total + term
                x = self._checkpointed(block.add, x, attended)
            if visit is not None:
                visit(index, before, x)
        return x if total is None else total

    def classify(
        self, x: Tensor, grid: tuple[int, int], patch_mask: Tensor | None = None, step: Step | None = None
    ) -> Tensor:
        """What ``embed`` returns to logits (B, classes), without the work that the classifier does not read."""
        x = self.run_blocks(x, grid, patch_mask, step=step, classify=True)
        return self.forward_head(self.norm(x), patch_mask=patch_mask)

    def _step(self, index: int, block: nn.Module, x: Tensor, context: Context, leaving: int | None) -> Tensor:
        return self._checkpointed(block, x, *context, *(() if leaving is None else (leaving,)))

    def _checkpointed(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(function, *arguments)
        return function(*arguments)

    def _series_term(self, index: int, block: Block, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The attention branch of a layer and γ^l Z^(l), γ each head's own where it is learned: (B, N, D) each."""
        layer = index + 1
        if self.arguments["learn_gamma"]:
            power = 1 if self.decay == "geometric" else layer  # what geometric layers learn is γ^l itself
            return self._checkpointed(block.attend, x, *context, power)  # type: ignore[return-value]
        attended = self._checkpointed(block.attend, x, *context)
        return attended, self.gamma**layer * self._without_decay(block, attended, layer)

    def _without_decay(self, block: Block, attended: Tensor, layer: int) -> Tensor:
        """Z^(l): one hop of attention is affine in γ, so γ can be divided out of its output."""
        offset = block.attn.offset()
        return (attended - offset) / self.layer_gamma(layer) + offset

    def forward_features(self, images: Tensor, patch_mask: Tensor | None = None) -> Tensor:
        """Images (B, C, H, W) to normalised tokens (B, N, D); ``patch_mask`` (B, h, w) hides padding."""
        return self.norm(self.run(images, patch_mask))

    def pool(self, x: Tensor, patch_mask: Tensor | None = None) -> Tensor:
        """Tokens (B, N, D) to one vector per image, by ``global_pool``."""
        if patch_mask is not None and self.global_pool == "avg":
            real = patch_mask.flatten(1).unsqueeze(-1)
            total = x[:, self.num_prefix_tokens :].masked_fill(~real, 0).sum(1, dtype=accumulation_dtype(x.dtype))
            return (total / real.sum(1).clamp_min(1)).to(x.dtype)
        if patch_mask is not None and self.global_pool != "token":
            raise ValueError(f"patch_mask needs global_pool 'token' or 'avg', got {self.global_pool!r}")
        return global_pool_nlc(x, pool_type=self.global_pool, num_prefix_tokens=self.num_prefix_tokens)

    def forward_head(self, x: Tensor, pre_logits: bool = False, patch_mask: Tensor | None = None) -> Tensor:
        """Tokens (B, N, D) to logits (B, classes), or to the vector before the classifier."""
        x = self.pool(x, patch_mask)
        if self.pre_logits is not None:
            x = torch.tanh(self.pre_logits(x))
        x = self.head_drop(x)
        return x if pre_logits else linear(x, self.head)

    def forward(self, images: Tensor, patch_mask: Tensor | None = None) -> Tensor:
        """Images (B, C, H, W) to logits (B, classes)."""
        return self.forward_head(self.forward_features(images, patch_mask), patch_mask=patch_mask)

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
