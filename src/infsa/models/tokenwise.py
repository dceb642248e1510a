"""What a block does to each token by itself: the residual, LayerNorm and the MLP, in few passes over the tokens.

    kernel           LN(x)
    product          GELU in its epilogue
    product          added to x in its epilogue
    kernel           LN of the next block, while the tokens are still in the cache

What all tokens of an image receive, the result of Linear-InfSA and the MLP's bias, is added up as one offset an image
that the kernels add, and is never written for each token. In 8 bits the kernels round what they write, a third one
applies GELU and rounds, the last one also adds the MLP's result, and one more product makes Linear-InfSA's queries.
"""

from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from ..nn.peers.infsa import LinearInfSAAttention
from ..ops.dtypes import accumulation_dtype
from .blocks import Block
from .fp8 import FP8, round_rows, rounded_product
from .kernels import kernels_run

CHUNKS = 4  # whose tokens are normalised at a time, before and after the MLP, or go through it in 8 bits


class RowNorm:
    """LN(x + added + offset + row) of tokens x of a batch, where x becomes x + added.

    ``offset`` (B, D), in float32, and ``row`` (B, D) belong to all tokens of an image. ``following`` (B, D) gets the
    next offset, offset + row + bias. With ``eight`` the result is in 8 bits, and with ``wide`` also as it is.
    """

    def __init__(
        self,
        norm: nn.Module,
        x: Tensor,
        *,
        added: bool = False,
        offset: Tensor | None = None,
        row: Tensor | None = None,
        bias: Tensor | None = None,
        following: Tensor | None = None,
        eight: bool = False,
        wide: bool = True,
    ) -> None:
        self.norm, self.shared, self.eight, self.launch = norm, (offset, row, bias, following), eight, None
        self.wide = wide or not eight
        self.tokens, self.dim = x.shape[1:]
        if is_plain_norm(norm) and kernels_run(x) and norm.weight.dtype == x.dtype:
            from .token_kernels import MANY, ROWS, STEPS, launcher, norm_kernel, padded

            sizes = {
                "DIM": self.dim,
                "BLOCK": padded(self.dim),
                "ROWS": ROWS if self.dim <= 2048 and x.shape[0] == 1 else 1,
                "ADDED": added,
            }
            names = ("OFFSET", "ROW", "BIASED", "NEXT")
            given = {name: y is not None for name, y in zip(names, self.shared, strict=True)}
            warps = 4 if self.dim <= 2048 else 8
            sizes |= {"WIDE": self.wide, "EIGHT": eight, "num_warps": warps}
            self.launch = launcher(norm_kernel, x, **given, **sizes)
            self.rows, self.eps, self.many = sizes["ROWS"], float(norm.eps), MANY
            self.most = STEPS if x.shape[0] == 1 else 1
            self.tensors = [*(x if y is None else y for y in self.shared), norm.weight, norm.bias]

    def __call__(self, x: Tensor, first: int = 0, added: Tensor | None = None, out: Tensor | None = None) -> Any:
        """Rows x (n, D), the tokens first, first + 1, ... of the batch, into ``out`` where it is given."""
        if self.launch is None:
            return self._plain(x, first, added, out)
        count, eight, scale = x.shape[0], x, x
        if out is None:
            out = torch.empty_like(x) if self.wide else x  # stands for what is not written
        if self.eight:
            eight, scale = torch.empty_like(x, dtype=FP8), x.new_empty(count, 1, dtype=torch.float32)
        tensors = (x, x if added is None else added, *self.tensors, out, eight, scale)
        steps = min(self.most, max(1, count // self.many))
        self.launch((-(-count // (self.rows * steps)), 1, 1), tensors, count, first, self.tokens, steps, self.eps)
        return (eight, scale) if self.eight else out

    def _plain(self, x: Tensor, first: int, added: Tensor | None, out: Tensor | None) -> Any:
        if added is not None:
            x += added
        offset, row, bias, following = self.shared
        shared = sum(y for y in (offset, row) if y is not None)  # (B, D), or 0
        if following is not None:
            following.copy_(shared + (0 if bias is None else bias) + torch.zeros_like(following))
        if isinstance(shared, Tensor):
            image = torch.arange(first, first + x.shape[0], device=x.device) // self.tokens
            x = (x + shared[image]).to(x.dtype)
        y = self.norm(x)
        if out is not None:
            out.copy_(y)
        return round_rows(y) if self.eight else y if out is None else out


def is_plain_norm(norm: nn.Module | None) -> TypeGuard[nn.LayerNorm]:
    """Whether a norm is a LayerNorm over the channels with gain and shift."""
    if type(norm) is not nn.LayerNorm or len(norm.normalized_shape) != 1:
        return False
    return type(norm.weight) is type(norm.bias) is nn.Parameter


def is_plain_mlp(block: Block, x: Tensor) -> bool:
    """Whether the block's MLP is two plain products in the type of x with an activation between, and nothing drops."""
    mlp = block.mlp
    if type(mlp) is not Mlp or type(mlp.fc1) is not nn.Linear or type(mlp.fc2) is not nn.Linear:
        return False
    drops = (block.drop, block.drop_path1, block.drop_path2, mlp.drop1, mlp.drop2)
    idle = all(type(m) in (nn.Dropout, DropPath, nn.Identity) and not m.training for m in drops)
    same = all(type(p) is nn.Parameter and p.dtype == x.dtype for p in mlp.parameters())
    return same and idle and type(mlp.norm) is nn.Identity and is_plain_norm(block.norm2)


def chunks(count: int, chunk: int) -> Iterator[slice]:
    """Slices of ``chunk`` rows; the last has up to a quarter more, so that none is much shorter."""
    first = 0
    while count - first > chunk + chunk // 4:
        yield slice(first, first + chunk)
        first += chunk
    yield slice(first, count)


class Ahead:
    """LN of tokens x (B, N, D) by a block's first norm, some rows at a time; ``normal`` (B, N, D) in the end.

    In 8 bits Linear-InfSA's product for queries is made of the same rows: ``q`` (B, N, D).
    """

    def __init__(self, block: Block, x: Tensor, *, fp8: bool, normal: Tensor | None = None, **sums: Any) -> None:
        self.attn, self.query = block.attn, queries_of(block.attn, x) if fp8 else None
        self.norm = RowNorm(block.norm1, x, eight=self.query is not None, **sums)
        self.normal = torch.empty_like(x) if normal is None else normal
        if self.query is not None:
            self.q, self.weight = torch.empty_like(x), round_rows(self.query.weight)

    def __call__(self, rows: Tensor, group: slice, added: Tensor | None = None) -> None:
        """Take the rows x[group] of all images' tokens, which become rows + added."""
        found = self.norm(rows, group.start, added, self.normal.view(-1, rows.shape[1])[group])
        if self.query is not None:
            out = self.q.view(-1, rows.shape[1])[group]
            rounded_product(found, self.weight, self.query.bias, rows.dtype, out)

    def attend(self, grid: tuple[int, int], num_prefix: int, key_mask: Tensor | None) -> Tensor:
        """The block's attention: (B, N, D)."""
        if self.query is None:
            found: Tensor = self.attn(self.normal, grid=grid, num_prefix=num_prefix, key_mask=key_mask)
            return found
        return self.attn.context(self.normal, key_mask, self.q).expand(-1, self.normal.shape[1], -1)  # type: ignore[operator]


def queries_of(attn: nn.Module, x: Tensor) -> nn.Linear | None:
    """The layer that makes Linear-InfSA's queries, if they may be computed elsewhere, in the type of x."""
    if type(attn) is not LinearInfSAAttention or attn.queries > 1 or attn.iterations > 1 or attn.projections() is None:
        return None
    return attn.q if all(p.dtype == x.dtype for p in attn.q.parameters()) else None


def groups_of(count: int, chunk: int) -> Iterator[slice]:
    """The rows that are worked off at a time, in whole chunks."""
    return chunks(count, chunk * CHUNKS)


def add_mlp(
    block: Block, x: Tensor, attended: Tensor, offset: Tensor | None, chunk: int, fp8: bool, ahead: Any = None
) -> tuple[Tensor, Ahead | None]:
    """x + attended, then + MLP, over x (B, N, D) itself, but for what all tokens of an image receive: the new offset.

    ``ahead(offset)`` makes an :class:`Ahead` of the next block, which gets the result.
    """
    mlp, flat = block.mlp, x.view(-1, x.shape[2])
    assert isinstance(mlp, Mlp) and block.norm2 is not None  # noqa: PT018
    shared = attended.stride(1) == 0 or attended.shape[1] == 1
    row, added = (attended[:, 0].contiguous(), None) if shared else (None, attended.reshape(flat.shape).contiguous())
    after = x.new_empty(x.shape[0], x.shape[2], dtype=accumulation_dtype(x.dtype))  # the offset after this block
    sums: dict[str, Any] = {"offset": offset, "row": row, "bias": mlp.fc2.bias, "following": after}
    inner = RowNorm(block.norm2, x, added=added is not None, eight=fp8, wide=not fp8, **sums)
    following = None if ahead is None else ahead(after)
    weights = [round_rows(layer.weight) for layer in (mlp.fc1, mlp.fc2)] if fp8 else []
    for group in groups_of(flat.shape[0], chunk):
        rows, found = flat[group], None
        normal = inner(rows, group.start, None if added is None else added[group])
        if fp8:
            hidden = rounded_product(normal, weights[0], mlp.fc1.bias, x.dtype)
            eight = round_rows(hidden, gelu=True) if is_gelu(mlp.act) else round_rows(mlp.act(hidden))
            found = rounded_product(eight, weights[1], None, x.dtype)
        else:
            for part in chunks(rows.shape[0], chunk):
                rows[part].addmm_(_hidden(mlp, normal[part]), mlp.fc2.weight.t())
        if following is not None:
            following(rows, group, found)
        elif found is not None:
            rows += found
    return after, following


def is_gelu(act: nn.Module) -> bool:
    """Whether an activation is GELU, in either form."""
    return type(act) is nn.GELU


def _hidden(mlp: Mlp, x: Tensor) -> Tensor:
    """The MLP's hidden units of rows (n, D); in bfloat16 on a GPU, GELU is computed by the product, in its tanh form.

    That is at most 4.8e-4 from the exact GELU, less than bfloat16 rounds numbers near 1 by.
    """
    bias, weight = mlp.fc1.bias, mlp.fc1.weight
    if x.is_cuda and x.dtype == torch.bfloat16 and bias is not None and is_gelu(mlp.act):
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return mlp.act(nn.functional.linear(x, weight, bias))
