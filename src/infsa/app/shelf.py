"""The shipped models, loaded once, changed by nobody, lent to one caller at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..evaluate import load_model
from ..models import InfViT

MECHANISMS = {"Pure InfSA": "infvit_pure_tiny", "Linear-InfSA": "infvit_linear_tiny", "softmax": "vit_tiny"}
STREAMING = "streaming"  # Linear-InfSA again, padding images to whole patches

_LOCKS = {name: threading.Lock() for name in (*MECHANISMS, STREAMING)}
_MODELS: dict[str, InfViT] = {}


@contextmanager
def borrow(mechanism: str) -> Iterator[InfViT]:
    """A model in eval mode, for as long as the block lasts. Reading gradients hooks into a model: one at a time.

    Example:
        >>> with borrow("Pure InfSA") as model:
        ...     logits = model(images)
    """
    if mechanism not in _LOCKS:
        raise ValueError(f"mechanism must be one of {list(MECHANISMS)}, got {mechanism!r}")
    with _LOCKS[mechanism]:
        if mechanism not in _MODELS:
            _MODELS[mechanism] = _load(mechanism)
        yield _MODELS[mechanism]


def _load(mechanism: str) -> InfViT:
    model = load_model(MECHANISMS.get(mechanism, MECHANISMS["Linear-InfSA"])).requires_grad_(False)
    if mechanism == STREAMING:
        model.patch_embed.dynamic_img_pad = True  # type: ignore[misc]  # only a hint to TorchScript
    return model


def sizes(mechanism: str) -> tuple[int, int]:
    """How many layers and heads a model has.

    Example:
        >>> sizes("Linear-InfSA")
        (6, 12)
    """
    with borrow(mechanism) as model:
        return len(model.blocks), model.num_heads
