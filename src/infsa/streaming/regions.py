"""The hottest regions of a map as polygons, and as GeoJSON for QuPath and napari."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ..files import write_atomically
from .placement import Placement
from .places import REGIONS_MARK

SHARE = 0.2  # of the map's sum that the hot patches hold
COUNT = 50  # most regions
COLOUR = [230, 80, 20]

Point = tuple[int, int]  # x, y
Ring = list[Point]  # closed: the last point is the first


@dataclass(frozen=True)
class Region:
    """Hot patches that are connected by their edges.

    ``rings`` are in pixels of the full-resolution image, (x, y): first the outline, then the holes.
    """

    rank: int  # from 1; by the share
    rings: list[Ring]
    patches: int
    share: float  # of the map's sum
    mean: float  # over its patches; the mean of the whole map is 1
    max: float  # in the same unit
    area: float  # in square pixels

    def feature(self) -> dict[str, Any]:
        """As a GeoJSON feature."""
        measured = {
            "Attention rank": self.rank,
            "Attention share": self.share,
            "Attention mean (image = 1)": self.mean,
            "Attention max (image = 1)": self.max,
            "Patches": self.patches,
            "Area px^2": self.area,
        }
        return {
            "type": "Feature",
            "geometry": {"type": "Polygon", "coordinates": self.rings},
            "properties": {
                "objectType": "annotation",
                "name": f"Hot region {self.rank}",
                "classification": {"name": "Attention", "color": COLOUR},
                "measurements": [{"name": name, "value": value} for name, value in measured.items()],
            },
        }


def find_regions(map: NDArray[Any], placement: Placement, share: float = SHARE, count: int = COUNT) -> list[Region]:
    """The regions of highest attention in a map (h, w).

    The patches with the highest values that together hold ``share`` of the map's sum are hot; patches as high as the
    lowest of them are hot too, patches of value 0 never. Hot patches that share an edge form a region; cold patches
    inside it are holes. Regions are ranked by what they hold of the sum, and the first ``count`` are returned.
    """
    check_rule(share, count)
    values = map.astype(np.float64)
    total = values.sum()
    if not total > 0:
        return []
    ordered = np.sort(values, axis=None)[::-1]
    last = min(int(np.searchsorted(np.cumsum(ordered), share * total * (1 - 1e-9))), ordered.size - 1)
    labels, number = ndimage.label((values >= ordered[last]) & (values > 0))
    index = np.arange(1, number + 1)
    sums = np.asarray(ndimage.sum_labels(values, labels, index))
    places = ndimage.find_objects(labels)
    found = []
    for rank, region in enumerate(np.argsort(-sums, kind="stable")[:count], 1):
        rows, columns = places[region]
        inside = labels[rows, columns] == region + 1
        own = values[rows, columns][inside]
        rings = _rings(inside, placement.edges(0)[rows.start :], placement.edges(1)[columns.start :])
        scale = values.size / total
        area = float(sum(signed_area(ring) for ring in rings))
        facts = (own.size, float(own.sum() / total), float(own.mean() * scale), float(own.max() * scale))
        found.append(Region(rank, rings, *facts, area))
    return found


def write_regions(path: str | Path, regions: list[Region]) -> Path:
    """Write regions as a GeoJSON FeatureCollection in pixels of the full-resolution image; return its path."""
    features = ",\n".join(json.dumps(region.feature(), allow_nan=False) for region in regions)
    text = f'{REGIONS_MARK}, "features": [\n{features}\n]}}\n'
    write_atomically(Path(path), lambda aside: aside.write_text(text, encoding="utf-8"))
    return Path(path)


def check_rule(share: float, count: int) -> None:
    """Refuse a rule that selects nothing."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"region_share must lie in (0, 1], got {share!r}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"region_count must be 1 or more, got {count!r}")


def signed_area(ring: Ring) -> float:
    """The area of a closed ring: positive for outlines, negative for holes."""
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise(ring)) / 2


def _rings(inside: NDArray[np.bool_], ys: NDArray[np.int64], xs: NDArray[np.int64]) -> list[Ring]:
    """The outline of connected cells (h, w), then their holes; grid lines at ``ys`` and ``xs``.

    Edges between a cell and the outside are followed in one direction. Where a walk meets itself in a corner it is cut
    in two, so that no ring touches itself.
    """
    padded = np.pad(inside, 1).astype(np.int8)
    after: dict[Point, list[Point]] = {}
    for axis in (0, 1):  # edges along x, then along y
        change = np.diff(padded, axis=axis)
        for y, x in np.argwhere(change[:, 1:-1] if axis == 0 else change[1:-1]).tolist():
            begins = (change[y, x + 1] if axis == 0 else change[y + 1, x]) > 0  # the cell lies below or to the right
            ends = [(x, y), (x + 1, y)] if axis == 0 else [(x, y + 1), (x, y)]
            start, stop = ends if begins else reversed(ends)
            after.setdefault(start, []).append(stop)
    rings = []
    while after:
        walk = [next(iter(after))]
        seen = {walk[0]: 0}
        while walk[-1] in after:
            point = after[walk[-1]].pop()
            if not after[walk[-1]]:
                del after[walk[-1]]
            if point not in seen:
                seen[point] = len(walk)
                walk.append(point)
                continue
            loop = walk[seen[point] :]
            rings.append([(int(xs[x]), int(ys[y])) for x, y in _corners([*loop, point])])
            for gone in loop[1:]:
                del seen[gone]
            del walk[seen[point] + 1 :]
    return sorted(rings, key=signed_area, reverse=True)  # the outline has the only positive area


def _corners(ring: Ring) -> Ring:
    """A closed ring without the points on straight lines."""
    points = ring[:-1]
    around = zip([points[-1], *points[:-1]], points, [*points[1:], points[0]], strict=True)
    kept = [b for a, b, c in around if (b[0] - a[0], b[1] - a[1]) != (c[0] - b[0], c[1] - b[1])]
    return [*kept, kept[0]]
