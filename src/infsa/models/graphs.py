"""CUDA graphs of short calls, captured by ourselves: a bounded table, the least recently used leave first.

A graph belongs to a kind of input and to a stream. On one stream calls follow each other, so that all graphs there
share one place for images and one pool of memory; other streams have their own. Graphs hold addresses:
:class:`Snapshot` notices a model whose tensors lie elsewhere, or which was changed otherwise, and all are dropped.
"""

import contextlib
import gc
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.dispatch import untouched

MOST_GRAPHS = 64
CAPTURING = threading.Lock()
MOST_FAILURES = 3  # captures that may fail before no more are tried
MOST_BYTES = 4 * 2**30  # that graphs may hold; with more, all are dropped
Function = Callable[[Tensor, Tensor | None], Tensor]


class Snapshot:
    """A model's modules, their attributes and the addresses of its tensors, as they were; cheap to compare."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self.model = model
        self.training = any(module.training for module in modules)
        self._hooks = [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self._stores: list[dict[str, Any]] = [
            store for m in modules for store in (m._modules, m._parameters, m._buffers)
        ]
        self._members = self._present()
        self.tensors = [member for member in self._members if type(member) in (Tensor, nn.Parameter)]
        self._addresses = [t.data_ptr() for t in self.tensors]
        own = vars(nn.Module()).keys() - {"training"}
        self._attributes = [vars(module) for module in modules]
        self._read = [itemgetter(*(name for name in names if name not in own)) for names in self._attributes]
        self._values = self._current()
        self._replaced = any("forward" in names for names in self._attributes)

    def _present(self) -> list[Any]:
        return list(chain.from_iterable(store.values() for store in self._stores))

    def _current(self) -> list[Any]:
        return [(read(names), len(names)) for read, names in zip(self._read, self._attributes, strict=True)]

    def holds(self) -> bool:
        """Whether the model is still the same; the numbers in its tensors may be others."""
        present = self._present()
        if len(present) != len(self._members) or not all(map(is_, present, self._members)):
            return False
        try:
            return [t.data_ptr() for t in self.tensors] == self._addresses and self._current() == self._values
        except Exception:  # an attribute is gone, or another one that cannot be compared, as tensors and arrays
            return False

    def heard(self) -> bool:
        """Whether modules do more than their classes say: they have hooks, or a ``forward`` of their own."""
        return self._replaced or any(self._hooks) or not untouched(self.model)

    def learns(self) -> bool:
        """Whether any of its tensors asks for a gradient."""
        return any(member.requires_grad for member in self._members if isinstance(member, Tensor))


@dataclass
class Place:
    """What the graphs of one stream share: memory for images, a pool for everything else, a stream to capture on."""

    images: Tensor
    pool: Any
    stream: torch.cuda.Stream


class Graph:
    """One captured call: where it finds its inputs and leaves its result."""

    def __init__(self, function: Function, images: Tensor, mask: Tensor | None, place: Place) -> None:
        self.images = place.images[: images.numel()].view(images.shape)
        self.mask = None if mask is None else torch.zeros_like(mask, memory_format=torch.contiguous_format)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()  # nothing may be pending; torch.cuda.graph would also drop all cached memory
        before = torch.cuda.memory_reserved()
        with torch.cuda.stream(place.stream):
            self.graph.capture_begin(place.pool, capture_error_mode="thread_local")
            try:
                self.output = function(self.images, self.mask)
            finally:
                self.graph.capture_end()
        self.bytes = max(0, torch.cuda.memory_reserved() - before)
        self.graph.replay()  # a first replay takes longer

    def __call__(self, images: Tensor, mask: Tensor | None) -> Tensor:
        """The result for inputs of the same kind, on the stream this graph belongs to."""
        self.images.copy_(images)
        if self.mask is not None and mask is not None:
            self.mask.copy_(mask)
        self.graph.replay()
        return self.output.clone()  # the graph's memory is used again


class Graphs:
    """The graphs of one model as it is."""

    def __init__(self) -> None:
        self.lock, self.failures = threading.RLock(), 0
        self.clear()

    def clear(self) -> None:
        """Forget all graphs and give their memory back."""
        self.graphs: OrderedDict[Any, Graph] = OrderedDict()
        self.places: dict[Any, Place] = {}
        self.bytes = 0  # reserved by captures and for images; what a graph leaves in its pool, the others use

    def run(self, function: Function, images: Tensor, mask: Tensor | None) -> Tensor:
        """``function(images, mask)``, from the second call of a kind on as a graph."""
        with self.lock, torch.cuda.device(images.device):
            where = (images.device, torch.cuda.current_stream().cuda_stream, images.dtype)
            settings = (torch.backends.cuda.matmul.fp32_precision, torch.are_deterministic_algorithms_enabled())
            kind = (where, images.shape, None if mask is None else (mask.shape, mask.dtype, mask.device), settings)
            graph = self.graphs.get(kind)
            if graph is not None:
                self.graphs.move_to_end(kind)
                return graph(images, mask)
            found = function(images, mask)  # compiles and loads what is missing, as no capture may
            if self.failures < MOST_FAILURES:
                with torch.inference_mode(False), torch.no_grad():
                    self._capture(function, images, mask, where, kind)
            return found

    def _capture(self, function: Function, images: Tensor, mask: Tensor | None, where: Any, kind: Any) -> None:
        if self.bytes > MOST_BYTES:
            self.clear()
        if len(self.graphs) >= MOST_GRAPHS:
            self.graphs.popitem(last=False)
        try:
            place = self.places.get(where)
            if place is None:
                none = torch.empty(0, dtype=images.dtype, device=images.device)
                place = self.places[where] = Place(none, torch.cuda.graph_pool_handle(), torch.cuda.Stream())
            if place.images.numel() < images.numel():  # earlier graphs go on reading the smaller memory
                count = max(images.numel(), 2 * place.images.numel())
                place.images = torch.zeros(count, dtype=images.dtype, device=images.device)
                self.bytes += place.images.nbytes
            with CAPTURING, without_collection():
                graph = self.graphs[kind] = Graph(function, images, mask, place)
            self.bytes += graph.bytes
        except RuntimeError as error:
            self.failures += 1
            self.clear()
            if self.failures == MOST_FAILURES:
                warnings.warn(f"short inputs are not replayed as CUDA graphs: {error}", stacklevel=2)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage: a graph that is collected while another is captured ends the capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
