"""The Pre-LN transformer block: whatever the attention, the rest is the same."""

from typing import Any

import torch
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from ..nn.peers import Attention
from ..ops.tracing import exporting

WEIGHT_INITS = ("normal", "xavier", "preserving")
PACKED = ("qkv", "qk")  # linear layers that hold several square projections, one below the other


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
        chunk = None if exporting() else self.mlp_chunk  # a program must run at any length
        if chunk is None or x.shape[1] <= chunk:
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
        attended = self.attend(x, grid, num_prefix, key_mask)
        if leaving is not None:
            x, attended = x[:, :leaving], attended[:, :leaving]
        return self.add(x, attended)


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
