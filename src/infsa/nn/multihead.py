"""A drop-in for ``torch.nn.MultiheadAttention``: same arguments, parameter names and forward."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from ..ops import central_pool, linear_weights, pure_attention, pure_weights
from ..ops.checks import NORMS, check_activation, check_count, check_dropout, check_eps, shape_of
from ..ops.dispatch import check_impl
from ..ops.linear.projected import project_pooled
from ..ops.tracing import transformed
from .decay import Decay
from .infsa import merge_heads, split_heads, spread_rows, zero_padding
from .masks import (
    add_bias,
    hidden,
    is_part,
    padding_of,
    plainly_allowed,
    require,
    require_entries,
    require_mutual,
    sized,
    torch_padding,
)

POOLED = "Linear-InfSA pools the queries of a call, later and padded ones too, so that each enters every output"


def check_variant(variant: str, norm: str, pool_queries: bool, chunk_size: int | None) -> None:
    """Refuse anything but a variant with the options that it has."""
    if variant not in ("pure", "linear"):
        raise ValueError(f"variant must be 'pure' or 'linear', got {variant!r}")
    if chunk_size is not None:
        if variant == "pure":
            raise ValueError(f"chunk_size needs variant='linear', got chunk_size={chunk_size!r}")
        check_count(chunk_size, "chunk_size")
    if norm not in ("auto", *NORMS):
        raise ValueError(f"norm must be one of {['auto', *NORMS]}, got {norm!r}")
    if norm != "auto" and variant == "linear":
        raise ValueError(f"norm needs variant='pure', got norm={norm!r}")
    if pool_queries and variant == "pure":
        raise ValueError("pool_queries needs variant='linear'; Pure InfSA takes norm='frobenius' instead")


class Call(NamedTuple):
    """One call in our terms: batches of tokens, zero where they are padding; True is real, and allowed."""

    query: Tensor  # (B, L, E)
    key: Tensor  # (B, S, ·)
    value: Tensor
    key_mask: Tensor | None  # (B, S)
    query_mask: Tensor | None  # (B, L)
    key_bias: Tensor | None  # (B, S), added to the scores
    attn_mask: Tensor | None  # (L, S) or (B, H, L, S), allowed or added
    is_causal: bool
    need_weights: bool
    norm: str

    @property
    def token_masks(self) -> dict[str, Any]:
        """The masks of tokens as the operators take them."""
        return {"key_mask": self.key_mask, "query_mask": self.query_mask}


class MultiheadAttention(nn.MultiheadAttention):
    """Pure or Linear InfSA behind the interface of ``torch.nn.MultiheadAttention``.

    Weights load from and into torch's module. It works inside ``TransformerEncoderLayer`` and
    ``TransformerEncoder`` in every mode: torch's fused encoder path, which would run softmax, is disabled,
    and nested tensors are handled.

    Differences to torch, each on purpose: in the pure variant, masked or padded queries give a zero attention
    output (torch gives NaN or an arbitrary mean); an ``attn_mask`` that forbids the future is recognised as causal;
    ``is_causal=True`` needs no mask beside it; ``need_weights`` returns Â or a without γ and without dropout.

    With softmax, the result of a query does not depend on the other queries; with the paper's norm or a pooled query it
    does. The module therefore distinguishes self-attention, a call whose queries are its keys, from cross-attention.

    Args:
        embed_dim: width of queries and output.
        num_heads: H; must divide ``embed_dim``.
        variant: ``"pure"`` or ``"linear"`` (queries and keys keep their own projections: untied heads).
        norm: ``variant="pure"`` only. ``"row"`` divides the weights of a query by their own norm, so that no output
            depends on another query: safe in self- and cross-attention, under any mask, and with cached keys.
            ``"frobenius"`` is the paper's norm, which all queries of a call share. ``"auto"`` takes the paper's norm
            in self-attention, refusing masks against which it would leak, and the row norm everywhere else.
        pool_queries: ``variant="linear"`` only: allow cross-attention. Every query of a call then enters every output.
        gamma: decay, in (0, 1); the starting value if learned.
        learn_gamma: learn one γ per head (one more parameter, ``decay.logit``).
        activation: ``"relu"``, ``"gelu"`` or ``"abs"``.
        chunk_size: ``variant="linear"`` only: tokens per chunk when called with ``is_causal=True``.
        eps: ε.
        impl: see :func:`infsa.pure_attention`.
        **torch_arguments: ``dropout``, ``bias``, ``kdim``, ``vdim``, ``batch_first``, ``device``, ``dtype``
            as in torch. ``add_bias_kv`` and ``add_zero_attn`` are refused, and so is dropout with
            ``variant="linear"``.

    Example:
        >>> layer = torch.nn.TransformerEncoderLayer(256, 8, batch_first=True)
        >>> layer.self_attn = infsa.nn.MultiheadAttention(256, 8, "pure", batch_first=True)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        variant: Literal["pure", "linear"] = "pure",
        *,
        norm: Literal["auto", "frobenius", "row"] = "auto",
        pool_queries: bool = False,
        gamma: float = 0.7,
        learn_gamma: bool = False,
        activation: str = "relu",
        chunk_size: int | None = None,
        eps: float = 1e-6,
        impl: str = "auto",
        **torch_arguments: Any,
    ) -> None:
        check_variant(variant, norm, pool_queries, chunk_size)
        for name in ("add_bias_kv", "add_zero_attn"):
            if torch_arguments.get(name):
                raise ValueError(f"{name}=True is not supported: it adds a key that only softmax needs")
        check_count(num_heads, "num_heads")
        if embed_dim % num_heads:
            raise ValueError(f"num_heads must divide embed_dim={embed_dim}, got {num_heads}")
        if variant == "linear" and torch_arguments.get("dropout"):
            raise ValueError(f"variant='linear' has no dropout, got dropout={torch_arguments['dropout']!r}")
        check_activation(activation)
        check_dropout(torch_arguments.get("dropout", 0.0), "dropout")
        check_eps(eps)
        check_impl(impl, variant)
        super().__init__(embed_dim, num_heads, **torch_arguments)
        # torch's encoder asks this flag whether it may bypass forward() with its fused softmax kernel
        self._qkv_same_embed_dim = False
        self.variant, self.norm, self.pool_queries = variant, norm, pool_queries
        self.activation, self.chunk_size = activation, chunk_size
        self.eps, self.impl = eps, impl
        factory = {name: torch_arguments.get(name) for name in ("device", "dtype")}
        self.decay = Decay(num_heads, gamma, learn_gamma, **factory)

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        query_padding_mask: Tensor | None = None,
        query_causal: bool | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as ``torch.nn.MultiheadAttention`` does; masks follow torch: True or −inf hides.

        In self-attention padded keys are padded queries too. In cross-attention every
        query is real unless ``query_padding_mask`` (B, L), True for padding, says otherwise. ``query_causal`` says of
        cross-attention whether queries may know only those before them: if True, row i is divided by the norm of the
        rows up to i; None: unknown.
        """
        if query.is_nested:
            if query is not key or key is not value or key_padding_mask is not None or attn_mask is not None:
                raise ValueError("nested tensors are supported for self-attention without masks only")
            return self._forward_nested(query, need_weights, average_attn_weights, is_causal)
        batched = query.dim() == 3
        if query.dim() not in (2, 3) or key.dim() != query.dim() or value.dim() != query.dim():
            raise ValueError(
                "query, key and value must all be (L, E) or all batched 3-D, "
                f"got {shape_of(query)}, {shape_of(key)}, {shape_of(value)}"
            )
        self_attention = self._is_self_attention(query, key)
        norm = self._norm_of_call(query, key, self_attention, query_causal)
        if query_causal and not is_causal and not self_attention and norm == "frobenius":
            masks = (key_padding_mask, query_padding_mask, attn_mask)
            return self._causal_queries(query, key, value, *masks, need_weights, average_attn_weights)
        query, key, value = (self._batch_first(x, batched) for x in (query, key, value))  # (B, N, E)
        self._check_shapes(query, key, value)
        key_mask, key_bias = torch_padding(key_padding_mask, "key_padding_mask", key)
        query_mask, query_bias = torch_padding(query_padding_mask, "query_padding_mask", query)
        if query_bias is not None:
            require_entries(query_bias == 0, "a float query_padding_mask takes only 0 and -inf", query_bias)
        if query_mask is None:
            query_mask = key_mask if self_attention else query.new_ones(query.shape[:2], dtype=torch.bool)
        allowed = self._attention_mask(attn_mask, query, key)
        query, key, value = (
            zero_padding(x, mask) for x, mask in ((query, query_mask), (key, key_mask), (value, key_mask))
        )
        padding = (key_mask, query_mask, key_bias)
        call = Call(query, key, value, *padding, allowed, is_causal, need_weights, norm)
        output, weights = self._pure(call) if self.variant == "pure" else self._linear(call)
        if not batched:
            output, weights = output.squeeze(0), None if weights is None else weights.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1 if batched else 0)
        return output, weights

    def _is_self_attention(self, query: Tensor, key: Tensor) -> bool:
        """Whether the queries are the keys: one tensor, or two with the same numbers.

        A compiled program cannot ask for the numbers: it takes two tensors for cross-attention and refuses equal ones.
        """
        if query is key:
            return True
        asked = self.norm != "row" and query.shape == key.shape and query.dtype == key.dtype
        if not asked or transformed() or query.device.type == "meta":
            return False
        if torch.compiler.is_compiling():
            require((query != key).any(), "query and key are equal but two tensors: compile with one tensor for both")
            return False
        return torch.equal(query, key)

    def _norm_of_call(self, query: Tensor, key: Tensor, self_attention: bool, query_causal: bool | None) -> str:
        """The norm of a call with its queries and keys; refuses one whose queries must not know each other."""
        if self.variant == "linear":
            if not self_attention and not self.pool_queries and query_causal is not False:
                raise ValueError(
                    f"{POOLED}; variant='pure' does not, and pool_queries=True allows it in cross-attention"
                )
            return ""
        if self.norm != "auto":
            return self.norm
        if self_attention or query_causal is not None:
            return "frobenius"
        if not torch.compiler.is_compiling() and is_part(query, key):
            raise ValueError(
                f"the queries {shape_of(query)} are a part of the keys {shape_of(key)}: build the module with "
                "norm='row' for decoding with cached keys, norm='frobenius' for tokens that pool the others"
            )
        return "row"

    @property
    def _guards_masks(self) -> bool:
        """Whether masks are refused against which a shared norm would leak."""
        return self.norm == "auto"

    def _pure(self, call: Call) -> tuple[Tensor, Tensor | None]:
        q, k, v = self._project(call.query, 0), self._project(call.key, 1), self._project(call.value, 2)
        bias, masks = add_bias(call.attn_mask, call.key_bias), call.token_masks
        guarded = self._guards_masks and call.norm == "frobenius" and bias is not None
        if guarded and call.query_mask is call.key_mask:
            real = padding_of(bias, *call.key.shape[:2])
            real = real if call.key_mask is None or real is None else real & call.key_mask
            masks = {"key_mask": real, "query_mask": real}
            if not call.is_causal:
                require_mutual(bias, real)
        causal = call.is_causal or ("auto" if call.attn_mask is not None else False)
        options: dict[str, Any] = {"activation": self.activation, "eps": self.eps, "norm": call.norm, **masks}
        options |= {"attn_mask": bias, "is_causal": causal}
        dropout_p = self.dropout if self.training else 0.0
        z = pure_attention(q, k, v, gamma=self.decay(), dropout_p=dropout_p, impl=self.impl, **options)
        weights = pure_weights(q, k, **options) if call.need_weights else None
        return self.out_proj(merge_heads(z)), weights

    def _linear(self, call: Call) -> tuple[Tensor, Tensor | None]:
        self._check_linear(call)
        q, k = self._project(call.query, 0), self._project(call.key, 1)
        options: dict[str, Any] = {"activation": self.activation, "eps": self.eps, **call.token_masks}
        chunks: dict[str, Any] = {"causal": "chunk", "chunk_size": self.chunk_size} if call.is_causal else {}
        pooled = central_pool(q, k, call.value.unsqueeze(1), impl=self.impl, **options, **chunks)
        projected = project_pooled(pooled, *self._projection(2), self.num_heads)
        rows = self.out_proj(merge_heads(projected, self.decay()))  # (B, m, E)
        length = call.query.shape[1]
        weights = linear_weights(q, k, **options).unsqueeze(2).expand(-1, -1, length, -1) if call.need_weights else None
        return spread_rows(rows, pooled.groups).expand(-1, length, -1), weights

    def _check_linear(self, call: Call) -> None:
        """Refuse what Linear-InfSA cannot keep."""
        if call.is_causal and self.chunk_size is None:
            raise ValueError("variant='linear' is causal by chunks only: build it with chunk_size, got None")
        if call.attn_mask is not None and not call.is_causal:
            raise ValueError(f"variant='linear' cannot apply an attn_mask, got shape {shape_of(call.attn_mask)}")
        if call.is_causal and call.need_weights:
            raise ValueError("variant='linear' has no weights when causal: pass need_weights=False")
        if call.attn_mask is not None:
            causal = torch.ones(call.attn_mask.shape[-2:], dtype=torch.bool, device=call.attn_mask.device).tril()
            rule = "variant='linear' with is_causal=True takes no other attn_mask than the causal one"
            require_entries(plainly_allowed(call.attn_mask) == causal, rule, call.attn_mask)
        if call.key_bias is not None:
            rule = "variant='linear' takes only 0 and -inf in a float key_padding_mask"
            require_entries(call.key_bias == 0, rule, call.key_bias)

    def _causal_queries(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        query_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        need_weights: bool,
        average_attn_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Keys first, queries after them, one causal sequence: the prefix norm of its rows is the one wanted."""
        along = 1 if query.dim() == 3 and self.batch_first else 0
        keys, queries = key.shape[along], query.shape[along]
        batch = query.shape[1 - along] if query.dim() == 3 else 1
        query = torch.cat([query.new_zeros(*sized(query, along, keys)), query], along)
        key, value = (torch.cat([x, x.new_zeros(*sized(x, along, queries))], along) for x in (key, value))
        output, weights = MultiheadAttention.forward(
            self,
            query,
            key,
            value,
            hidden(key_padding_mask, batch, keys, query.device, (0, queries)),
            need_weights,
            None if attn_mask is None else pad(attn_mask, (0, queries, keys, 0)),
            average_attn_weights,
            is_causal=True,
            query_padding_mask=hidden(query_padding_mask, batch, queries, query.device, (keys, 0)),
            query_causal=True,
        )
        return output.narrow(along, keys, queries), None if weights is None else weights[..., keys:, :keys]

    def _forward_nested(
        self, x: Tensor, need_weights: bool, average_attn_weights: bool, is_causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Self-attention over a nested (B, ragged, E) tensor, through a padded one."""
        if not self.batch_first:
            raise ValueError("nested tensors need batch_first=True")
        padded = x.to_padded_tensor(0.0)
        lengths = torch.tensor([len(part) for part in x.unbind()], device=padded.device)
        real = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
        output, weights = self.forward(
            padded, padded, padded, ~real, need_weights, None, average_attn_weights, is_causal
        )
        return torch._nested_tensor_from_mask(output.contiguous(), real), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        widths = (query.shape[2], key.shape[2], value.shape[2])
        expected = (self.embed_dim, self.kdim, self.vdim)
        if widths != expected:
            raise ValueError(f"query, key and value must have widths {expected}, got {widths}")
        if key.shape[:2] != value.shape[:2] or query.shape[0] != key.shape[0]:
            raise ValueError(
                "query, key and value must share the batch, key and value the length, "
                f"got (B, N) = {shape_of(query)[:2]}, {shape_of(key)[:2]}, {shape_of(value)[:2]}"
            )

    def _projection(self, part: int) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the query (0), key (1) or value (2) projection."""
        if self.in_proj_weight is not None:
            weight = self.in_proj_weight.chunk(3)[part]
        else:
            weight = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[part]
        return weight, None if self.in_proj_bias is None else self.in_proj_bias.chunk(3)[part]

    def _project(self, x: Tensor, part: int) -> Tensor:
        return split_heads(linear(x, *self._projection(part)), self.num_heads)

    def _attention_mask(self, attn_mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        """torch's mask (L, S) or (B·H, L, S) in our convention: True = allowed, float = added."""
        if attn_mask is None:
            return None
        batch, length, source = query.shape[0], query.shape[1], key.shape[1]
        full = (batch * self.num_heads, length, source)
        if shape_of(attn_mask) not in ((length, source), full):
            raise ValueError(f"attn_mask must be {(length, source)} or {full}, got {shape_of(attn_mask)}")
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise TypeError(f"attn_mask must be boolean or floating, got {attn_mask.dtype}")
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
        return ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
