"""Hot regions: polygons that cover their patches and nothing else, in a file that other programs read."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.path import Path as Outline

import infsa
from infsa.cli import main
from infsa.streaming import Placement, find_regions, write_regions

from .helpers import picture, small

RING = ["....#", ".###.", ".#.#.", ".##..", "#...."]  # a C whose ends meet in a corner
FIGURES = {
    "hole": ["#####", "#.#.#", "#####", "#...#", "#####"],
    "corner": RING,
    "eight": ["###..", "#.###", "###.#", "..###", "....."],
    "one": ["#"],
    "all": ["##", "##"],
    "row": ["#.##.###"],
}


def cells(figure):
    return np.array([[character == "#" for character in line] for line in figure])


def shoelace(ring):
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in pairwise(ring)) / 2


def covered(region, placement):
    """The cells whose middle lies in a polygon, decided by matplotlib: inside the outline and in no hole."""
    ys, xs = (placement.edges(axis) for axis in (0, 1))
    middles = [((x0 + x1) / 2, (y0 + y1) / 2) for y0, y1 in pairwise(ys) for x0, x1 in pairwise(xs)]
    inside = [Outline(ring).contains_points(middles) for ring in region.rings]
    return (inside[0] & ~np.any(inside[1:], axis=0)).reshape(len(ys) - 1, len(xs) - 1)


def check(regions, hot, placement):
    """Closed rings that do not touch themselves, right areas, every hot cell once and no other."""
    ys, xs = (placement.edges(axis) for axis in (0, 1))
    times = np.zeros(hot.shape, int)
    for region in regions:
        for ring in region.rings:
            assert ring[0] == ring[-1]
            assert len(set(ring)) == len(ring) - 1 >= 4
            assert all(0 <= x <= placement.full[1] and 0 <= y <= placement.full[0] for x, y in ring)
        outline, *holes = map(shoelace, region.rings)
        assert outline > 0 > max(holes, default=-1)
        own = covered(region, placement)
        assert own.sum() == region.patches
        assert region.area == outline + sum(holes) == (np.outer(np.diff(ys), np.diff(xs)) * own).sum()
        times += own
    assert (times == hot).all()


@pytest.mark.parametrize("name", FIGURES)
def test_figures(name):
    hot = cells(FIGURES[name])
    size = hot.shape[0] * 8 - 3, hot.shape[1] * 8 - 5  # the last patches are cut off
    placement = Placement(size, size, (8, 8))
    regions = find_regions(hot.astype(np.float32), placement, share=1.0)
    check(regions, hot, placement)
    assert sum(region.share for region in regions) == pytest.approx(1)


def test_holes_are_rings_of_their_own():
    whole, corner = (cells(FIGURES[name]).astype(np.float32) for name in ("hole", "corner"))
    placement = Placement((5, 5), (5, 5), (1, 1))
    assert len(find_regions(whole, placement, 1.0)[0].rings) == 1 + 3
    found = find_regions(corner, placement, 1.0)
    assert [(region.patches, len(region.rings)) for region in found] == [(7, 2), (1, 1), (1, 1)]


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 9), st.floats(0.05, 1))
def test_any_map(seed, rows, columns, share):
    values = np.random.default_rng(seed).choice([0, 1, 1, 3, 7], (rows, columns)).astype(np.float32)
    placement = Placement((rows * 4, columns * 3), (rows * 10, columns * 3), (4, 3))  # a level, 2.5 times smaller
    regions = find_regions(values, placement, share, 1000)
    if not values.any():
        assert regions == []
        return
    levels = sorted(set(values[values > 0].tolist()), reverse=True)
    enough = next(v for v in levels if values[values >= v].sum() >= share * values.sum() * (1 - 1e-9))
    check(regions, values >= enough, placement)
    assert [region.rank for region in regions] == list(range(1, len(regions) + 1))
    shares = [region.share for region in regions]
    assert shares == sorted(shares, reverse=True)


def test_what_a_region_says_of_itself():
    values = np.zeros((4, 6), np.float32)
    values[1, 1:3], values[3, 5] = (3, 1), 4
    first, second = find_regions(values, Placement((32, 48), (32, 48), (8, 8)), 1.0)
    assert (first.patches, first.share, first.mean, first.max, first.area) == (2, 0.5, 6, 9, 128)
    assert (second.patches, second.share, second.mean, second.max, second.area) == (1, 0.5, 12, 12, 64)
    assert len(find_regions(values, Placement((32, 48), (32, 48), (8, 8)), 1.0, 1)) == 1


def test_a_stream_writes_what_viewers_import(tmp_path):
    """FeatureCollection, Polygon, the properties that QuPath reads, measurements as QuPath and napari take them."""
    result = infsa.stream(small(), picture(61, 45), tile=24, regions=tmp_path / "hot.geojson", region_share=0.5)
    read = json.loads((tmp_path / "hot.geojson").read_text(encoding="utf-8"))
    assert read["type"] == "FeatureCollection"
    regions = result.regions(0.5)
    assert [f["geometry"]["coordinates"] for f in read["features"]] == json.loads(
        json.dumps([region.rings for region in regions])
    )
    for rank, feature in enumerate(read["features"], 1):
        assert (feature["type"], feature["geometry"]["type"]) == ("Feature", "Polygon")
        told = feature["properties"]
        assert (told["objectType"], told["name"]) == ("annotation", f"Hot region {rank}")
        assert told["classification"]["name"] == "Attention"
        measured = {entry["name"]: entry["value"] for entry in told["measurements"]}
        assert measured["Attention rank"] == rank
        assert all(isinstance(value, int | float) for value in measured.values())
    placement = Placement((61, 45), (61, 45), (8, 8))
    threshold = min(result.map[covered(region, placement)].min() for region in regions)
    check(regions, result.map >= threshold, placement)
    infsa.stream(small(), picture(61, 45), regions=tmp_path / "hot.geojson")  # an older file of regions is replaced
    assert [path.name for path in tmp_path.iterdir()] == ["hot.geojson"]


def test_map_and_regions_take_one_pass(tmp_path):
    model, x = small(), picture()
    both = infsa.stream(model, x, tile=32, map=tmp_path / "map.zarr", regions=tmp_path / "hot.geojson")
    assert both.passes == infsa.stream(model, x, tile=32, map=True).passes
    assert both.regions() == infsa.stream(model, x, tile=32).regions()


def test_no_attention_no_regions(tmp_path):
    assert find_regions(np.zeros((3, 3), np.float32), Placement((3, 3), (3, 3), (1, 1))) == []
    write_regions(tmp_path / "none.geojson", [])
    assert json.loads((tmp_path / "none.geojson").read_text())["features"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regions": "hot.txt"}, r"regions must end in \.geojson, got hot\.txt"),
        ({"regions": "hot.geojson", "region_share": 0}, r"region_share must lie in \(0, 1\], got 0"),
        ({"regions": "hot.geojson", "region_count": 0}, "region_count must be 1 or more, got 0"),
        ({"regions": "hot.geojson", "state": "hot.geojson"}, "is given for two results"),
    ],
)
def test_wrong_requests_are_refused_before_any_work(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        infsa.stream(small(), picture(), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_kind_is_left_alone(tmp_path):
    other = tmp_path / "mine.geojson"
    other.write_text('{"type": "FeatureCollection", "features": []}')
    with pytest.raises(FileExistsError, match="is not a file of regions; overwrite=True replaces it"):
        infsa.stream(small(), picture(), regions=other)
    infsa.stream(small(), picture(), regions=other, overwrite=True)
    assert "infsa" in other.read_text()


def test_the_command_writes_both(tmp_path, monkeypatch, capsys):
    np.save(tmp_path / "image.npy", np.random.default_rng(0).integers(0, 256, (100, 130, 3), np.uint8))
    monkeypatch.chdir(tmp_path)
    wanted = ["--map", "map.ome.tif", "--regions", "hot.geojson", "--region-count", "3", "--json"]
    monkeypatch.setattr("sys.argv", ["infsa", "stream", "image.npy", *wanted])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["map"], record["regions"]) == ("map.ome.tif", "hot.geojson")
    assert 1 <= len(json.loads((tmp_path / "hot.geojson").read_text())["features"]) <= 3
    monkeypatch.setattr("sys.argv", ["infsa", "stream", "image.npy", "--region-share", "0.5"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "--region-share needs --regions" in capsys.readouterr().err
