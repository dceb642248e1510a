"""The formula, run inside the original layer: its own code computes q, k, v or the scores, only the last step is ours.

A converted layer must give what the original gives when its softmax line is replaced by the equation. The equations are
those of ``tests.ops.plain``, which share no code with the library.
"""

from contextlib import ExitStack
from unittest.mock import patch

import torch

from tests.ops import plain


class Formula:
    """Replace torch's attention by Pure or Linear InfSA while original code runs; ``calls`` counts."""

    def __init__(self, variant="pure", gamma=0.7, activation="relu", chunk_size=None, norm="frobenius"):
        self.variant, self.gamma, self.activation, self.chunk_size = variant, gamma, activation, chunk_size
        self.norm = norm
        self.calls = 0

    def __enter__(self):
        self.patches = ExitStack()
        self.patches.enter_context(
            patch.object(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: self.attend(*a, **k))
        )
        self.patches.enter_context(
            patch.object(torch.Tensor, "softmax", lambda scores, *a, **k: self.normalise(scores))
        )
        return self

    def __exit__(self, *error):
        self.patches.close()

    def attend(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **rest):
        assert not dropout_p
        self.calls += 1
        if attn_mask is not None and not is_causal and attn_mask.shape[-1] == attn_mask.shape[-2]:
            allowed = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf
            is_causal = not bool(allowed.triu(1).any())
        if self.variant == "pure":
            options = {"gamma": self.gamma, "activation": self.activation, "norm": self.norm, "is_causal": is_causal}
            every = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
            return plain.pure_attention(q, k, v, attn_mask=attn_mask, query_mask=every, **options)
        causal = "chunk" if is_causal else None
        chunk = self.chunk_size if is_causal else None
        z = plain.linear_attention(
            q, k, v, gamma=self.gamma, activation=self.activation, causal=causal, chunk_size=chunk
        )
        return z.expand(-1, -1, q.shape[2], -1)

    def normalise(self, scores):
        assert self.variant == "pure"
        self.calls += 1
        r = plain.ACTIVATIONS[self.activation](scores)
        if self.norm == "row":
            visible = (scores > -50).sum(-1, keepdim=True)
            return self.gamma * r / ((r.square().sum(-1, keepdim=True) * visible).sqrt() + 1e-6)
        return self.gamma * r / (r.square().sum((-2, -1), keepdim=True).sqrt() + 1e-6)
