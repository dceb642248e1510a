"""Pure InfSA backward: the launches of ``triton_backward_kernels`` for one kind of call."""

import functools
from dataclasses import replace

import torch
import triton
from torch import Tensor

from ..triton.configs import Config, default_config
from ..triton.launch import Launch
from ..triton.layout import describable, on_device, readable
from .triton_backward_kernels import pure_gather, pure_later_rows, pure_row_dots
from .triton_forward import PLANS, Forward, Inputs, Strides, place_and_number

ROWS_PER_DOT = 64
Gradients = tuple[Tensor, Tensor, Tensor]


def row_factors(
    dots: Tensor, grad: Tensor, v: Tensor, gamma: float | Tensor, norm: Tensor, plan: Forward, seen: Tensor | None
) -> tuple[Tensor, Tensor]:
    """For float16 the factors of R' in dS, of ∂L/∂Z · v, of R' in dV, (3, B, H, Nq), of dQ, dK and of dV, (2, B, H).

    They place dS and the weights of dV high in the type's range, by bounds that hold for every pair of tokens.
    """
    dead = norm == 0
    wide_norm = norm.double()
    inverse = torch.where(dead, 0, 1 / (wide_norm + plan.eps))
    shared = dots * inverse * torch.where(dead, 0, 1 / wide_norm)  # c_i / (s_i F_i)
    if seen is not None:
        weight = shared * seen.unsqueeze(1)
        norm = norm * seen.unsqueeze(1).clamp_min(1).rsqrt().float()  # ‖R_i‖, which no edge exceeds
    else:
        weight = shared.flip(-1).cumsum(-1).flip(-1) if plan.is_causal else shared.sum(-1, keepdim=True)
    weight = weight.float().expand_as(dots)
    decay = gamma.view(-1, 1) if isinstance(gamma, Tensor) else gamma
    scale = (decay * inverse).float().expand_as(dots)  # a_i
    size = torch.linalg.vector_norm(grad, dim=-1, dtype=torch.float32)
    longest = torch.linalg.vector_norm(v, dim=-1, dtype=torch.float32).amax(-1)
    bound = torch.maximum((scale * size).amax(-1) * longest, (weight * norm).abs().amax(-1))
    of_scores = torch.exp2(torch.ceil(torch.log2(bound.clamp_min(1e-30))) - 14)
    of_values = 2.0**-14
    rows = [weight * plan.unit / of_scores[..., None], scale / of_scores[..., None], scale * plan.unit / of_values]
    return torch.stack(rows), torch.stack([of_scores * plan.unit, torch.full_like(of_scores, of_values)])


class Backward:
    """The launches of a plan's way back, for one layout of ∂L/∂Z and of the gradients."""

    def __init__(
        self,
        plan: Forward,
        aligned: bool,
        grad: Strides,
        z: Strides,
        dq: Strides,
        dk: Strides,
        dv: Strides,
        keys_config: Config | None,
        queries_config: Config | None,
    ) -> None:
        items, n_q, n_k = plan.items, plan.n_q, plan.n_k
        shared = not plan.is_causal and plan.seen is None
        self.factors = 3 if plan.dtype == torch.float16 else 0 if shared else 1
        prefix = self.factors == 1 and plan.seen is None
        blocks = triton.cdiv(n_q, ROWS_PER_DOT)
        self.partial = (2 if prefix else 1, *plan.norms[:2], blocks)
        steps, seen = plan.gamma or 0, plan.seen or (0, 0)
        numbers = (*grad[:3], *z[:3], *seen, steps, plan.heads, items, n_q, plan.unit, plan.eps)
        ways = {"BLOCK_Q": ROWS_PER_DOT, "BY_ROW": plan.seen is not None, "FACTORS": self.factors, "num_warps": 4}
        grid = (items * blocks,)
        self.dots = Launch(pure_row_dots, grid, numbers, plan.sizes | ways | plan.decay, plan.device)
        self.later = None
        if prefix:
            self.later = Launch(pure_later_rows, grid, (items, n_q), {"BLOCK_Q": ROWS_PER_DOT}, plan.device)

        q, k, v = plan.strides
        if self.factors == 1:  # the scaled ∂L/∂Z, contiguous
            aligned, width = True, plan.value_width
            grad = (plan.heads * n_q * width, n_q * width, width, 1)
        fixed = plan.widths | plan.decay | {"CAUSAL": plan.is_causal, "FACTORS": self.factors}

        def gather(keys: bool, config: Config, own: int, others: int, strides: tuple[Strides, ...]) -> Launch:
            tma = config.tma and aligned and plan.aligned and describable(plan.dtype, *strides[2:4])
            n_own, n_other = (n_k, n_q) if keys else (n_q, n_k)
            tiles = {"OWN": own, "OTHERS": others, "EVEN": n_other % others == 0, "KEYS": keys, "TMA": tma}
            numbers = (
                *(s for x in strides for s in x[:3]),
                steps,
                items,
                plan.heads,
                plan.group,
                n_own,
                n_other,
                blocks,
            )
            ways = {"SPECIALIZE": config.specialize, "NARROW": min(config.narrow, others // 16)}
            constants = fixed | tiles | ways | config.launch
            grid = (items * triton.cdiv(n_own, own),)
            return Launch(pure_gather, grid, (*numbers, plan.unit, plan.eps), constants, plan.device, tma)

        def chosen(kernel: str) -> Config:
            config = default_config(kernel, plan.widest, plan.dtype, plan.device.index, plan.is_causal)
            return replace(config, registers=None) if self.factors == 3 else config  # float16 needs more of them

        config = keys_config or chosen("keys")
        self.keys = gather(True, config, config.block_k, config.block_q, (k, v, q, grad, dk, dv))
        config = queries_config or chosen("queries")
        self.queries = gather(False, config, config.block_q, config.block_k, (q, grad, k, v, dq, dq))


_backward_plan = functools.lru_cache(PLANS)(Backward)


def pass_back(
    plan: Forward,
    grad: Tensor,
    inputs: Inputs,
    result: tuple[Tensor, Tensor],
    gradients: Gradients,
    wanted: tuple[bool, bool] = (True, True),
    configs: tuple[Config | None, Config | None] = (None, None),
) -> Tensor:
    """Write dQ, and dK with dV, into ``gradients`` as ``wanted``, for what ``plan`` made of the inputs.

    The first of what returns are sums of c (B, H, blocks), which over blocks and batch are γ ∂L/∂γ.
    """
    (q, k, v, gamma, seen), (z, norm), (dq, dk, dv) = inputs, result, gradients
    grad = readable(grad)
    strides = (x.stride() for x in (grad, z, *gradients))
    launches = _backward_plan(plan, grad.data_ptr() & 15 == 0, *strides, *configs)
    partial = torch.empty(launches.partial, dtype=torch.float64, device=plan.device)
    if plan.items == 0:
        return partial
    scaled, rows, out = grad, norm, norm
    if launches.factors:
        rows = torch.empty((*plan.norms[:2], plan.n_q), dtype=torch.float32, device=plan.device)
    if launches.factors == 1:
        scaled = torch.empty(z.shape, dtype=plan.dtype, device=plan.device)
    decay, number = place_and_number(gamma, norm)
    with on_device(q):
        launches.dots(grad, z, norm, norm if seen is None else seen, decay, scaled, rows, partial, numbers=number)
        if launches.later is not None:
            launches.later(rows, partial)
        if launches.factors == 3:
            rows, out = row_factors(rows, grad, v, gamma, norm, plan, seen)
        shared = (norm, partial, decay, rows, out)
        if wanted[1]:
            launches.keys(k, v, q, scaled, dk, dv, *shared, numbers=number)
        if wanted[0]:
            launches.queries(q, scaled, k, v, dq, dq, *shared, numbers=number)
    return partial
