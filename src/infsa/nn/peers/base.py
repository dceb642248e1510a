"""The scaffold of the compared mechanisms: one constructor, one forward, one kind of map."""

from typing import Any, ClassVar, Required, TypedDict

import torch
from torch import Tensor, nn

from ...ops.checks import check_count, check_token_mask
from ...ops.dtypes import cast_output
from ..infsa import check_divisible, check_tokens, project_out
from .layout import Grid, Layout


class Projections(TypedDict, total=False):
    """How the projections of a mechanism are built."""

    bias: bool
    extra_proj: bool
    device: torch.device | str | None
    dtype: torch.dtype | None


class Scaffold(Projections, total=False):
    """The constructor arguments of every mechanism beside ``dim`` and ``num_heads``."""

    grid: Required[Grid]
    num_prefix: int


class Attention(nn.Module):
    """One attention mechanism, (B, N, D) -> (B, N, D), exchangeable with the others.

    The N tokens are ``num_prefix`` prefix tokens (none, a class token, registers) and then the h·w patches of
    a grid, row by row. Prefix tokens are queries, keys and values like all others. What knows about positions
    (convolutions, pooling, position tables) sees patches only. Everything runs at any grid: learned position
    tables are sized for the grid given at construction and resized to the grid of the call.

    Sums over tokens, norms, exponentials and distances are kept in float32 (float64 for float64), under
    autocast too.

    Args:
        dim: width D of the tokens.
        num_heads: H; must divide ``dim``.
        grid: (h, w), the size of learned position tables.
        num_prefix: prefix tokens that learned position tables have rows for.
        bias: whether the projections have biases.
        extra_proj: one more D×D projection, ``extra``, between the joined heads and the output projection: the
            paper's parameter count.
        device: as in torch.
        dtype: as in torch.
    """

    name: ClassVar[str]
    has_map: ClassVar[bool] = True
    no_map: ClassVar[str] = ""  # why there is no map, where there is none
    no_mask: ClassVar[str] = ""  # why a key mask cannot be honoured
    prefix_table: bool = False  # prefix tokens have learned terms, so their number is fixed

    extra: nn.Linear | None
    proj: nn.Linear

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.has_map = not cls.no_map

    def _describe(self, dim: int, num_heads: int, grid: Grid, num_prefix: int) -> None:
        """Check and keep what every mechanism is built for."""
        check_divisible(dim, num_heads)
        _check_layout(grid, num_prefix)
        self.dim, self.num_heads, self.head_dim = dim, num_heads, dim // num_heads
        self.grid: Grid = (grid[0], grid[1])
        self.num_prefix = num_prefix

    def forward(
        self, x: Tensor, grid: Grid, num_prefix: int = 1, key_mask: Tensor | None = None, power: int | None = None
    ) -> Any:
        """Attend: x (B, N, D) -> (B, N, D), N = num_prefix + h·w.

        ``key_mask`` (B, N) is True for real tokens. The others have no influence on real tokens, whatever they
        contain; their own rows of the result mean nothing. A mechanism that pools to one row returns an
        expanded view of it.

        With ``power`` p, for mechanisms with a decay, the result is a pair: the above, and the same with γ_h^p instead
        of γ_h at every head, each of which brings its equal share of the output bias.
        """
        layout = self._layout(x, grid, num_prefix, key_mask)
        if power is not None:
            return self._with_power(self._mix(layout.zero_masked(x), layout), power, x.shape[1])
        return self._output(layout.zero_masked(x), layout).expand(-1, x.shape[1], -1)

    def _with_power(self, heads: Tensor, power: int, count: int) -> tuple[Tensor, Tensor]:
        """The results of joined heads (B, N or 1, D) with γ and with γ^p: (B, count, D) each."""
        gamma = self.get_submodule("decay")()
        attended = project_out(heads, self.extra, self.proj)  # first: maps read the heads of this call
        channels = torch.as_tensor(gamma ** (power - 1), device=heads.device).expand(self.num_heads)
        scaled = (heads * channels.repeat_interleave(self.head_dim)).to(heads.dtype)
        share = torch.as_tensor(gamma**power, device=heads.device).mean()
        raised = project_out(scaled, self.extra, self.proj) + (share - 1).to(heads.dtype) * self.offset()
        return attended.expand(-1, count, -1), raised.expand(-1, count, -1)

    def weights(self, x: Tensor, grid: Grid, num_prefix: int = 1, key_mask: Tensor | None = None) -> Tensor:
        """How much each token takes from each: (B, H, N, N), or (B, H, 1, N) where all take the same.

        Non-negative (but for InfSA with GELU, whose maps are clamped), in the type of x, without γ. Refused where the
        mechanism has no such weights.
        """
        self._require_map()
        layout = self._layout(x, grid, num_prefix, key_mask)
        return cast_output(self._weights(layout.zero_masked(x), layout), x.dtype)

    def values(self, x: Tensor) -> Tensor:
        """What ``weights`` weigh, γ included: (B, N, D) -> (B, H, N, d).

        ``weights @ values`` are the heads before the output projections, up to the convolutions of the mechanisms
        that have one (and for one hop, in Pure InfSA).
        """
        self._require_map()
        return self._values(x)

    def _require_map(self) -> None:
        if not self.has_map:
            raise ValueError(f"{self.name} has no attention map: {self.no_map}")

    def offset(self) -> Tensor:
        """What a token receives from heads that give nothing, the biases of the output projections: (D,)."""
        return project_out(self.proj.weight.new_zeros(self.dim), self.extra, self.proj)

    def reset_parameters(self) -> None:
        """Draw every parameter and buffer again, for instance after ``to_empty`` on a meta module."""
        reset_submodules(self)
        self.reset_own()

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"dim={self.dim}, num_heads={self.num_heads}, grid={self.grid}, num_prefix={self.num_prefix}"

    def reset_own(self) -> None:
        """Draw the parameters and buffers that belong to no submodule."""

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        """The joined heads before the output projection: (B, N, D) or (B, 1, D)."""
        raise NotImplementedError

    def _output(self, x: Tensor, layout: Layout) -> Tensor:
        """The result for x with masked rows zeroed: (B, N, D), or (B, 1, D) where all rows are equal."""
        raise NotImplementedError

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        """The map for x with masked rows zeroed, in any type."""
        raise NotImplementedError

    def _values(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _layout(self, x: Tensor, grid: Grid, num_prefix: int, key_mask: Tensor | None) -> Layout:
        """Check the arguments of a call."""
        _check_layout(grid, num_prefix)
        check_tokens(x, self.dim)
        if x.shape[1] != num_prefix + grid[0] * grid[1]:
            raise ValueError(
                f"x must have num_prefix + h·w tokens, got N={x.shape[1]} "
                f"with grid={tuple(grid)} and num_prefix={num_prefix}"
            )
        if self.prefix_table and num_prefix != self.num_prefix:
            raise ValueError(
                f"{self.name} was built with learned terms for num_prefix={self.num_prefix}, got {num_prefix}"
            )
        check_token_mask(key_mask, "key_mask", x.shape[0], x.shape[1], x.device)
        if key_mask is not None and self.no_mask:
            raise ValueError(f"{self.name} does not support key_mask: {self.no_mask}")
        return Layout((grid[0], grid[1]), num_prefix, key_mask)


def reset_submodules(module: nn.Module) -> None:
    """Call ``reset_parameters`` of every submodule that has it."""
    for child in module.modules():
        reset = getattr(child, "reset_parameters", None)
        if child is not module and callable(reset):
            reset()


def _check_layout(grid: Grid, num_prefix: int) -> None:
    if not isinstance(grid, tuple | list | torch.Size) or len(grid) != 2:
        raise ValueError(f"grid must be (h, w), got {grid!r}")
    check_count(grid[0], "h of grid")
    check_count(grid[1], "w of grid")
    check_count(num_prefix, "num_prefix", at_least=0)
