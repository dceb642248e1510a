"""Kernels launched again and again: compiled once, called directly, without Triton's handling of arguments.

Triton reads the type, the divisibility and the options of every argument at every call, which takes longer than the
launch. Where shapes, types and numbers are those of an earlier call, only the addresses are new; what the compiler
assumed about them is their divisibility by 16.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

INTERPRETED = bool(triton.knobs.runtime.interpret)


class Launch:
    """One kernel with its grid, numbers and constants fixed, for tensors of fixed types on one device.

    The kernel takes pointers first, then numbers, then constants. The device must be the current one.
    """

    def __init__(
        self,
        kernel: Any,
        grid: Sequence[int],
        numbers: Sequence[float],
        constants: dict[str, Any],
        device: torch.device,
    ) -> None:
        self.kernel, self.grid, self.numbers, self.constants = kernel, (*grid, 1, 1)[:3], tuple(numbers), constants
        self.index = device.index
        self.fixed = (*self.numbers, *(constants[name] for name in kernel.arg_names if name in constants))
        self.compiled: dict[int, Any] = {}  # by which addresses are no multiples of 16

    def __call__(self, *tensors: Tensor) -> None:
        """Run on the current stream."""
        hook = triton.knobs.runtime.launch_enter_hook
        if INTERPRETED or getattr(hook, "calls", hook):  # somebody measures launches: as Triton does it
            self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
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
            self.compiled[kind] = self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
            return
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        fixed = (stream, compiled.function, compiled.packed_metadata, None, None, None)  # no metadata, no hooks
        compiled.run(*self.grid, *fixed, *addresses, *self.fixed)
