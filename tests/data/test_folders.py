"""Class folders as people have them: every format that Pillow reads, and what lies beside the images."""

import os

import pytest
from PIL import Image

from infsa.data import ImageFolder, open_dataset
from infsa.data.paths import few, image_endings, in_order, is_image, shown
from infsa.data.skipping import left_out_note

from .helpers import one_line, write_image

FORMATS = ["jpg", "JPEG", "png", "WebP", "tif", "TIFF", "bmp", "gif", "ppm", "jp2", "ico", "tga"]


def photos(root, classes=("cat", "dog"), names=("0.png", "1.png")):
    for label in classes:
        for name in names:
            write_image(root / label / name)
    return root


def test_every_format_that_pillow_writes_and_reads_counts(tmp_path):
    for ending in FORMATS:
        write_image(tmp_path / "cat" / f"0.{ending}", size=(16, 16))
    folder = ImageFolder(tmp_path)
    assert sorted(folder.names) == sorted(f"cat/0.{ending}" for ending in FORMATS)
    assert all(sample.image.size == (16, 16) for sample in folder)
    assert (len(folder.skipped), folder.left_out) == (0, [])


def test_endings_are_those_whose_pixels_pillow_decodes():
    assert {".jpg", ".png", ".webp", ".tif", ".bmp", ".gif"} <= image_endings()
    assert not {".pdf", ".mpg", ".h5", ".txt", ""} & image_endings()
    assert is_image("a.b.JPG")
    assert not is_image(".hidden.jpg")


def test_what_is_no_image_is_left_out_and_named(tmp_path):
    photos(tmp_path)
    for name in ("cat/notes.txt", "dog/film.MP4", "labels.csv", "dog/noending"):
        (tmp_path / name).write_text("x")
    write_image(tmp_path / "beside.png")
    for name in (".DS_Store", "cat/._0.png", "cat/.hidden/0.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "cat" / "pipe.png")  # reading it would never end
    (tmp_path / "dog" / "empty").mkdir()
    folder = ImageFolder(tmp_path)
    assert list(folder.names) == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    assert sorted(folder.left_out) == sorted(
        ["cat/notes.txt", "cat/pipe.png", "dog/empty", "dog/film.MP4", "dog/noending", "labels.csv", "beside.png"]
    )
    line = left_out_note(folder)
    assert line.startswith("7 files left out")
    assert line.endswith("and 4 more")
    assert left_out_note(ImageFolder(photos(tmp_path / "other"))) == ""


def test_links_are_followed_and_broken_ones_skipped(tmp_path):
    photos(tmp_path / "photos")
    (tmp_path / "photos" / "eel").symlink_to(tmp_path / "photos" / "cat")
    (tmp_path / "photos" / "cat" / "2.png").symlink_to(tmp_path / "photos" / "dog" / "0.png")
    (tmp_path / "photos" / "dog" / "9.png").symlink_to(tmp_path / "nowhere.png")
    folder = ImageFolder(tmp_path / "photos")
    assert folder.classes == ["cat", "dog", "eel"]
    assert len([sample.name for sample in folder]) == len(folder) == 9
    assert folder.skipped.names == ["dog/9.png"]


@pytest.mark.parametrize("linked", [False, True])
def test_images_deeper_are_refused_with_the_whole_path(tmp_path, linked):
    photos(tmp_path / "photos")
    inner = tmp_path / "photos" / "dog" / "puppies"
    if linked:
        inner.symlink_to(tmp_path / "photos")  # a loop
    else:
        write_image(inner / "new" / "0.png")
    with pytest.raises(ValueError, match=one_line(f"got some in 'puppies' .{inner}")):
        ImageFolder(tmp_path / "photos")


def test_classes_that_are_called_like_splits(tmp_path):
    photos(tmp_path, ("car", "train", "test"))
    for folder in (ImageFolder(tmp_path), open_dataset(f"folder:{tmp_path}")):
        assert folder.classes == ["car", "test", "train"]


@pytest.mark.parametrize(("names", "message"), [(("train", "val"), "must hold a folder per class, got images")])
def test_splits_without_classes_are_refused(tmp_path, names, message):
    photos(tmp_path, names)
    with pytest.raises(ValueError, match=one_line(message)):
        ImageFolder(tmp_path)


def test_splits_are_no_classes(tmp_path):
    for split in ("train", "val"):
        photos(tmp_path / split)
    with pytest.raises(ValueError, match=one_line("holds the splits train, val: name one")):
        ImageFolder(tmp_path)


ODD = ["a b", "été", "[red]x[bold", "50%", "$5 $6", "-out", "two\nlines", "'quoted\"", os.fsdecode(b"latin\xe9"), "#1"]


def test_odd_names_are_classes_like_others(tmp_path):
    photos(tmp_path, ODD, names=("x y.png", "\n.png", os.fsdecode(b"\xff.png")))
    folder = ImageFolder(tmp_path)
    assert folder.classes == in_order(ODD)
    assert len([sample.label for sample in folder]) == 3 * len(ODD)
    assert len(folder.skipped) == 0
    for name in (*folder.classes, *folder.names):
        assert shown(name).isprintable()
        shown(name).encode()


def test_order_does_not_depend_on_the_case_of_names():
    names = ["b", "B", "10", "9", "a2", "a10", "A2"]
    assert in_order(names) == in_order(reversed(names)) == ["9", "10", "A2", "a2", "a10", "B", "b"]


def test_few_names_of_many():
    assert few(["a"]) == "a"
    assert few(["a", "b", "c"]) == "a, b, c"
    assert few(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_an_animation_counts_once(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    (tmp_path / "cat").mkdir()
    frames[0].save(tmp_path / "cat" / "0.gif", save_all=True, append_images=frames[1:])
    folder = ImageFolder(tmp_path)
    assert len(folder) == 1
    assert folder[0].image.getpixel((0, 0)) == (255, 0, 0)
