"""Images larger than memory: exact streaming of Linear InfViT, forward and backward, and estimates from some tiles."""

from .backward import BackwardResult, stream_backward
from .engine import Progress
from .estimate import Estimate, estimate
from .feed import BadTile
from .placement import Placement
from .plan import Plan
from .regions import Region, find_regions, write_regions
from .run import StreamResult, plan_stream, stream
from .scene import SceneCode
from .source import Source, open_source
from .timing import Profile

__all__ = [
    "BackwardResult",
    "BadTile",
    "Estimate",
    "Placement",
    "Plan",
    "Profile",
    "Progress",
    "Region",
    "SceneCode",
    "Source",
    "StreamResult",
    "estimate",
    "find_regions",
    "open_source",
    "plan_stream",
    "stream",
    "stream_backward",
    "write_regions",
]
