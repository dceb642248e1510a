"""A model is built without memory first, and compared with the file that described it, before it is built for real.

What a header asks for costs nothing until its shapes are those of the file's own tensors, so a few bytes of header
cannot claim more memory than the file itself takes, nor keep the machine busy with modules that have no tensors.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from .header import Header, brief

Model = TypeVar("Model", bound=nn.Module)
FLOATING = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")  # names of types in a safetensors header
SPARE = 256 << 20  # bytes of tables that a model may compute beside what the file holds


def build_as_filed(build: Callable[[], Model], header: Header) -> Model:
    """What ``build`` makes of a file's header, if that is a model for the file's tensors."""
    model = build_without_memory(build, header)
    check_fit(model, header)
    known = model.state_dict().keys()
    spare = sum(value.nbytes for name, value in model.named_buffers() if name not in known)
    if spare > SPARE + 8 * stored(header):
        raise ValueError(f"{header.where} describes a model with tables of {spare} bytes that the file does not hold")
    wanted, machine = sum(value.nbytes for value in model.state_dict().values()), _memory_of_the_machine()
    if wanted > machine:  # a file with holes takes less room than it says
        raise ValueError(f"{header.file}: its model needs {wanted} bytes, and this machine has {machine}")
    with refusals(header):
        return build()


def build_without_memory(build: Callable[[], Model], header: Header) -> Model:
    """What ``build`` makes, on the meta device, of not many more parts than the file has tensors."""
    with refusals(header), torch.device("meta"), _bounded(header):
        return build()


def _memory_of_the_machine() -> float:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return math.inf


def stored(header: Header) -> int:
    """How many numbers a file holds."""
    return sum(math.prod(shape) for _, shape in header.tensors.values())


def check_fit(model: nn.Module, header: Header) -> None:
    """Refuse a file whose tensors are not those of a model."""
    if problems := misfits(model, header):
        raise ValueError(f"the weights at {header.file} do not fit the model; {problems}")


def misfits(model: nn.Module, header: Header) -> str:
    """How the tensors of a file differ from those of a model, in one line; empty if they fit."""
    own, filed = model.state_dict(), header.tensors
    both = sorted(own.keys() & filed.keys())
    kinds = {
        "missing": sorted(own.keys() - filed.keys()),
        "unexpected": sorted(filed.keys() - own.keys()),
        "misshapen": [f"{k} {filed[k][1]} for {tuple(own[k].shape)}" for k in both if filed[k][1] != own[k].shape],
        "mistyped": [
            f"{k} {filed[k][0]} for {own[k].dtype}"
            for k in both
            if (filed[k][0] in FLOATING) != own[k].dtype.is_floating_point
        ],
    }
    return "; ".join(
        f"{kind}: {', '.join(brief(name)[1:-1] for name in names[:3])}"
        + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for kind, names in kinds.items()
        if names
    )


@contextmanager
def refusals(header: Header) -> Iterator[None]:
    """One line and one type of error for whatever a constructor raises on values that it does not expect."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(str(header.file)):
            raise
        reason = brief(error) or type(error).__name__
        raise ValueError(f"{header.file}: the model it describes cannot be built: {reason}") from error


@contextmanager
def _bounded(header: Header) -> Iterator[None]:
    """Stop this thread's constructors when they make many more parts than the file has tensors."""
    thread, most, made = threading.get_ident(), 1000 + 20 * len(header.tensors), 0

    def count(*_: Any) -> None:
        nonlocal made
        made += threading.get_ident() == thread
        if made > most:
            raise ValueError(f"more than {most} parts for {len(header.tensors)} tensors")

    hooks = [
        torch_module.register_module_module_registration_hook(count),
        torch_module.register_module_parameter_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
