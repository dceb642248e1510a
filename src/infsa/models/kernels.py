"""Where the kernels of a fast model run; imports no Triton."""

import torch
from torch import Tensor

from ..ops import dispatch
from ..ops.tracing import exporting, transformed

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDEST = 16384  # numbers of a row that one program holds


def kernels_run(x: Tensor) -> bool:
    """Whether rows of x are for the kernels: on a GPU, or in Triton's interpreter."""
    if x.dtype not in DTYPES or x.shape[-1] > WIDEST or exporting() or transformed():
        return False
    return dispatch.kernels_run_on(x.device.type, x.device.index) or (dispatch.INTERPRETED and x.device.type == "cpu")
