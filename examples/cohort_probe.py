"""What a table of embeddings is for: a linear probe, and a page of nearest neighbours.

    infsa embed photos/ --out cohort.parquet
    python examples/cohort_probe.py cohort.parquet --page neighbours.html

The class of an image is the folder that it lies in. The probe is a logistic regression on frozen embeddings, with the
accuracy of five folds; neighbours are nearest by cosine.
"""

import argparse
import base64
import html
import io
import os
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize


def main() -> None:
    """Read a table, print the accuracy of a probe, write a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--column", default="class_token", help="class_token or pooled")
    parser.add_argument("--page", type=Path, help="an HTML file for the neighbours")
    parser.add_argument("--shown", type=int, default=12, help="images on the page")
    options = parser.parse_args()
    table = pd.read_parquet(options.table)
    table = table[table["error"].isna()].reset_index(drop=True)
    vectors = np.stack(table[options.column].to_list())  # (images, D)
    files = [os.fsdecode(path) for path in table["path_bytes"]]
    print(f"{len(table)} images, {vectors.shape[1]} numbers each")
    classes = np.array([os.path.basename(os.path.dirname(file)) for file in files])
    print(f"linear probe: {accuracy(vectors, classes):.1%} of {len(set(classes))} classes")
    if options.page:
        options.page.write_text(page(files, neighbours(vectors), options.shown), encoding="utf-8")
        print(f"wrote {options.page}")


def accuracy(vectors: np.ndarray, classes: np.ndarray) -> float:
    """The share of right classes, each image classified by a probe that has not seen it."""
    rarest = np.unique(classes, return_counts=True)[1].min()
    if len(set(classes)) < 2 or rarest < 2:
        raise SystemExit("a probe needs two classes (folders) or more, of two images or more each")
    folds = StratifiedKFold(min(5, int(rarest)), shuffle=True, random_state=0)
    probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    return float(cross_val_score(probe, vectors, classes, cv=folds).mean())


def neighbours(vectors: np.ndarray, count: int = 5) -> np.ndarray:
    """The nearest other images of each by cosine, (images, count)."""
    unit = normalize(vectors)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1)[:, : min(count, len(vectors) - 1)]


def page(files: list[str], nearest: np.ndarray, shown: int) -> str:
    """Images with their neighbours beside them, in one file."""
    rows = []
    for number in np.linspace(0, len(files) - 1, min(shown, len(files))).astype(int):
        cells = [f"<td>{picture(files[place])}</td>" for place in (number, *nearest[number])]
        rows.append("<tr>" + "".join(cells) + "</tr>")
    style = "body{font-family:sans-serif} td:first-child{border-right:2px solid #888}"
    head = "<!doctype html><meta charset='utf-8'><title>Neighbours</title>"
    return f"{head}<style>{style}</style><h1>Nearest by cosine</h1><table>{''.join(rows)}</table>\n"


def picture(file: str) -> str:
    """A small picture with the file's name, which may be any text."""
    name = html.escape(os.fsencode(os.path.basename(file)).decode("utf-8", "backslashreplace"), quote=True)
    data = io.BytesIO()
    with Image.open(file) as image:
        image.thumbnail((96, 96))
        image.convert("RGB").save(data, "JPEG")
    return f"<img title='{name}' src='data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}'>"


if __name__ == "__main__":
    main()
