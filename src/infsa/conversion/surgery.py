"""Fold the query and key projections of a head into one, the tied form of the paper.

Linear-InfSA scores token j by q̄·k_j = x̄ᵀ W_Qᵀ W_K x_j. A tied head can only score by WᵀW, symmetric and positive
semidefinite. The nearest such form of rank d to W_Qᵀ W_K, in Frobenius norm, keeps the d largest positive eigenvalues
of its symmetric part. That part lives in the span of the rows of W_Q and W_K, so a matrix of size 2d is enough.
Biases ride along as one more column.
"""

from typing import Any

import torch
from torch import Tensor, nn


def fold(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The tied projection nearest to a pair, head by head: (H, d, D) twice -> (H, d, D), and what was lost (H,).

    The second result is ‖WᵀW − W_Qᵀ W_K‖ / ‖W_Qᵀ W_K‖ in Frobenius norm: 0 where the head was tied, at most 1.
    """
    width = query.shape[1]
    q, k = query.detach().double(), key.detach().double()
    basis, corner = torch.linalg.qr(torch.cat([q, k], 1).mT)  # (H, D, r), (H, r, 2d)
    left, right = corner.split(width, -1)
    form = left @ right.mT  # W_Qᵀ W_K in the basis: (H, r, r)
    values, vectors = torch.linalg.eigh((form + form.mT) / 2)
    values, vectors = values[:, -width:].clamp_min(0), vectors[:, :, -width:]
    tied = values.sqrt().unsqueeze(-1) * (basis @ vectors).mT  # (H, <= d, D)
    tied = torch.nn.functional.pad(tied, (0, 0, width - tied.shape[1], 0))
    near = (vectors * values.unsqueeze(1)) @ vectors.mT
    norm = torch.linalg.matrix_norm(form)
    lost = torch.linalg.matrix_norm(near - form) / torch.where(norm > 0, norm, 1)
    return tied.to(query.dtype), lost


def split_rows(matrix: Tensor, offset: Tensor | None, heads: int) -> tuple[Tensor, Tensor]:
    """Query and key projections of a fused (3 A, D) weight, biases as one more column: (H, d, D + 1) each."""
    columns: list[Tensor] = [matrix] if offset is None else [matrix, offset.unsqueeze(-1)]
    query, key, _ = torch.cat(columns, -1).unflatten(0, (3, heads, -1)).unbind()
    return query, key


def folding_note(matrix: Tensor, offset: Tensor | None, heads: int) -> str:
    """What surgery changes, for a plan; without numbers on the meta device."""
    note = "the query and key projections: folded into one"
    if matrix.device.type == "meta":
        return note
    lost = fold(*split_rows(matrix, offset, heads))[1]
    return f"{note}, which changes the scores' form by {lost.mean():.0%} (Frobenius norm, mean over heads)"


def fold_rows(layer: nn.Module, fused: tuple[str, ...], heads: int) -> None:
    """Write the folded projection into the query and key rows of a layer's fused (3 A, D) weight.

    ``fused`` names the weight and its bias. The rows replaced are kept beside them, in buffers outside the state dict,
    for :func:`unfold_rows`.
    """
    holder, matrix, offset = _parts(layer, fused)
    rows = 2 * matrix.shape[0] // 3
    for name, tensor in (("infsa_rows", matrix), ("infsa_offsets", offset)):
        holder.register_buffer(name, None if tensor is None else tensor.detach()[:rows].clone(), persistent=False)
    if matrix.device.type == "meta":
        return
    tied = fold(*split_rows(matrix, offset, heads))[0].flatten(0, 1).repeat(2, 1)
    with torch.no_grad():
        matrix[:rows] = tied[:, : matrix.shape[1]]
        if offset is not None:
            offset[:rows] = tied[:, -1]


def _parts(layer: nn.Module, fused: tuple[str, ...]) -> tuple[Any, Tensor, Tensor | None]:
    """The module that holds a fused projection, its weight and its bias."""
    (path, _, weight), (_, _, bias) = (name.rpartition(".") for name in fused)
    holder = layer.get_submodule(path)
    return holder, getattr(holder, weight), getattr(holder, bias)


def forget_rows(model: nn.Module) -> None:
    """Drop the rows kept by :func:`fold_rows`: they do not belong to weights loaded afterwards."""
    for module in model.modules():
        if "infsa_rows" in module._buffers:
            module.infsa_rows = module.infsa_offsets = None  # type: ignore[assignment]


def can_unfold(model: nn.Module) -> bool:
    """Whether the rows that surgery replaced are still known."""
    kept = (module._buffers["infsa_rows"] for module in model.modules() if "infsa_rows" in module._buffers)
    return all(rows is not None for rows in kept)


def unfold_rows(layer: nn.Module, fused: tuple[str, ...]) -> None:
    """Put the query and key rows back that :func:`fold_rows` replaced."""
    holder, matrix, offset = _parts(layer, fused)
    rows = len(holder.infsa_rows)
    with torch.no_grad():
        matrix[:rows] = holder.infsa_rows
        if offset is not None:
            offset[:rows] = holder.infsa_offsets
    del holder.infsa_rows, holder.infsa_offsets
