"""Token masks: one rule for the defaults, one trick that makes them free."""

import torch
from torch import Tensor

from .checks import check_token_mask

NO_EDGE = -100.0  # an additive entry this low is a mask, whatever its writer took for −∞: softmax gives it e^-100


def resolve_token_masks(
    q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Check both masks; without its own mask, a query of self-attention shares its key's."""
    check_token_mask(key_mask, "key_mask", k.shape[0], k.shape[2], k.device)
    check_token_mask(query_mask, "query_mask", q.shape[0], q.shape[2], q.device)
    if query_mask is None and key_mask is not None and q.shape[2] == k.shape[2]:
        query_mask = key_mask
    return key_mask, query_mask


def zero_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zero the rows of masked tokens in x (B, H, N, d).

    Since φ(0) = 0, a zeroed query is a zero row of R, a zeroed key a zero column, and its energy is zero.
    Whatever stood there before, NaN included, is gone; so is its gradient.
    """
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0)


def allowed_entries(attn_mask: Tensor) -> Tensor:
    """Where an attention mask lets an edge exist: True, or an additive entry above ``NO_EDGE``; NaN too, to be seen."""
    return attn_mask if attn_mask.dtype == torch.bool else ~(attn_mask <= NO_EDGE)


def visible_keys(key_mask: Tensor | None, queries: int, keys: int, is_causal: bool, device: torch.device) -> Tensor:
    """How many keys each query may see under a token mask: float64, (B or 1, Nq or 1)."""
    if key_mask is not None:
        counts = key_mask.cumsum(-1) if is_causal else key_mask.sum(-1, keepdim=True)
        return counts.double()
    if is_causal:
        return torch.arange(1, queries + 1, dtype=torch.float64, device=device).unsqueeze(0)
    return torch.full((1, 1), keys, dtype=torch.float64, device=device)


def forbids_future(attn_mask: Tensor, tokens: int) -> Tensor:
    """Whether a mask (b, h, N or 1, N or 1) allows no column after its row: (b, h, 1), with no value read back."""
    allowed = allowed_entries(attn_mask).expand(-1, -1, -1, tokens)
    return ~allowed.triu(1).flatten(-2).any(-1, keepdim=True)


def future_entries(rows: range, columns: range, device: torch.device) -> Tensor:
    """True where the column lies after the row, for a tile of the N×N matrix: (rows, columns)."""
    row = torch.arange(rows.start, rows.stop, device=device)
    column = torch.arange(columns.start, columns.stop, device=device)
    return column > row[:, None]
