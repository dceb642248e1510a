"""Pictures that come and go: what is taken, what is refused, and in which words."""

import base64
import inspect
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infsa.app import examples, handlers
from infsa.app.gigapixel import MAX_MEGAPIXELS
from infsa.app.html import card
from infsa.app.look import Settings
from infsa.app.pictures import KEPT, LARGER, data_uri, read_picture
from infsa.app.removal import LEVELS
from infsa.cli.explore import explore
from infsa.data import UnreadableImage
from infsa.data.decode import MAX_PIXELS

from .helpers import photograph, promise


def test_examples_are_real_files():
    assert "Portrait" in examples()
    for path in (examples() | examples(LARGER)).values():
        assert read_picture(path).mode == "RGB"


@pytest.mark.parametrize(("width", "height"), [(32768, 32768), (10000, 8000)])  # beyond Pillow's limit, beyond ours
def test_large_pictures_are_refused_by_their_header(tmp_path, width, height):
    with pytest.raises(UnreadableImage, match="more than the 67 megapixels") as caught:
        read_picture(promise(tmp_path / "huge.png", width, height))
    assert "\n" not in str(caught.value)


def test_bad_files_are_named(tmp_path):
    file = tmp_path / "notes.jpg"
    file.write_text("no picture")
    with pytest.raises(UnreadableImage, match=r"^notes\.jpg: not an image"):
        read_picture(file)


def test_what_is_kept_is_bounded(tmp_path):
    photograph(2 * KEPT, 40).save(tmp_path / "wide.png")
    assert read_picture(tmp_path / "wide.png").size == (KEPT, 20)


def test_data_uris_hold_the_picture():
    picture = photograph()
    decoded = Image.open(io.BytesIO(base64.b64decode(data_uri(picture).partition(",")[2])))
    assert (np.asarray(decoded) == np.asarray(picture)).all()


def test_names_cannot_write_html():
    assert "<script" not in card("data:", "<script>", "<script>", "<script>")
    assert handlers.one_line(ValueError("a\n<b>")) == "a &lt;b&gt;"


def test_files_of_equal_names_are_told_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "slide.tif").touch()
    files = [tmp_path / "a" / "slide.tif", tmp_path / "b" / "slide.tif"]
    assert handlers.named_files(files) == {"slide.tif": files[0], "slide.tif (2)": files[1]}
    with pytest.raises(FileNotFoundError, match="no such file"):
        handlers.named_files([Path("missing.tif")])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (1, 0, "layer must be"),
        (1, None, "layer must be"),
        (2, "first", "head must be"),
        (3, "magic", "method must be one of"),
        (4, 1, "γ must lie"),
        (5, "0", "hops must be one of"),
        (6, "9 px", "resolution must be one of"),
    ],
)
def test_odd_controls_are_refused(place, value, message):
    controls = ["softmax", 6, handlers.MEAN, "TokenRank", 0.7, "All", "64 px, as trained"]
    assert handlers.settings_of(*controls).layer == 5
    controls[place] = value
    with pytest.raises(ValueError, match=message):
        handlers.settings_of(*controls)


@pytest.mark.parametrize(
    ("mechanism", "start", "size"),
    [
        ("Pure InfSA", "Class token", (96, 64)),
        ("Linear-InfSA", "Highest patch of the map", (64, 96)),
        ("softmax", "Middle patch", (96, 64)),
    ],
)
def test_the_graph_is_drawn_for_every_mechanism_and_start(mechanism, start, size):
    settings = handlers.settings_of(mechanism, 6, handlers.MEAN, "TokenRank", 0.7, "2", "64 px, as trained")
    assert "spectral radius" in handlers.graph_tab(photograph(*size), settings, start)


def test_what_cannot_be_shown_is_told():
    assert "Choose a picture first" in handlers.removal_tab(None, 5)
    with pytest.raises(ValueError, match="start must be one of"):
        handlers.graph_tab(photograph(), Settings(), "nowhere")


def test_the_guide_states_the_limits_that_hold():
    guide = (Path(__file__).parents[2] / "docs" / "app.md").read_text(encoding="utf-8")
    assert f"up to {MAX_PIXELS / 1e6:.0f} megapixels" in guide
    assert f"up to {MAX_MEGAPIXELS} megapixels" in guide
    assert f"{LEVELS} steps" in guide
    assert inspect.signature(explore).parameters["max_megapixels"].default == MAX_MEGAPIXELS
