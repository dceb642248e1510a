"""Linear-InfSA's two passes over the tokens: the launches of ``linear_kernels``, forward and backward."""

import torch
import triton
from torch import Tensor

from ..triton.configs import LinearConfig, linear_config, padded_width
from ..triton.layout import mask_bytes, on_device, readable
from ..triton.parts import NUMBERS
from .triton_kernels import energy_backward_kernel, energy_kernel, score_kernel, token_sum_kernel


def power_of_two_above(bound: Tensor) -> Tensor:
    """The power of two at or above a positive bound, elementwise."""
    return torch.exp2(torch.ceil(torch.log2(bound.clamp_min(1e-30))))


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32: a sum over all tokens may leave the range of float16."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _energy_sizes(
    x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, config: LinearConfig
) -> dict[str, int | bool]:
    width = weight.shape[0] // config.heads
    padded = padded_width(width)
    return {
        "DIM": x.shape[2],
        "WIDTH": width,
        "PADDED": padded,
        "BLOCK_N": config.block_n,
        "BLOCK_H": max(1, config.columns // padded),
        "BLOCK_D": config.block_d,
        "BIASED": bias is not None,
        "MASKED": mask is not None,
    } | config.launch


def energy_sums(
    x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, heads: int
) -> tuple[Tensor, Tensor]:
    """Σ e (B, H) and Σ e q (B, H, d), float32, for q = x Wᵀ + b: x (B, N, D), weight (H · d, D)."""
    x, weight = readable(x), weight.contiguous()
    config = linear_config("energy", heads, x.dtype, x.device.index)
    sizes = _energy_sizes(x, weight, bias, mask, config)
    batch, n, _ = x.shape
    blocks = triton.cdiv(n, config.block_n)
    total = x.new_empty(batch, blocks, heads, dtype=torch.float32)
    vectors = x.new_empty(batch, blocks, heads, sizes["WIDTH"], dtype=torch.float32)
    if batch:
        with on_device(x):
            energy_kernel[(batch * blocks * triton.cdiv(heads, sizes["BLOCK_H"]),)](
                x,
                weight,
                weight if bias is None else bias.contiguous(),
                mask_bytes(mask, weight),
                total,
                vectors,
                *x.stride()[:2],
                heads,
                n,
                **sizes,
            )
    return total.sum(1), vectors.sum(1)


def energy_gradients(
    grad_total: Tensor,
    grad_vectors: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dW and db (empty without a bias)."""
    x, weight = readable(x), weight.contiguous()
    config = linear_config("energy", heads, x.dtype, x.device.index)
    sizes = _energy_sizes(x, weight, bias, mask, config)
    batch, n, _ = x.shape
    unit = power_of_two_above(torch.maximum(grad_total.abs().amax(), grad_vectors.abs().amax())) if batch else 1.0
    dq = x.new_empty(batch, n, weight.shape[0])  # divided by unit: a half-precision dq would often underflow
    if batch:
        with on_device(x):
            energy_backward_kernel[(batch * triton.cdiv(n, config.block_n) * triton.cdiv(heads, sizes["BLOCK_H"]),)](
                x,
                weight,
                weight if bias is None else bias.contiguous(),
                mask_bytes(mask, weight),
                (grad_total / unit).contiguous(),
                (grad_vectors / unit).contiguous(),
                dq,
                *x.stride()[:2],
                heads,
                n,
                **sizes,
            )
    flat = dq.flatten(0, 1)
    dx = (dq @ weight).mul_(unit)
    dweight = (_wide_product(flat.mT, x.reshape(-1, x.shape[2])) * unit).to(weight.dtype)
    dbias = weight.new_empty(0) if bias is None else (flat.sum(0, dtype=torch.float32) * unit).to(bias.dtype)
    return dx, dweight, dbias


def _scores(
    x: Tensor,
    u: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    activation: str,
    grads: tuple[Tensor, Tensor, Tensor] | None,
    mean: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """S / unit, ∂L/∂raw / (unit of the gradients), two sums per head, and both units (B, H)."""
    batch, n, dim = x.shape
    heads = u.shape[1]
    config = linear_config("scores", heads, x.dtype, x.device.index)
    block_h = min(config.columns, padded_width(heads))
    unit = power_of_two_above(torch.maximum(u.abs().amax(-1) * dim, offset.abs())).contiguous()
    blocks = triton.cdiv(n, config.block_n)
    scores = x.new_empty(batch, n, heads)
    first, second = x.new_empty(2, batch, blocks, heads, dtype=torch.float32)
    small = (u / unit.unsqueeze(-1)).to(x.dtype).contiguous()
    pulls, pull, grad_unit, on_absolute, on_signed = scores, small, None, unit, unit
    if grads is not None:
        on_absolute, on_signed, on_vectors = grads
        sizes = torch.stack([on_vectors.abs().amax(-1) * dim, on_absolute.abs(), on_signed.abs()])
        grad_unit = power_of_two_above(sizes.amax(0))
        pulls = torch.empty_like(scores)
        pull = (on_vectors / grad_unit.unsqueeze(-1)).to(x.dtype).contiguous()
        on_absolute, on_signed = on_absolute / grad_unit, on_signed / grad_unit
        if mean is not None:  # what rounding took from x · g, at the mean token: those terms nearly cancel
            on_signed = on_signed + ((on_vectors / grad_unit.unsqueeze(-1) - pull.float()) * mean).sum(-1)
    with on_device(x):
        score_kernel[(batch * blocks * triton.cdiv(heads, block_h),)](
            x,
            small,
            pull,
            (offset / unit).contiguous(),
            unit,
            on_absolute.contiguous(),
            on_signed.contiguous(),
            mask_bytes(mask, unit),
            scores,
            pulls,
            first,
            second,
            *x.stride()[:2],
            heads,
            n,
            DIM=dim,
            BLOCK_N=config.block_n,
            BLOCK_H=block_h,
            BLOCK_D=config.block_d,
            MASKED=mask is not None,
            ACTIVATION=NUMBERS[activation],
            BACKWARD=grads is not None,
            **config.launch,
        )
    return scores, pulls, first.sum(1), second.sum(1), unit, grad_unit


def _weighted_tokens(weights: Tensor, x: Tensor) -> Tensor:
    """Σ_j weights_jh x_j: (B, N, H), (B, N, D) -> (B, H, D), float32, spans of tokens added in order."""
    batch, n, dim = x.shape
    heads = weights.shape[2]
    config = linear_config("pool", heads, x.dtype, x.device.index)
    block_h = min(config.columns, padded_width(heads))
    tiles = batch * triton.cdiv(dim, config.block_d) * triton.cdiv(heads, block_h)
    splits = max(1, min(triton.cdiv(n, config.block_n), config.programs // tiles))
    span = triton.cdiv(triton.cdiv(n, splits), config.block_n) * config.block_n
    splits = triton.cdiv(n, span)
    sums = x.new_empty(batch, splits, heads, dim, dtype=torch.float32)
    with on_device(x):
        token_sum_kernel[(tiles * splits,)](
            weights,
            x,
            sums,
            *x.stride()[:2],
            heads,
            n,
            splits,
            span,
            DIM=dim,
            BLOCK_N=config.block_n,
            BLOCK_H=block_h,
            BLOCK_D=config.block_d,
            **config.launch,
        )
    return sums.sum(1)


def score_sums(
    x: Tensor, u: Tensor, offset: Tensor, mask: Tensor | None, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ|S|, ΣS (B, H) and ΣSx (B, H, D) in float32, S_jh = φ(u_h · x_j + o_h): x (B, N, D), u (B, H, D), o (B, H)."""
    x = readable(x)
    if x.shape[0] == 0:
        return offset.clone(), offset.clone(), u.clone()
    scores, _, absolute, signed, unit, _ = _scores(x, u, offset, mask, activation, None, None)
    return unit * absolute, unit * signed, unit.unsqueeze(-1) * _weighted_tokens(scores, x)


def score_gradients(
    grad_absolute: Tensor,
    grad_signed: Tensor,
    grad_vectors: Tensor,
    x: Tensor,
    u: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    absolute: Tensor,
    vectors: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx in the type of x, du and do in float32; ``absolute`` and ``vectors`` are what ``score_sums`` returned."""
    x = readable(x)
    if x.shape[0] == 0:
        return torch.empty_like(x), u.clone(), offset.clone()
    grads = grad_absolute, grad_signed, grad_vectors
    mean = vectors / torch.where(absolute > 0, absolute, 1).unsqueeze(-1)
    scores, pulls, doffset, _, unit, grad_unit = _scores(x, u, offset, mask, activation, grads, mean)
    assert grad_unit is not None
    du = grad_unit.unsqueeze(-1) * _weighted_tokens(pulls, x)
    both = torch.cat([pulls, scores], -1)  # (B, N, 2H)
    rows = torch.cat([grad_unit.unsqueeze(-1) * u, unit.unsqueeze(-1) * grad_vectors], 1)  # (B, 2H, D)
    dtype = torch.float32 if x.dtype == torch.float16 else x.dtype  # the rows may leave the range of float16
    return (both.to(dtype) @ rows.to(dtype)).to(x.dtype), du, grad_unit * doffset
