"""What causal InfSA remembers between steps, kept in the layers of Hugging Face's cache.

Beside its keys and values, a cache layer holds named series with one entry per token: the running ΣR² of Pure InfSA,
(B, H, N), or the queries of Linear-InfSA, (B, H, N, d). They follow the keys through all that happens to a cache.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)


class Series:
    """Named tensors (B, H, N, ...), one entry per cached token; mixed into a layer of the cache that was empty."""

    series: dict[str, Tensor]

    def last(self, name: str) -> Tensor | None:
        """The entry of the last token, (B, H, ...); None before the first."""
        held = self.series.get(name)
        return None if held is None else held[:, :, -1]

    def extend(self, name: str, entries: Tensor) -> Tensor:
        """Append the entries of new tokens and return all of them."""
        held = self.series.get(name)
        self.series[name] = entries if held is None else torch.cat([held, entries], 2)
        return self.series[name]

    def end(self, keys: int) -> int | Tensor:
        """The place behind the last token among the ``keys`` that the layer last returned."""
        return keys

    def _each(self, change: Any) -> None:
        self.series = {name: change(held) for name, held in self.series.items()}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take batch rows in the order of a beam search."""
        super().reorder_cache(beam_idx)  # type: ignore[misc]
        self._each(lambda held: held.index_select(0, beam_idx.to(held.device)))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens."""
        before = self.get_seq_length()  # type: ignore[attr-defined]
        super().crop(tokens_to_remove)  # type: ignore[misc]
        removed = before - self.get_seq_length()  # type: ignore[attr-defined]
        self._each(lambda held: held[:, :, : max(held.shape[2] - removed, 0)])
        self.series = {name: held for name, held in self.series.items() if held.shape[2] > 0}

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every batch row."""
        super().batch_repeat_interleave(repeats)  # type: ignore[misc]
        self._each(lambda held: held.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some batch rows."""
        super().batch_select_indices(indices)  # type: ignore[misc]
        self._each(lambda held: held[indices])

    def reset(self) -> None:
        """Forget everything."""
        super().reset()  # type: ignore[misc]
        self.series = {}


class DynamicSeries(Series, DynamicLayer):
    """A growing layer with series."""


class SlidingSeries(Series, DynamicSlidingWindowLayer):
    """A layer that keeps the keys of a window, with series that keep as much (or all, while it records its past)."""

    def extend(self, name: str, entries: Tensor) -> Tensor:
        """Append entries; those that left the window and can never be cropped back to are dropped."""
        held = super().extend(name, entries)
        if not getattr(self, "record_past", False):
            self.series[name] = held[:, :, -self.sliding_window :]
        return held


class StaticSeries(Series, StaticLayer):
    """A layer of fixed size, for compiled decoding: of a series it keeps the last entry, at a fixed address."""

    def extend(self, name: str, entries: Tensor) -> Tensor:
        """Overwrite the last entry."""
        if name in self.series:
            self.series[name].copy_(entries[:, :, -1:])
        else:
            self.series[name] = entries[:, :, -1:].clone()
        return self.series[name]

    def end(self, keys: int) -> int | Tensor:
        """The number of tokens so far: those to come have their places behind them."""
        return self.get_seq_length()


class StaticSlidingSeries(StaticSeries, StaticSlidingWindowLayer):
    """A layer of fixed size that keeps the keys of a window."""

    def end(self, keys: int) -> int | Tensor:
        """The number of tokens so far, until they fill the window."""
        return min(int(self.get_seq_length()), keys)


# the layers of a cache, and what they become
ADOPTED: dict[type, Any] = {
    kind.__bases__[-1]: kind for kind in (DynamicSeries, SlidingSeries, StaticSeries, StaticSlidingSeries)
}


def series_of(cache: Cache, index: int, name: str) -> Any:
    """The layer of a cache that holds an attention layer's series; a plain empty layer is replaced by one that can.

    Self-attention and cross-attention of a decoder share the layer of the self-attention, whose entries are its tokens.
    """
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    while own.layer_class_to_replicate is not None and len(own.layers) <= index:
        own.layers.append(own.layer_class_to_replicate())
    layer = own.layers[index]
    if isinstance(layer, Series):
        return layer
    kind = ADOPTED.get(type(layer))
    if kind is None:
        accepted = ", ".join(known.__name__ for known in ADOPTED)
        raise ValueError(f"{name}: a cache of {type(layer).__name__} cannot carry the sums of InfSA; use {accepted}")
    if layer.is_initialized:
        raise ValueError(
            f"{name}: the cache holds {layer.get_seq_length()} tokens without the sums of InfSA, from another model or "
            "PEFT's prefix tuning; start from none, or convert with norm='row', which needs no sums"
        )
    adopted = kind.__new__(kind)
    adopted.__dict__.update(layer.__dict__)
    adopted.series = {}
    own.layers[index] = adopted
    return adopted
