"""Tiles of streamed images and of their maps, served to the viewer of the page; only scenes of open pages have any."""

import io
import math
import secrets
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from PIL import Image

from ..report.panels import coloured
from .gigapixel import Scene, named, rgb

SIDE = 256  # of a tile, in pixels
TILES = 320  # that are kept: 64 MB at most
ROUTE = "/infsa/tiles/{key:str}/{layer:str}/{level:int}/{column:int}/{row:int}"

_SCENES: "WeakValueDictionary[str, Scene]" = WeakValueDictionary()


def publish(scene: Scene) -> str:
    """A key under which the tiles of a scene can be asked for, as long as the scene exists."""
    key = secrets.token_urlsafe(16)
    _SCENES[key] = scene
    return key


def levels(width: int, height: int) -> int:
    """How many levels there are, each half as large as the one before; the last is one tile."""
    return 1 + max(0, math.ceil(math.log2(max(width, height) / SIDE)))


def draw(scene: Scene, layer: str, level: int, column: int, row: int) -> Image.Image:
    """A tile of the image or the map (``layer``), ``2 ** level`` times smaller than the layer itself."""
    height, width = scene.map.shape if layer == "map" else scene.size[::-1]
    if layer not in ("image", "map") or not 0 <= level < levels(width, height):
        raise ValueError(f"no level {level} of {layer!r}")
    factor = 2**level
    step = SIDE * factor
    left, top = column * step, row * step
    if not (0 <= left < width and 0 <= top < height):
        raise ValueError(f"no tile ({column}, {row}) at level {level} of the {layer}")
    right, bottom = min(width, left + step), min(height, top + step)
    if layer == "map":
        part = scene.map[top:bottom, left:right]
        return coloured(np.asarray(Image.fromarray(np.ascontiguousarray(part)).reduce(factor)) / scene.top)
    if factor >= scene.factor:
        edges = (left // scene.factor, top // scene.factor, -(-right // scene.factor), -(-bottom // scene.factor))
        return scene.overview.crop(edges).reduce(factor // scene.factor)
    with named(scene.path):
        return Image.fromarray(rgb(np.asarray(scene.source.read(top, left, bottom, right)))).reduce(factor)


@lru_cache(TILES)
def encoded(key: str, *place: Any) -> bytes:
    """A tile of a scene as JPEG, or of its map as PNG."""
    stream = io.BytesIO()
    drawn = draw(_SCENES[key], *place)
    drawn.save(stream, "PNG") if place[0] == "map" else drawn.save(stream, "JPEG", quality=88)
    return stream.getvalue()


def tile(key: str, *place: Any) -> bytes | None:
    """A tile, from the cache if it is there; None for a scene or a place that does not exist."""
    try:
        return encoded(key, *place) if key in _SCENES else None
    except (KeyError, ValueError, OSError):
        return None


def route() -> Any:
    """What serves the tiles, for the page's server."""
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    def answer(request: Request) -> Response:
        names = ("key", "layer", "level", "column", "row")
        found = tile(*(request.path_params[name] for name in names))
        if found is None:
            return Response("no such tile", 404)
        kind = "image/png" if request.path_params["layer"] == "map" else "image/jpeg"
        return Response(found, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

    return Route(ROUTE, answer)
