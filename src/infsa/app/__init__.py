"""The explorer page: a picture, where models look in it, and what their token graphs say. Starts with ``infsa app``."""

from ..report.photographs import examples
from .gigapixel import Scene, stream_scene
from .look import Look, Settings, look
from .pictures import read_picture
from .removal import Removal, remove
from .walks import Walk, token_graph, walk

__all__ = [
    "Look",
    "Removal",
    "Scene",
    "Settings",
    "Walk",
    "examples",
    "look",
    "read_picture",
    "remove",
    "stream_scene",
    "token_graph",
    "walk",
]
