"""Performer: softmax's kernel approximated by positive orthogonal random features (FAVOR+)."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from ...ops.checks import check_count, check_eps
from ...ops.dtypes import cast_output
from ..infsa import merge_heads
from .base import Scaffold
from .core import QKVAttention, exact, factory, upcast
from .layout import Layout


class Performer(QKVAttention):
    """y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j), φ(x) = m^{-1/2} [exp(Wx' − ‖x'‖²/2 − c) + ε].

    x' = x·d^{-1/4}; c is the maximum of Wx' over the features of a query, or over all real keys of a head, and
    carries no gradient. The rows of W (a buffer, shared by the heads) are orthogonal in blocks of d, with the
    norms of Gaussian vectors. It estimates softmax well for small scores only.

    Args:
        dim, num_heads, **scaffold: see :class:`Attention`; ``grid`` changes nothing.
        features: m; None means ⌊d ln d⌋, at least 1.
        eps: ε.
        seed: W is a function of the seed: give every layer its own.
        redraw_every: draw a new W after this many passes in training, 0 for never. Not for compiled models. Draws
            are a function of the seed and their number since construction.

    Example:
        >>> Performer(192, 3, grid=(14, 14), seed=7)(torch.randn(2, 197, 192), (14, 14)).shape
        torch.Size([2, 197, 192])
    """

    name = "performer"
    directions: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        features: int | None = None,
        eps: float = 1e-4,
        seed: int = 0,
        redraw_every: int = 0,
        **scaffold: Unpack[Scaffold],
    ) -> None:
        super().__init__(dim, num_heads, **scaffold)
        if features is None:
            features = max(1, int(self.head_dim * math.log(self.head_dim)))
        check_count(features, "features")
        check_eps(eps)
        check_count(seed, "seed", at_least=0)
        check_count(redraw_every, "redraw_every", at_least=0)
        self.features, self.eps, self.seed, self.redraw_every = features, eps, seed, redraw_every
        self.register_buffer("directions", torch.empty(features, self.head_dim, **factory(scaffold)))
        self.reset_own()

    def redraw(self) -> None:
        """Replace W by the next draw."""
        self.draws += 1
        self.calls = 0
        if self.directions.is_meta:
            return  # there is no memory to draw into
        generator = torch.Generator("cpu").manual_seed(self.seed)
        seeds = torch.randint(2**32, (self.draws + 1,), generator=generator, device="cpu")
        generator.manual_seed(int(seeds[-1]))
        drawn = orthogonal_directions(self.features, self.head_dim, generator)
        self.directions = drawn.to(self.directions)  # a new tensor: graphs of earlier passes keep the old one

    def advance(self) -> None:
        """Count a forward pass, and redraw W when ``redraw_every`` of them have passed.

        Every forward pass in training mode does so, but for those that a backward pass makes: gradient checkpointing
        must see the same W again.
        """
        if self.redraw_every:
            if self.calls >= self.redraw_every:
                self.redraw()
            self.calls += 1

    def reset_own(self) -> None:
        """Draw the parameters and buffers that belong to no submodule."""
        self.draws = -1
        self.redraw()

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        if self.redraw_every and self.training and torch._C._current_graph_task_id() == -1:  # not in a backward pass
            self.advance()
        q, k, v = self._project(x)
        with exact(q):
            phi_q, phi_k = self._kernel(q, k, layout)
            value = layout.zero_masked(v).to(phi_k.dtype)
            y = phi_q @ (phi_k.mT @ value) / _mass(phi_q, phi_k)
        return cast_output(merge_heads(y), q.dtype)

    def _weights(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, _ = self._project(x)
        with exact(q):
            phi_q, phi_k = self._kernel(q, k, layout)
            return phi_q @ phi_k.mT / _mass(phi_q, phi_k)

    def _kernel(self, q: Tensor, k: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """φ(q) and φ(k), the latter zero at masked keys: (B, H, N, m)."""
        q, k, directions = upcast(q, k, self.directions)
        q, k = q * self.head_dim**-0.25, k * self.head_dim**-0.25
        along_q, along_k = q @ directions.mT, k @ directions.mT
        peak_q = along_q.detach().amax(-1, keepdim=True)
        real = along_k.detach()
        if layout.key_mask is not None:
            real = real.masked_fill(~layout.key_mask[:, None, :, None], -math.inf)
        peak_k = real.amax((-2, -1), keepdim=True).nan_to_num(neginf=0)  # −inf: no real key
        return self._phi(q, along_q, peak_q), layout.zero_masked(self._phi(k, along_k, peak_k))

    def _phi(self, x: Tensor, along: Tensor, peak: Tensor) -> Tensor:
        exponent = along - x.square().sum(-1, keepdim=True) / 2 - peak
        return (exponent.exp() + self.eps) * self.features**-0.5


def _mass(phi_q: Tensor, phi_k: Tensor) -> Tensor:
    """φ(q_i)ᵀ Σ_j φ(k_j), kept off zero for images without a real token: (B, H, N, 1)."""
    mass = phi_q @ phi_k.sum(-2).unsqueeze(-1)
    return mass.clamp_min(torch.finfo(mass.dtype).tiny)


def orthogonal_directions(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Random directions, orthogonal in blocks of ``width``, with the norms of Gaussian vectors, on the CPU."""
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": "cpu"}
    blocks = []
    for _ in range(0, count, width):
        q, r = torch.linalg.qr(torch.randn(width, width, **options))
        blocks.append((q * r.diagonal().sign()).mT)  # the factorisation fixes signs: undone, q is uniform
    norms = torch.randn(count, width, **options).norm(dim=-1, keepdim=True)
    return torch.cat(blocks)[:count] * norms
