"""The decay γ as a module: a constant, or one learned value per head."""

import math

import torch
from torch import Tensor, nn

from ..ops.checks import check_gamma


class Decay(nn.Module):
    """γ, fixed or learned as a logit per head through a sigmoid, so that it stays in (0, 1).

    Calling it returns a float (fixed) or a tensor (H,) (learned), ready for the ``gamma`` argument.

    Example:
        >>> Decay(num_heads=16, gamma=0.7)()
        0.7
    """

    def __init__(
        self,
        num_heads: int,
        gamma: float = 0.7,
        learn: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_gamma(gamma)
        self.gamma = gamma
        self.num_heads = num_heads
        self.logit: nn.Parameter | None
        if learn:
            self.logit = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
            self.reset_parameters()
        else:
            self.register_parameter("logit", None)

    def reset_parameters(self) -> None:
        """Set every learned γ back to its starting value."""
        if self.logit is not None:
            nn.init.constant_(self.logit, math.log(self.gamma / (1 - self.gamma)))

    def forward(self) -> float | Tensor:
        """γ."""
        if self.logit is None:
            return self.gamma
        return self.logit.to(torch.promote_types(self.logit.dtype, torch.float32)).sigmoid()

    def extra_repr(self) -> str:
        """What ``print(module)`` shows."""
        return f"gamma={self.gamma}, learned={self.logit is not None}"
