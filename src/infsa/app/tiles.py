"""Tiles of streamed images and of their maps, served to the viewer of the page; only scenes of open pages have any."""

import io
import math
import secrets
import threading
from collections import OrderedDict
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from PIL import Image

from ..report.panels import coloured
from .gigapixel import Scene, named, rgb

SIDE = 256  # of a tile, in pixels
CACHE = 64 << 20  # bytes of tiles that are kept
ROUTE = "/infsa/tiles/{key:str}/{layer:str}/{level:int}/{column:int}/{row:int}"

_SCENES: "WeakValueDictionary[str, Scene]" = WeakValueDictionary()
_KEPT: "OrderedDict[tuple[Any, ...], bytes]" = OrderedDict()
_LOCK = threading.Lock()


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


def tile(key: str, *place: Any) -> bytes | None:
    """A tile as JPEG or PNG, from the cache if it is there; None for a scene or a place that does not exist."""
    scene = _SCENES.get(key)
    if scene is None:
        return None
    with _LOCK:
        if (key, *place) in _KEPT:
            _KEPT.move_to_end((key, *place))
            return _KEPT[(key, *place)]
    try:
        drawn = draw(scene, *place)
    except (ValueError, OSError):
        return None
    stream = io.BytesIO()
    drawn.save(stream, "PNG") if place[0] == "map" else drawn.save(stream, "JPEG", quality=88)
    with _LOCK:
        _KEPT[(key, *place)] = stream.getvalue()
        while sum(map(len, _KEPT.values())) > CACHE:
            _KEPT.popitem(last=False)
    return stream.getvalue()


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
