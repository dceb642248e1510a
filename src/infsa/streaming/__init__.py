"""Images larger than memory: exact streaming of Linear InfViT, forward and backward, and any-time estimates."""

from .backward import BackwardResult, stream_backward
from .engine import Progress
from .estimate import Estimate, estimate
from .feed import BadTile
from .placement import Placement
from .regions import Region, find_regions, write_regions
from .run import StreamResult, stream
from .scene import SceneCode
from .source import Source, open_source

__all__ = [
    "BackwardResult",
    "BadTile",
    "Estimate",
    "Placement",
    "Progress",
    "Region",
    "SceneCode",
    "Source",
    "StreamResult",
    "estimate",
    "find_regions",
    "open_source",
    "stream",
    "stream_backward",
    "write_regions",
]
