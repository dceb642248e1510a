"""Kernels launched again and again: compiled once, called directly, without Triton's handling of arguments.

Triton reads the type, the divisibility and the options of every argument at every call, which takes longer than the
launch. Where shapes, types and numbers are those of an earlier call, only the addresses are new; what the compiler
assumed about them is their divisibility by 16.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime import _allocation

INTERPRETED = bool(triton.knobs.runtime.interpret)
RUNTIME = triton.knobs.runtime
COMPILING = threading.Lock()


class Launch:
    """One kernel with its grid, numbers and constants fixed, for tensors of fixed types on one device.

    The kernel takes pointers first, then the numbers of a call, then the fixed ones, then constants. The device must be
    the current one. ``descriptors`` says that the kernel builds tensor descriptors, which need memory.
    """

    def __init__(
        self,
        kernel: Any,
        grid: Sequence[int],
        numbers: Sequence[float],
        constants: dict[str, Any],
        device: torch.device,
        descriptors: bool = False,
    ) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, (*grid, 1, 1)[:3], tuple(numbers), constants
        self.index, self.descriptors = device.index, descriptors
        self.fixed = (*self.numbers, *(constants[name] for name in kernel.arg_names if name in constants))
        self.compiled: dict[int, Any] = {}  # by which addresses are no multiples of 16

    def __call__(self, *tensors: Tensor, numbers: tuple[float, ...] = ()) -> None:
        """Run on the current stream."""
        if self.descriptors:
            with descriptor_memory():
                self._run(tensors, numbers)
        else:
            self._run(tensors, numbers)

    def _run(self, tensors: tuple[Tensor, ...], numbers: tuple[float, ...]) -> None:
        hook = RUNTIME.launch_enter_hook
        if INTERPRETED or getattr(hook, "calls", hook):  # somebody measures launches: as Triton does it
            self._by_triton(tensors, numbers)
            return
        addresses = [tensor.data_ptr() for tensor in tensors]
        kind = bits = 0
        for address in addresses:
            bits |= address
        if bits & 15:
            for address in addresses:
                kind = 2 * kind + (address & 15 != 0)
        compiled = self.compiled.get(kind)
        if compiled is None:
            self.compiled[kind] = self._by_triton(tensors, numbers)
            return
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        fixed = (stream, compiled.function, compiled.packed_metadata, None, None, None)  # no metadata, no hooks
        compiled.run(*self.grid, *fixed, *addresses, *numbers, *self.fixed)

    def _by_triton(self, tensors: tuple[Tensor, ...], numbers: tuple[float, ...]) -> Any:
        return by_triton(self.kernel[self.grid], *tensors, *numbers, *self.numbers, **self.constants)


def by_triton(kernel: Any, *arguments: Any, **constants: Any) -> Any:
    """Launch as Triton does it, which compiles what is missing; while a graph is captured, that is refused."""
    with refuse_to_compile() if capturing() else contextlib.nullcontext():
        return kernel(*arguments, **constants)


def capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def refuse_to_compile() -> Iterator[None]:
    """Let a kernel that Triton has not compiled yet be an error of one line."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        if capturing():  # another thread may compile meanwhile
            raise RuntimeError(
                "a first call inside a CUDA graph capture would compile a kernel; call once with the same shapes before"
            )
        return before(*arguments, **options) if before is not None else None

    with COMPILING:
        before = RUNTIME.jit_cache_hook
        RUNTIME.jit_cache_hook = refuse
        try:
            yield
        finally:
            RUNTIME.jit_cache_hook = before


@contextlib.contextmanager
def descriptor_memory() -> Iterator[None]:
    """Give Triton memory on the current device for descriptors built on the GPU, then its own allocator back."""
    token = _allocation._allocator.set(_on_current_device)
    try:
        yield
    finally:
        _allocation._allocator.reset(token)


def _on_current_device(size: int, alignment: int, stream: int | None) -> Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")
