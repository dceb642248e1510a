"""Images larger than memory: exact streaming of Linear InfViT, forward and backward, and any-time estimates."""

from .backward import BackwardResult, stream_backward
from .engine import Progress
from .estimate import Estimate, estimate
from .feed import BadTile
from .plan import Plan
from .run import StreamResult, plan_stream, stream
from .scene import SceneCode
from .source import Source, open_source
from .timing import Profile

__all__ = [
    "BackwardResult",
    "BadTile",
    "Estimate",
    "Plan",
    "Profile",
    "Progress",
    "SceneCode",
    "Source",
    "StreamResult",
    "estimate",
    "open_source",
    "plan_stream",
    "stream",
    "stream_backward",
]
