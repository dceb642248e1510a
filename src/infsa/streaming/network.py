"""A Linear InfViT as a sequence of sums over tokens, with everything else done token by token.

A layer asks for ``iterations`` + 1 sums: the energies, then the scores, round by round. What the sums give (central
queries, and one row per layer that every token adds to itself) is small, so tokens can come and go in any order.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..models import InfViT
from ..models.blocks import Block
from ..nn import LinearInfSA
from ..nn.infsa import merge_heads, project_out, project_values
from ..ops.dtypes import accumulation_dtype
from ..ops.linear import Pooled
from ..ops.linear import tiles as kernels
from ..ops.linear.state import LinearState, energies, key_scores
from .embedding import PixelEmbedding
from .source import Colours
from .tiles import Tile, Tiling

CHUNK = 1 << 20  # bytes of tokens that go through a block together on a CPU: the hidden layer stays in its cache

Sums = dict[str, Tensor]  # by name; all add up but "largest", whose maximum counts


class Step(NamedTuple):
    """One pass over the tokens: a round of a layer, or the pooling after the last layer."""

    layer: int  # the tokens are those that enter this layer
    round: int = 0
    pool: bool = False


class Network:
    """The token-wise and the small parts of a model, on an image of known size."""

    def __init__(self, model: InfViT, tiling: Tiling, colours: Colours | None = None) -> None:
        check_model(model)
        self.pixels = None if colours is None else PixelEmbedding(model, colours)
        self.model, self.tiling, self.grid = model, tiling, tiling.grid
        self.depth = len(model.blocks)
        self.prefix_count = model.num_prefix_tokens
        self.tokens = self.prefix_count + self.grid[0] * self.grid[1]
        weight = model.patch_embed.proj.weight
        self.dtype, self.device = weight.dtype, weight.device
        self.wide = torch.float32 if self.device.type == "mps" else torch.float64  # sums over tiles are kept in it
        for block in model.blocks:
            if block.attn.queries > self.tokens:  # type: ignore[union-attr,operator]
                raise ValueError(f"queries must be at most the {self.tokens} tokens, got {attention(block).queries}")
        self._aim: tuple[Tensor, kernels.Aim] | None = None  # the last central query, and how kernels want it
        self.pools_tokens = model.global_pool != "token" and model.readout == "last"
        self.steps = [
            Step(layer, turn)
            for layer, block in enumerate(model.blocks)
            for turn in range(attention(block).iterations + 1)
        ]
        if self.pools_tokens:
            self.steps.append(Step(self.depth, pool=True))

    # Tokens

    def embed(self, pixels: Tensor, tile: Tile) -> Tensor:
        """What a tile reads to its tokens with positions (1, n, D), padded as the model does.

        These are pixels (h, w, c) if the network has colours, and otherwise model input (c, h, w).
        """
        if self.pixels is not None:
            x = self.pixels(pixels, *tile.in_read)
        else:
            x = self.model.embed_patches(pixels.unsqueeze(0).to(self.dtype), *tile.in_read)
        positions = self.model.patch_positions(self.grid, *tile.in_grid)
        return x if positions is None else x + positions

    def prefix(self) -> Tensor | None:
        """The class and register tokens with their positions: (1, P, D), or None."""
        found: list[Tensor] = [t for t in (self.model.cls_token, self.model.reg_token) if t is not None]
        if not found:
            return None
        x = torch.cat(found, 1)
        table = self.model.pos_embed
        return x if table is None else x + table[:, : self.prefix_count]

    def advance(self, x: Tensor, layer: int, rows: Tensor, tile: Tile | None) -> Tensor:
        """Tokens (R, n, D) through a layer whose result for each group of tokens is known: rows (R, m, D)."""
        add, added = self.model.blocks[layer].add, self.spread(rows, tile)
        count = max(1, CHUNK // (x.shape[0] * x.shape[2] * x.element_size()))
        if self.device.type != "cpu" or torch.is_grad_enabled() or x.shape[1] <= count:
            return add(x, added)  # type: ignore[operator]
        parts = added.expand(-1, x.shape[1], -1).split(count, 1)
        return torch.cat([add(*pair) for pair in zip(x.split(count, 1), parts, strict=True)], 1)  # type: ignore[operator]

    def spread(self, rows: Tensor, tile: Tile | None) -> Tensor:
        """The row of each token of a tile, or of the prefix: (R, m, D) -> (R, n, D), or (R, 1, D) if there is one."""
        return rows if rows.shape[1] == 1 else rows[:, self.groups(tile, rows.shape[1])]

    def groups(self, tile: Tile | None, count: int) -> Tensor:
        """The block ⌊i·m/N⌋ of each token i of a tile, or of the prefix: (n,)."""
        if tile is None:
            index = torch.arange(self.prefix_count, device=self.device)
        else:
            rows = torch.arange(tile.row, tile.row + tile.rows, device=self.device)
            columns = torch.arange(tile.column, tile.column + tile.columns, device=self.device)
            index = (rows[:, None] * self.grid[1] + columns).flatten() + self.prefix_count
        return index * count // self.tokens

    # Sums

    def rounds(self, layer: int) -> int:
        """How often a layer scores its keys."""
        return attention(self.model.blocks[layer]).iterations

    def contribution(self, x: Tensor, step: Step, central: Tensor | None, tile: Tile | None) -> Sums:
        """What tokens (R, n, D) add to the sums of a step; ``central`` is the last round's central query."""
        if step.pool:
            x = self.model.norm(x)
            count = x.new_full(x.shape[:1], x.shape[1], dtype=accumulation_dtype(x.dtype))
            found = {"sum": x.sum(1, dtype=accumulation_dtype(x.dtype)), "count": count}
            return found | ({"largest": x.amax(1)} if self.model.global_pool != "avg" else {})
        block = self.model.blocks[step.layer]
        attn = attention(block)
        x = block.norm1(x)  # type: ignore[operator]
        by_kernels = self._by_kernels(x, attn, central)
        if by_kernels is not None:
            return by_kernels
        q, k = attn._project(x)
        with torch.autocast(self.device.type, enabled=False):
            if central is None:
                weights, values = self._grouped(energies(q), attn.queries, tile), q
            else:
                weights = key_scores(central, k, activation=attn.activation)
                values = q if step.round < attn.iterations else x.unsqueeze(1)
            return dict(vars(LinearState.of(weights, values)))

    def _by_kernels(self, x: Tensor, attn: LinearInfSA, central: Tensor | None) -> Sums | None:
        """The sums by the kernels that the layer itself would run; None where it runs none."""
        projections = attn.projections() if attn.iterations == attn.queries == 1 else None
        if projections is None:
            return None
        weights = kernels.Weights(attn.num_heads, *projections, attn.activation, attn.impl)
        if not kernels.kernels_do(x, weights):
            return None
        if central is None:
            sums = kernels.energy_sums(x, weights)
        else:
            if self._aim is None or self._aim[0] is not central:
                self._aim = central, kernels.aim_of(central, weights, x)
            sums = kernels.score_sums(x, weights, self._aim[1])
        return dict(zip(("absolute", "signed", "vectors"), sums, strict=True))

    def _grouped(self, weights: Tensor, count: int, tile: Tile | None) -> Tensor:
        """Weights (R, H, n) as (R, H, m, n), zero outside a token's own group."""
        if count == 1:
            return weights.unsqueeze(2)
        members = self.groups(tile, count) == torch.arange(count, device=self.device)[:, None]
        return weights.unsqueeze(2) * members

    def finish(self, step: Step, sums: Sums) -> Tensor:
        """What a layer makes of its sums: a central query (R, H, m, d), or after the last round rows (R, m, D)."""
        attn = attention(self.model.blocks[step.layer])
        state = LinearState(sums["absolute"], sums["signed"], sums["vectors"])
        mean = state.finish(attn.eps).to(accumulation_dtype(self.dtype))
        if step.round < attn.iterations:
            return mean
        values = project_values(Pooled(mean, state.mass(attn.eps), None), attn.v, attn.num_heads)
        return project_out(merge_heads(values, attn.decay()), attn.extra, attn.proj)

    # The end

    def series(self, rows: list[Tensor]) -> Tensor:
        """Σ_l γ^l Z^(l) for each group of tokens: (R, m, D)."""
        model = self.model
        total = torch.zeros_like(rows[0])
        for index, row in enumerate(rows):
            block = model.blocks[index]
            assert isinstance(block, Block)
            total = total + model.gamma ** (index + 1) * model._without_decay(block, row, index + 1)
        return total

    def last_tokens(self, x: Tensor, rows: list[Tensor], tile: Tile | None) -> Tensor:
        """The tokens that the final norm reads, from those that leave the last layer: (R, n, D)."""
        if self.model.readout == "last":
            return x
        return self.spread(self.series(rows), tile).expand(-1, x.shape[1], -1)

    def classify(self, prefix: Tensor | None, rows: list[Tensor], sums: Sums) -> tuple[Tensor, Tensor]:
        """Logits and the features before the classifier, from the prefix tokens that leave the last layer."""
        model = self.model
        if model.global_pool == "token":
            assert prefix is not None
            tokens = model.norm(self.last_tokens(prefix, rows, None))
        else:
            pooled = self._pooled_series(rows) if model.readout == "series" else self._pooled(sums)
            tokens = nn.functional.pad(pooled.to(self.dtype).unsqueeze(1), (0, 0, self.prefix_count, 0))
        return model.forward_head(tokens), model.forward_head(tokens, pre_logits=True)

    def _pooled(self, sums: Sums) -> Tensor:
        mean = sums["sum"] / sums["count"].clamp_min(1).unsqueeze(-1)
        if self.model.global_pool == "avg":
            return mean
        largest = sums["largest"].to(mean.dtype)
        return largest if self.model.global_pool == "max" else 0.5 * (largest + mean)

    def _pooled_series(self, rows: list[Tensor]) -> Tensor:
        normed = self.model.norm(self.series(rows))
        share = self.group_shares(normed.shape[1]).to(normed)
        mean, largest = (normed * share[:, None]).sum(1), normed[:, share > 0].amax(1)
        return {"avg": mean, "max": largest, "avgmax": 0.5 * (largest + mean)}[self.model.global_pool]

    def group_shares(self, count: int) -> Tensor:
        """The share of all patches that each of the groups holds: (m,)."""
        starts = [max(-(-group * self.tokens // count), self.prefix_count) for group in range(count + 1)]
        sizes = [end - start for start, end in pairwise(starts)]
        return torch.tensor(sizes, dtype=torch.float64, device=self.device) / (self.tokens - self.prefix_count)


def attention(block: nn.Module) -> LinearInfSA:
    """The attention of a checked block."""
    assert isinstance(block.attn, LinearInfSA)
    return block.attn


def check_model(model: nn.Module) -> None:
    """Refuse, in one line, a model whose tokens share more than sums."""
    if not isinstance(model, InfViT):
        raise TypeError(
            f"streaming takes an InfViT, got {type(model).__name__}; infsa.conversion.as_infvit makes one of a "
            "converted plain vision transformer"
        )
    for block in model.blocks:
        if not isinstance(block, Block) or not isinstance(block.attn, LinearInfSA):
            raise ValueError(
                "streaming needs Linear-InfSA (attention='infsa_linear') at every layer, "
                f"got attention={model.attention!r}"
            )
        for module in (block, block.attn):
            if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
                raise ValueError("streaming does not call whole blocks: hooks and replaced forwards of "
                                 f"{type(module).__name__} would not run; remove them")  # fmt: skip
    if model.readout == "series" and model.arguments["learn_gamma"]:
        raise ValueError("streaming with readout='series' needs a fixed gamma, got learn_gamma=True")
    if model.global_pool == "":
        raise ValueError("streaming needs a global_pool, got '': result.region reads dense features")
    for name, module in model.named_modules():
        rate = getattr(module, "p", None) if isinstance(module, nn.Dropout) else getattr(module, "drop_prob", None)
        if module.training and rate:
            raise ValueError(f"streaming has no dropout: call model.eval() or set it to 0, got {rate} at {name}")
