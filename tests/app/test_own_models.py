"""Own models on the page: by name, with their own classes, sizes and depth; refused in one line before it starts."""

import sys

import pytest
import torch

import infsa
from infsa.app import handlers, model_cache
from infsa.app.gigapixel import stream_scene
from infsa.app.html import show_scene
from infsa.app.look import look
from infsa.cli.app import main
from infsa.models import save_weights
from infsa.models.weights import describe_data

from .helpers import photograph

BIRDS = ["robin", "wren", "<b>owl</b>"]


@pytest.fixture
def shelf_of_its_own(monkeypatch):
    for name in ("_SOURCES", "_MODELS"):
        monkeypatch.setattr(model_cache, name, dict(getattr(model_cache, name)))


def saved(folder, **options):
    torch.manual_seed(1)
    small = {"num_classes": 3, "img_size": 32, "depth": 2, "attention": "infsa_linear", **options}
    model = infsa.create_model("infvit_linear_tiny", **small)
    describe_data(model, label_names=BIRDS[: model.num_classes])
    return save_weights(model, folder)


def settings(name, side="32 px, as trained", head=handlers.MEAN):
    return handlers.settings_of(name, 2, head, "Class token's row", 0.7, "All", side)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_an_own_model_is_shown_with_its_classes(shelf_of_its_own, tmp_path, kind):
    folder = saved(tmp_path / "birds")
    model_cache.add([f"mine={folder if kind == 'folder' else folder / 'model.safetensors'}"])
    assert model_cache.names() == ["mine", *model_cache.MECHANISMS]
    assert model_cache.sizes("mine") == (2, 12)
    assert list(handlers.sides("mine")) == ["32 px, as trained", "64 px"]
    found = look(photograph(), settings("mine", "64 px"))
    assert {label for label, _ in found.explanation.predictions} == set(BIRDS)
    assert found.explanation.size == found.others["mine"].size
    assert found.others["softmax"].size[0] > 64  # enlarged as well
    shown = handlers.map_tab(photograph(), settings("mine"), "Class token's row")
    assert "mine predicts" in shown
    assert "50 classes" not in shown
    assert "<b>owl" not in shown
    assert "All rows of this graph are equal" in handlers.graph_tab(photograph(), settings("mine"), "Class token")
    assert handlers.curves_of(photograph(), settings("mine")).removal.label in BIRDS


def test_without_a_class_token_walks_start_at_the_highest_patch(shelf_of_its_own, tmp_path):
    model_cache.add([str(saved(tmp_path / "mean", class_token=False, global_pool="avg"))])
    assert "has no class token" in handlers.graph_tab(photograph(), settings("mean"), "Class token")


def test_an_own_linear_model_streams(shelf_of_its_own, tmp_path):
    model_cache.add([str(saved(tmp_path / "linear")), str(saved(tmp_path / "pure", attention="infsa_pure"))])
    assert model_cache.streamed() == ["linear", "Linear-InfSA"]
    photograph(100, 70).save(tmp_path / "large.png")
    scene = stream_scene(tmp_path / "large.png", mechanism="linear")
    assert {label for label, _ in scene.predictions} == set(BIRDS)
    assert "linear predicts for the whole image" in show_scene(scene)


@pytest.mark.parametrize(
    ("options", "words", "message"),
    [
        ({}, ["nowhere/at/all"], "no model called nowhere/at/all and no weights there"),
        ({}, ["{folder}", "{folder}"], "every checkpoint needs a name of its own, got 'own' twice"),
        ({}, ["softmax={folder}"], "every checkpoint needs a name of its own, got 'softmax' twice"),
        ({"num_classes": 0}, ["{folder}"], "has no classes"),
        ({"attention": "fastformer"}, ["{folder}"], "cannot be shown on the page"),
    ],
    ids=["missing", "twice", "taken", "classless", "mapless"],
)
def test_what_cannot_be_shown_is_refused_before_the_page_starts(
    shelf_of_its_own, monkeypatch, capsys, tmp_path, options, words, message
):
    pytest.importorskip("gradio")
    folder = saved(tmp_path / "own", **options)
    chosen = [word for path in words for word in ("--model", path.format(folder=folder))]
    monkeypatch.setattr(sys, "argv", ["infsa", "app", *chosen])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_page_has_the_controls_of_every_model(shelf_of_its_own, tmp_path):
    pytest.importorskip("gradio")
    gradio_client = pytest.importorskip("gradio_client")
    from infsa.app.page import serve

    page, address = serve(checkpoints=[f"mine={saved(tmp_path / 'birds')}"])
    try:
        client = gradio_client.Client(address, verbose=False, analytics_enabled=False)
        client.predict("Portrait", api_name="/choose")
        heads, layer, side = client.predict("mine", api_name="/heads")
        assert (len(heads["choices"]), layer["maximum"], side["value"]) == (13, 2, "32 px, as trained")
        shown = client.predict("Class token", "TokenRank", "mine", 2, "12", 0.7, "All", side["value"], api_name="/show")
        assert "mine predicts" in shown[0]
    finally:
        page.close()
