"""Where results may be written: nothing of a user's is replaced unless that is asked for.

A result replaces an older one of its own kind, told by a mark inside the file.
"""

import os
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from .readers import needed
from .scene import check_code_path

MARK = "infsa"  # in the software field of maps and their overviews
REGIONS_MARK = f'{{"type": "FeatureCollection", "generator": "{MARK}"'  # how a file of regions begins


def check_outputs(
    image: str,
    map: Path | None,
    code: Path | None,
    state: Path | None,
    regions: Path | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Refuse, before any work, files that could not be written or that would replace something else.

    Args:
        image: name of the source.
        map: ``.ome.tif``, ``.tif``, ``.tiff`` or ``.zarr``, with an overview beside it.
        code: ``.safetensors``.
        state: any name; a state of another stream is refused when it is read.
        regions: ``.geojson``.
        overwrite: replace files that are no such results.
    """
    if map is not None:
        check_map_path(map, image, overwrite)
        if map.suffix != ".zarr":
            needed("tifffile", "tifffile", f"writing {map.name}")
    if code is not None:
        check_place(code, image)
        check_code_path(code, overwrite)
    if state is not None:
        check_place(state, image)
    if regions is not None:
        if regions.suffix.lower() != ".geojson":
            raise ValueError(f"regions must end in .geojson, got {regions.name}")
        check_place(regions, image)
        refuse_existing(regions, "a file of regions", _is_regions, overwrite)
    overview = None if map is None else map.with_suffix(".png")
    named = [place.resolve() for place in (map, overview, code, state, regions) if place is not None]
    for place in named:
        if named.count(place) > 1:
            raise ValueError(f"{place} is given for two results")


def check_place(path: Path, image: str) -> None:
    """Refuse a file that could not be written or that would replace the image."""
    if path.is_dir():
        raise ValueError(f"{path} must be a file, got a folder")
    _check_not_image(path, image)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path.parent} cannot be written to")


def _check_not_image(path: Path, image: str) -> None:
    """Refuse the image itself, and a folder that the image lies in."""
    if not path.exists() or not Path(image).exists():
        return
    around = Path(image).resolve().parents if path.is_dir() else ()
    if any(path.samefile(place) for place in (Path(image), *around)):
        raise ValueError(f"{path} is the image itself")


def check_map_path(path: Path, image: str, overwrite: bool = False) -> None:
    """Refuse a place where no map can be written, or where it or its overview would replace something else."""
    if path.suffix not in (".tif", ".tiff", ".zarr"):
        raise ValueError(f"a map must end in .tif, .tiff or .zarr, got {path.name}")
    overview = path.with_suffix(".png")
    if path.suffix == ".zarr" and path.is_dir():
        _check_not_image(path, image)
        overwrite_map = overwrite and any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))
        refuse_existing(path, "a map", _is_zarr_map, overwrite_map)
    else:
        check_place(path, image)
        refuse_existing(path, "a map", _is_tiff_map, overwrite)
    check_place(overview, image)
    refuse_existing(overview, f"the overview of {path.name}", _is_overview, overwrite)


def refuse_existing(path: Path, kind: str, ours: Callable[[Path], bool], overwrite: bool) -> None:
    """Refuse to replace a file that is not of a kind, unless that is asked for."""
    if path.exists() and not overwrite and not ours(path):
        raise FileExistsError(f"{path} exists already and is not {kind}; overwrite=True replaces it")


def _is_tiff_map(path: Path) -> bool:
    tifffile = needed("tifffile", "tifffile", f"writing {path.name}")
    try:
        with tifffile.TiffFile(path) as file:
            return bool(file.pages[0].software == MARK)
    except Exception:  # anything but a TIFF raises almost anything
        return False


def _is_zarr_map(path: Path) -> bool:
    zarr = needed("zarr", "zarr", f"writing {path.name}")
    try:
        return bool(zarr.open_array(str(path), mode="r").attrs.get("software") == MARK)
    except Exception:  # anything but a Zarr array raises almost anything
        return False


def _is_regions(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(REGIONS_MARK)) == REGIONS_MARK.encode()


def _is_overview(path: Path) -> bool:
    try:
        with Image.open(path) as picture:
            return picture.info.get("Software") == MARK
    except (OSError, ValueError):
        return False
