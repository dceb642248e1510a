"""The multiple-instance baseline of a cohort: tiles embedded one by one, and their mean for every image.

    infsa embed slides/ --out whole.parquet
    python examples/cohort_tiles.py slides/*.tif --side 256 --out tiles.parquet

The result has the columns id, path and class_token as the table of whole images has them, so that a probe on either
(examples/cohort_probe.py) compares the two. Tiles are cut without overlap and without their edges; the table of single
tiles is kept beside the result, so that a killed run goes on.
"""

import argparse
import csv
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

import infsa
from infsa.streaming import open_source


def main() -> None:
    """Cut, embed, average."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--model", default="infvit_linear_tiny")
    parser.add_argument("--side", type=int, default=256, help="of the tiles in pixels")
    parser.add_argument("--out", type=Path, default=Path("tiles.parquet"))
    parser.add_argument("--tiles", type=Path, help="folder for the tiles; a temporary one if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.tiles or Path(scratch)
        each = options.out.with_suffix(".each.parquet")
        infsa.cohort.embed(cut(options.images, folder, options.side), options.model, each, overwrite=True)
        mean(each).to_parquet(options.out)
    print(f"wrote {options.out}")


def cut(images: list[Path], folder: Path, side: int) -> Path:
    """Every whole tile as a PNG, and a table of them: the id is the image that a tile comes from."""
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "tiles.csv"
    with table.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "path"])
        for number, image in enumerate(images):
            source = open_source(image)
            for top in range(0, source.height - side + 1, side):
                for left in range(0, source.width - side + 1, side):
                    tile = folder / f"{number}-{top}-{left}.png"
                    if not tile.exists():
                        pixels = np.asarray(source.read(top, left, top + side, left + side))
                        Image.fromarray(pixels.squeeze()).save(tile)
                    rows.writerow([image, tile.name])
    return table


def mean(each: Path) -> pd.DataFrame:
    """The mean embedding of the tiles of every image."""
    table = pd.read_parquet(each)
    table = table[table["error"].isna()]
    rows = [
        {"id": name, "path": name, "path_bytes": os.fsencode(name), "error": None, "tiles": len(tiles),
         "class_token": np.stack(tiles["class_token"].to_list()).mean(0)}
        for name, tiles in table.groupby("id", sort=False)
    ]  # fmt: skip
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main()
