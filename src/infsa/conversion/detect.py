"""Attention that no adapter knows: found by the names of a module's projections and by what its code calls.

A name is read word by word: words for queries, keys and values, alone or fused, among words that any projection may
bear. Code is read as compiled, so that modules defined in a notebook are read too: the forward pass, the methods it
calls, and the plain functions these call.
"""

import dis
import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.parameter import is_lazy

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PLAIN = re.compile(  # words that a projection may bear beside
    r"w|weights?|mat|matrix|projs?|projections?|projector|to|in|lin|linears?|fc|dense|conv|layers?|net|c|attn|self|cross"
    r"|heads?|a|b|up|down|with|mqa|rope|nope|"
)
_GLUE = "(?:w|to|fc|lin|linear|proj|conv|weight)?"  # those that may be written without a gap
_ROLE = re.compile(rf"{_GLUE}(quer(?:y|ies)|keys?|val(?:ue)?s?|([qkv])(?!\2)([qkv])?(?!\2|\3)([qkv])?s?){_GLUE}")
_KERNEL = re.compile(
    r"_?scaled_dot_product\w*attention\w*|multi_head_attention_forward|flash_attn_(?:\w*func|with_kvcache)|flex_attention"
    r"|(?:memory)?_efficient_attention\w*"
)
_PRODUCTS = frozenset(["matmul", "bmm", "baddbmm", "einsum", "tensordot", "mm"])
_DEPTH = 64  # functions read per class, at most
_READ: WeakKeyDictionary[type[nn.Module], tuple[frozenset[str], int]] = WeakKeyDictionary()
_NAME = re.compile(r"attention|attn", re.IGNORECASE)
_PARTS = frozenset(
    ["qkv", "q_proj", "query", "to_q", "to_qkv", "in_proj_weight", "c_attn", "Wqkv", "query_key_value", "attn_drop"]
)


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module that no adapter knows has the name or the parts of an attention layer."""
    return bool(_NAME.search(type(module).__name__)) or has_parts(module)


def has_parts(module: nn.Module) -> bool:
    """Whether a module itself, not one inside it, has the projections of an attention layer."""
    return not _PARTS.isdisjoint({*dict(module.named_children()), *dict(module.named_parameters(recurse=False))})


def signs_in_names(module: nn.Module) -> str | None:
    """The projections of queries and keys that a module itself has, in words, whatever their names look like."""
    names = [
        *dict(module.named_children()),
        *(name for name, p in module.named_parameters(recurse=False) if is_lazy(p) or p.dim() > 1),
    ]
    read = {name: (roles, others) for name in names if (roles := roles_of(name)) for others in [_others(name)]}
    plain = [name for name, (_, others) in read.items() if all(map(_PLAIN.fullmatch, others))]
    alike = ([name for name in read if read[name][1] == others] for _, others in read.values())
    for group, wanted in ((plain, {"q", "k"}), *((group, {"q", "k", "v"}) for group in alike)):
        if wanted <= {role for name in group for role in read[name][0]}:
            return f"it has projections {', '.join(group)}"
    return None


def roles_of(name: str) -> frozenset[str]:
    """Which of q, k and v a projection with this name makes, as far as its words say."""
    found = (_ROLE.fullmatch(word) for word in _words(name))
    return frozenset(
        letter for match in found if match for letter in (match[1] if match[2] else match[1][0]) if letter != "s"
    )


def _others(name: str) -> tuple[str, ...]:
    """The words of a name, with the empty word in the place of those that say what it makes."""
    return tuple("" if _ROLE.fullmatch(word) else word for word in _words(name))


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def signs_in_code(module: nn.Module) -> str | None:
    """The attention that a module's own code computes, in words: a kernel for it, or softmax between two products."""
    names, products = _code_of(module)
    held = (value.func if isinstance(value, partial) else value for value in vars(module).values() if callable(value))
    kernel = next((name for name in (*names, *_names(held)) if _KERNEL.fullmatch(name)), None)
    if kernel:
        return f"its code calls {kernel}"
    if products > 1 and (_softmax(names) or any(isinstance(part, nn.Softmax) for part in module.children())):
        return "its code applies softmax between products"
    return None


def is_gate(module: nn.Module) -> bool:
    """Whether a module is a sigmoid gate, as attention over channels or positions in convolutional networks is.

    Its code, and that of the modules inside it, has a sigmoid, and neither softmax nor a product of two tensors; there
    are no projections of queries and keys.
    """
    read = [_code_of(part) for part in module.modules()]
    if any(products or _softmax(names) or any(map(_KERNEL.fullmatch, names)) for names, products in read):
        return False
    if any(map(signs_in_names, module.modules())):
        return False
    kinds = {type(part).__name__ for part in module.modules()}
    return any("sigmoid" in name.lower() for name in kinds.union(*(names for names, _ in read)))


def _softmax(names: Iterable[str]) -> bool:
    return any("softmax" in name.lower() and not name.startswith("log_") for name in names)


def _names(functions: Iterable[Any]) -> Iterator[str]:
    return (getattr(function, "__name__", "") for function in functions if not isinstance(function, nn.Module))


def _code_of(module: nn.Module) -> tuple[frozenset[str], int]:
    """The names that a module's forward pass and the functions it reaches use, and how many products they write."""
    kind = type(module)
    if kind not in _READ:
        _READ[kind] = _read(getattr(kind, "forward", None), kind)
    names, products = _READ[kind]
    own = vars(module).get("forward")  # put there by a wrapper
    if own is None:
        return names, products
    more, others = _read(getattr(own, "__func__", own), kind)
    return names | more, products + others


def _read(forward: Any, kind: type[nn.Module]) -> tuple[frozenset[str], int]:
    names: set[str] = set()
    products = 0
    pending: list[Any] = [forward]
    seen: set[FunctionType] = set()
    while pending and len(seen) < _DEPTH:
        function = pending.pop(0)
        function = inspect.unwrap(function) if isinstance(function, FunctionType) else None
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        for code in _nested(function.__code__):
            names.update(code.co_names)
            products += sum(_is_product(step) for step in dis.get_instructions(code))
            pending += _called(function, code, kind)
    return frozenset(names), products


def _called(function: FunctionType, code: CodeType, kind: type[nn.Module]) -> Iterator[Any]:
    """What a function may call: methods of the class, functions beside it or in its closure, not those of torch."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents
    if "super" in code.co_names:
        bases = kind.__mro__[1 : kind.__mro__.index(nn.Module)]
        yield from (vars(base).get(function.__name__) for base in bases)
    for name in code.co_names:
        method = inspect.getattr_static(kind, name, None)
        if method is not None and not hasattr(nn.Module, name):
            yield getattr(method, "fget", getattr(method, "__func__", method))
        beside = function.__globals__.get(name)
        if isinstance(beside, ModuleType) and not beside.__name__.startswith("torch"):
            yield from (getattr(beside, other, None) for other in code.co_names)
        elif isinstance(beside, FunctionType) and not (beside.__module__ or "").startswith("torch."):
            yield beside


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _is_product(step: dis.Instruction) -> bool:
    if step.opname.startswith("BINARY"):
        return step.argrepr == "@" or step.opname == "BINARY_MATRIX_MULTIPLY"
    return step.opname.startswith("LOAD") and step.argval in _PRODUCTS
