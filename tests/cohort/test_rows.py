"""Every image has one row, and the row says what a plain loop over the images says."""

import io
import os
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms import functional as F

import infsa
from infsa.cohort import Settings, embed
from infsa.data import decode, transform_for
from infsa.data.decode import UnreadableImage
from infsa.data.tasks import Task, Tasks
from infsa.evaluate import data_config, load_model
from infsa.models import InfViT, describe_data, save_weights
from tests.cohort.conftest import NAMES, noise
from tests.models.helpers import small


def rows_of(path):
    return pq.read_table(path).to_pylist()


def plain(network, image, resolution="native"):
    """The class token, the mean of the patch tokens and the logits of one image, by the model's own functions."""
    if resolution == "crop":
        pixels = transform_for(data_config(network), train=False)(image, np.zeros((0, 4), np.float32))[0]
    else:
        config = data_config(network)
        pixels = F.normalize(F.to_tensor(image), config["mean"], config["std"])
        pixels = torch.nn.functional.pad(pixels, (0, -pixels.shape[2] % 8, 0, -pixels.shape[1] % 8))
    with torch.no_grad():
        tokens = network.forward_features(pixels[None])
        return tokens[0, 0], tokens[0, 1:].mean(0), network.forward_head(tokens)[0]


@pytest.mark.parametrize("resolution", ["native", "crop"])
def test_rows_are_those_of_a_plain_loop(folder, model, tmp_path, resolution):
    summary = embed(
        folder, model, tmp_path / "a.parquet", resolution=resolution, embedding="both", batch_size=3, readers=2
    )
    rows, files = rows_of(tmp_path / "a.parquet"), sorted(folder.iterdir())
    assert [row["path"] for row in rows] == [str(file) for file in files]
    assert (summary.rows, summary.failed, summary.computed) == (36, 6, 36)
    network = load_model(model)
    for row, file in zip(rows, files, strict=True):
        try:
            image = decode(file)
        except UnreadableImage:
            assert row["error"]
            assert row["logits"] is row["class_token"] is row["label"] is None
            continue
        token, pooled, logits = plain(network, image, resolution)
        assert row["error"] is None
        assert (row["width"], row["height"]) == image.size
        np.testing.assert_allclose(row["class_token"], token, atol=1e-5)
        np.testing.assert_allclose(row["pooled"], pooled, atol=1e-5)
        np.testing.assert_allclose(row["logits"], logits, atol=1e-5)
        assert row["label"] == NAMES[row["label_index"]] == NAMES[logits.argmax()]
        assert row["probability"] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)


def test_every_task_has_its_own_answer(tmp_path):
    noise(40, 24).save(tmp_path / "a.png")
    network, tasks = small(), Tasks([Task("season", ("summer", "winter")), Task("seen", ("cat", "dog", "eel"), True)])
    network.pretrained_cfg = {}
    describe_data(network, label_names=tasks.names, tasks=tasks.as_list())
    embed(tmp_path / "a.png", str(save_weights(network, tmp_path / "model")), tmp_path / "a.parquet")
    (row,) = rows_of(tmp_path / "a.parquet")
    logits = torch.tensor(row["logits"], dtype=torch.float64)
    season, seen = logits[:2].softmax(0), logits[2:].sigmoid()
    assert "label" not in row
    assert row["label_season"] == ("summer", "winter")[season.argmax()]
    assert row["label_index_seen"] == seen.argmax()
    assert row["label_seen"] == ("cat", "dog", "eel")[seen.argmax()]
    assert row["probability_season"] == pytest.approx(season.max().item(), abs=1e-6)
    assert row["probability_seen"] == pytest.approx(seen.max().item(), abs=1e-6)


def test_a_whole_image_at_the_models_size(model, tmp_path):
    """``model`` sees as many pixels as the number that the model was made for."""
    noise(90, 30).save(tmp_path / "a.png")
    side = min(load_model(model).patch_embed.img_size)
    found = []
    for number, resolution in enumerate(("model", side)):
        embed(tmp_path / "a.png", model, tmp_path / f"{number}.parquet", resolution=resolution)
        found.append(rows_of(tmp_path / f"{number}.parquet")[0]["logits"])
    assert found[0] == found[1]


def test_streaming_changes_nothing_but_rounding(model, tmp_path):
    for number, size in enumerate([(61, 43), (128, 72), (90, 90)]):
        noise(*size, number).save(tmp_path / f"{number}.png")
    options = {"embedding": "both", "maps": True, "tile": 32}
    embed(tmp_path, model, tmp_path / "a.parquet", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infsa.cohort.network.MAX_PIXELS", 3000)
        embed(tmp_path, model, tmp_path / "b.parquet", **options)
    for one, other in zip(rows_of(tmp_path / "a.parquet"), rows_of(tmp_path / "b.parquet"), strict=True):
        assert (one["streamed"], other["streamed"]) == (False, one["width"] * one["height"] > 3000)
        for name in ("class_token", "pooled", "logits", "map"):
            np.testing.assert_allclose(one[name], other[name], atol=1e-5, err_msg=name)
        assert (one["input_width"], one["map_height"]) == (other["input_width"], other["map_height"])
        assert sum(one["map"]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, ["class_token", "logits"]),
        ({"class_token": False}, ["pooled", "logits"]),
        ({"num_classes": 0}, ["class_token"]),
        ({"global_pool": "avg"}, ["class_token", "logits"]),
        ({"readout": "series"}, ["class_token", "logits"]),
        ({"paper_params": True}, ["class_token", "logits"]),
        ({"attention": "softmax"}, ["class_token", "logits"]),
        ({"attention": "mlla", "mlla_block": True}, ["class_token", "logits"]),
    ],
)
def test_every_kind_of_model_has_its_columns(options, columns, tmp_path):
    from tests.models.helpers import small

    noise(40, 24).save(tmp_path / "a.png")
    network = small(**options)
    embed(tmp_path / "a.png", network, tmp_path / "a.parquet")
    (row,) = rows_of(tmp_path / "a.parquet")
    assert {"class_token", "pooled", "logits"} & row.keys() == set(columns)
    if network.num_classes:
        assert row["logits"] == pytest.approx(plain(network, decode(tmp_path / "a.png"))[2].tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet10t"])
def test_models_of_timm_are_those_of_timm(name, tmp_path):
    torch.manual_seed(0)
    size = {"img_size": 32} if "vit" in name else {}
    made = timm.create_model(name, num_classes=3, **size).eval()
    for number in range(3):
        noise(40, 30 + number, number).save(tmp_path / f"{number}.png")
    embed(tmp_path, made, tmp_path / "a.parquet", resolution="crop", embedding="pooled")
    config = timm.data.resolve_model_data_config(made) | ({"input_size": (3, 32, 32)} if size else {})
    transform = transform_for(config, train=False)
    for number, row in enumerate(rows_of(tmp_path / "a.parquet")):
        pixels = transform(decode(tmp_path / f"{number}.png"), np.zeros((0, 4), np.float32))[0]
        with torch.no_grad():
            assert row["logits"] == pytest.approx(made(pixels[None])[0].tolist(), abs=1e-4)
            tokens = made.forward_features(pixels[None])
        pooled = tokens[:, 1:].mean(1) if tokens.dim() == 3 else made.forward_head(tokens, pre_logits=True)
        assert row["pooled"] == pytest.approx(pooled[0].tolist(), abs=1e-4)


def test_a_saved_folder_of_timm_opens_by_name(tmp_path):
    from timm.models import save_for_hf

    made = timm.create_model("resnet10t", num_classes=3).eval()
    save_for_hf(made, tmp_path / "saved", safe_serialization=True)
    noise(50, 34).save(tmp_path / "a.png")
    embed(tmp_path / "a.png", f"timm:{tmp_path / 'saved'}", tmp_path / "a.parquet")
    (row,) = rows_of(tmp_path / "a.parquet")
    assert (row["input_width"], row["input_height"]) == (64, 64)
    assert len(row["pooled"]) == made.num_features


def test_modes_of_pixels_and_orientation(model, tmp_path):
    photo = noise(40, 24)
    photo.save(tmp_path / "rgb.png")
    photo.convert("L").save(tmp_path / "grey.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 2**16, (24, 40), np.uint16)).save(tmp_path / "deep.png")
    photo.convert("RGBA").save(tmp_path / "alpha.png")
    photo.convert("P").save(tmp_path / "palette.gif")
    photo.convert("CMYK").save(tmp_path / "cmyk.jpg")
    turned = Image.Exif()
    turned[0x0112] = 6
    photo.save(tmp_path / "turned.jpg", exif=turned)
    embed(tmp_path, model, tmp_path / "a.parquet")
    network = load_model(model)
    for row in rows_of(tmp_path / "a.parquet"):
        image = decode(row["path"])
        assert (row["width"], row["height"]) == image.size
        assert row["logits"] == pytest.approx(plain(network, image)[2].tolist(), abs=1e-5)
    assert {tuple(decode(tmp_path / "turned.jpg").size)} == {(24, 40)}


def bomb(path, width, height):
    """A PNG that claims to be large and holds next to nothing."""
    buffer = io.BytesIO()
    Image.new("L", (1, 1)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    import zlib

    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("resolution", ["native", "crop", 32])
def test_hostile_files_are_rows_with_a_reason(model, tmp_path, resolution):
    place = tmp_path / "in"
    place.mkdir()
    noise(20, 20).save(place / "good.png")
    bomb(place / "bomb.png", 30_000, 30_000)
    bomb(place / "large.png", 9_000, 9_000)
    (place / "empty.jpg").write_bytes(b"")
    (place / "page.jpg").write_text("<html>")
    (place / "broken.tif").symlink_to("nowhere.tif")
    (place / "link.png").symlink_to("good.png")
    summary = embed(place, model, tmp_path / "a.parquet", resolution=resolution)
    rows = {os.path.basename(row["path"]): row for row in rows_of(tmp_path / "a.parquet")}
    assert summary.failed == 5
    assert {name for name, row in rows.items() if row["error"] is None} == {"good.png", "link.png"}
    assert rows["link.png"]["hash"] == rows["good.png"]["hash"]
    assert rows["broken.tif"]["error"] == "a broken link"
    assert all("\n" not in row["error"] and str(place) not in row["error"] for row in rows.values() if row["error"])


def test_names_of_any_bytes(model, tmp_path):
    names = [b"plain.png", b"new\nline.png", b"quote'\".png", b"\xff\xfe.png", "snow ☃.png".encode(), b"[a]*.png"]
    place = os.fsencode(tmp_path / "in")
    os.mkdir(place)
    for number, name in enumerate(names):
        with open(os.path.join(place, name), "wb") as file:
            noise(16, 16, number).save(file, "PNG")
    embed(tmp_path / "in", model, tmp_path / "a.parquet")
    rows = rows_of(tmp_path / "a.parquet")
    assert {row["path_bytes"] for row in rows} == {os.path.join(place, name) for name in names}
    assert not any(row["error"] for row in rows)
    assert sorted(os.listdir(tmp_path)) == ["a.parquet", "a.timings.parquet", "in"]
    again = embed([tmp_path / "in" / os.fsdecode(name) for name in names], model, tmp_path / "a.parquet")
    assert again.kept == len(names)


def test_tables_of_paths_and_ids(model, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        noise(16, 16, ord(name)).save(tmp_path / "in" / f"{name}.png")
    table = tmp_path / "in" / "list.csv"
    table.write_text("id,path,age\np1,a.png,3\np1,b.png,4\np2,../in/a.png\np1,a.png,3\np3,gone.png,1\np4,,2\n")
    summary = embed(table, model, tmp_path / "a.parquet")
    rows = rows_of(tmp_path / "a.parquet")
    assert [row["id"] for row in rows] == ["p1", "p1", "p2", "p3", "p4"]
    assert [row["error"] for row in rows] == [None, None, None, "no such file", "no path in line 7"]
    assert rows[0]["logits"] == pytest.approx(rows[2]["logits"], abs=1e-6)
    assert summary.repeated == 1
    table.write_text("id,file\n1,a.png\n")
    with pytest.raises(ValueError, match=r"must have a column 'path', got \['id', 'file'\]"):
        embed(table, model, tmp_path / "b.parquet")


def test_shards_are_read_where_they_lie(model, tmp_path):
    with tarfile.open(tmp_path / "s-0.tar", "w") as tar:
        for name, data in (("x/1.png", png(1)), ("x/1.cls", b"3"), ("../2.png", png(2)), ("3.jpg", b"broken")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    whole = (tmp_path / "s-0.tar").read_bytes()
    (tmp_path / "s-1.tar").write_bytes(whole[:700])
    embed(str(tmp_path / "s-{0..2}.tar"), model, tmp_path / "a.parquet")
    rows = rows_of(tmp_path / "a.parquet")
    assert [(row["id"], row["member"]) for row in rows[:3]] == [
        ("x/1", "x/1.png"),
        ("../2", "../2.png"),
        ("3", "3.jpg"),
    ]
    assert [row["error"] is None for row in rows[:3]] == [True, True, False]
    assert all(row["error"] for row in rows[2:])
    noise(16, 16, 1).save(tmp_path / "1.png")
    embed(tmp_path / "1.png", model, tmp_path / "b.parquet")
    assert rows[0]["logits"] == pytest.approx(rows_of(tmp_path / "b.parquet")[0]["logits"], abs=1e-6)
    assert not list(tmp_path.rglob("2.png"))


def png(seed):
    buffer = io.BytesIO()
    noise(16, 16, seed).save(buffer, "PNG")
    return buffer.getvalue()


def test_one_directory_entry_is_one_row(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    noise(16, 16).save("in/a.png")
    os.link("in/a.png", "in/b.png")
    summary = embed(["in", "in/a.png", "./in/../in/b.png", "in/*.png"], model, "a.parquet")
    assert [row["path"] for row in rows_of("a.parquet")] == ["in/a.png", "in/b.png"]
    assert summary.repeated == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"resolution": "middle"}, "resolution must be crop, model, native or a number of pixels, got 'middle'"),
        ({"embedding": "mean"}, "embedding must be one of"),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"memory": "much"}, "memory must be a size"),
    ],
)
def test_settings_are_checked(settings, words):
    with pytest.raises(ValueError, match=words):
        Settings(**settings)


def test_what_a_model_cannot_do_is_said_before_anything_runs(tmp_path):
    noise(16, 16).save(tmp_path / "a.png")
    fixed = InfViT(img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=4, dynamic_img_size=False)
    for made, options, words in (
        (fixed, {}, r"accepts only images of \(32, 32\)"),
        (timm.create_model("resnet10t"), {"maps": True}, "maps need an InfViT, got ResNet"),
        (timm.create_model("resnet10t"), {"embedding": "both"}, "no class token, got embedding='both'"),
        ("infvit_linear_tinny", {}, "no model called infvit_linear_tinny"),
        ("hf:ViT", {}, "no model called hf:ViT .*; convert the model of another library first"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            embed(tmp_path / "a.png", made, tmp_path / "a.parquet", **options)
    assert not list(tmp_path.glob("a.parquet*"))
    assert infsa.cohort.embed is embed
