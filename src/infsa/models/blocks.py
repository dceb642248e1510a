"""What tokens go through: the Pre-LN block, the loop over the blocks, and the read-out."""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import DropPath, Mlp, global_pool_nlc
from torch import Tensor, nn

from ..nn.peers import Attention, MLLABlock, create_attention
from ..nn.peers.infsa import LinearInfSAAttention
from ..ops.dtypes import accumulation_dtype
from ..ops.rows import linear
from ..ops.tracing import exporting
from .options import WITH_DECAY, LayerOptions
from .patches import Embedding
from .whole_block import run_whole

Context = tuple[tuple[int, int], int, Tensor | None]  # grid, prefix tokens, key mask: what blocks get beside tokens
Step = Callable[[int, nn.Module, Tensor, Context, int | None], Tensor]


class Block(nn.Module):
    """x ← x + attention(LN(x)); x ← x + MLP(LN(x)).

    ``attention`` is any mechanism of ``infsa.nn.peers``. With ``mlp_chunk`` the MLP works off that many tokens at
    a time, so that its hidden layer stays small for long inputs; the result is the same. ``hidden=0`` leaves the MLP
    out.
    """

    def __init__(
        self,
        dim: int,
        attention: Attention,
        *,
        hidden: int,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        mlp_chunk: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.mlp_chunk = mlp_chunk
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, device=device, dtype=dtype)
        self.attn = attention
        self.drop = nn.Dropout(dropout)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, device=device, dtype=dtype) if hidden else None
        self.mlp = Mlp(dim, hidden, drop=dropout, device=device, dtype=dtype) if hidden else None
        self.drop_path2 = DropPath(drop_path)

    def attend(
        self,
        x: Tensor,
        grid: tuple[int, int],
        num_prefix: int,
        key_mask: Tensor | None = None,
        power: int | None = None,
    ) -> Any:
        """The attention branch before it is added: (B, N, D); with ``power`` a pair, see :meth:`Attention.forward`."""
        further = {} if power is None else {"power": power}
        return self.attn(self.norm1(x), grid=grid, num_prefix=num_prefix, key_mask=key_mask, **further)

    def add(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention branch, then the MLP branch."""
        x = x + self.drop_path1(self.drop(attended))
        if self.norm2 is None or self.mlp is None:
            return x
        chunk = self.mlp_chunk
        if chunk is None or exporting() or x.shape[1] <= chunk:  # a program must run at any length
            return x + self.drop_path2(self.mlp(self.norm2(x)))
        parts = [self.mlp(self.norm2(part)) for part in x.split(chunk, dim=1)]
        return x + self.drop_path2(torch.cat(parts, 1))

    def forward(
        self,
        x: Tensor,
        grid: tuple[int, int],
        num_prefix: int = 1,
        key_mask: Tensor | None = None,
        leaving: int | None = None,
    ) -> Tensor:
        """x (B, N, D), N = num_prefix + h·w, -> (B, N, D), or the first ``leaving`` tokens, which alone see the MLP."""
        alone = key_mask is None and leaving is None and not torch.compiler.is_compiling()
        if alone and type(self.attn) is LinearInfSAAttention and self._fits(x, grid, num_prefix):
            found = run_whole(self, x)
            if found is not None:
                return found
        attended = self.attend(x, grid, num_prefix, key_mask)
        if leaving is not None:
            x, attended = x[:, :leaving], attended[:, :leaving]
        return self.add(x, attended)

    def _fits(self, x: Tensor, grid: tuple[int, int], num_prefix: int) -> bool:
        """Whether one function may stand for the modules, whose errors are theirs to say."""
        if type(self) is not Block or self.mlp is None or not isinstance(grid, tuple) or x.dim() != 3:
            return False
        if len(grid) != 2 or min(grid) < 1 or num_prefix < 0:
            return False
        count = num_prefix + grid[0] * grid[1]
        return x.shape[1] == count and (self.mlp_chunk is None or count <= self.mlp_chunk)


class Trunk(Embedding):
    """The part of :class:`InfViT` that makes logits of tokens: the loop over the blocks and the read-out."""

    arguments: dict[str, Any]
    global_pool: str
    norm: nn.Module
    pre_logits: nn.Linear | None
    head_drop: nn.Dropout
    head: nn.Module

    def _build_layers(self, options: LayerOptions, heads: int, grid: tuple[int, ...], factory: dict[str, Any]) -> None:
        width, own, self.num_heads = self.embed_dim, options.by_mechanism(), heads
        self.gamma, self.decay = 0.7 if options.gamma is None else options.gamma, options.decay
        self.readout = options.readout
        self.blocks = nn.ModuleList()
        shared = {"grid": grid, "num_prefix": self.num_prefix_tokens, **factory}
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

    def key_mask(self, patch_mask: Tensor | None, grid: tuple[int, int]) -> Tensor | None:
        """A patch mask (B, h, w), True for real patches, as a token mask (B, N); prefix tokens are real."""
        if patch_mask is None:
            return None
        if patch_mask.dtype != torch.bool or tuple(patch_mask.shape[1:]) != tuple(grid):
            shape = tuple(patch_mask.shape)
            raise ValueError(f"patch_mask must be boolean (B, {grid[0]}, {grid[1]}), got {patch_mask.dtype} {shape}")
        return nn.functional.pad(patch_mask.flatten(1), (self.num_prefix_tokens, 0), value=True)

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
        return self.norm(self.run_blocks(*self.embed(images), patch_mask))

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
