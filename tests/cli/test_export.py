"""infsa export: files that compute what the model does at any size, and one line for every mistake."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import infsa
from infsa.evaluate import load_model
from infsa.models import describe_data, save_weights
from infsa.models.exporting import export_model
from tests.cli.test_cli import run
from tests.data.helpers import one_line
from tests.models.helpers import images, small

NAMES = ["ant", "bee", "cow", "dog", "eel"]
EVERY = ["batch", "height", "width"]
LIGHT = {"attention": "mean", "depth": 1, "embed_dim": 16, "num_heads": 1}  # quick to trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    made = infsa.create_model("infvit_linear_tiny", num_classes=5, img_size=32, depth=1, embed_dim=16, num_heads=2)
    describe_data(made, label_names=NAMES)
    return save_weights(made, tmp_path_factory.mktemp("export") / "model")


def test_onnx_runs_at_other_sizes_and_knows_its_classes(monkeypatch, capsys, folder, tmp_path):
    code, out, err = run(monkeypatch, capsys, "export", "-m", str(folder), "--out", str(tmp_path / "m.onnx"), "--json")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert (facts["format"], facts["dynamic"], facts["fixed"]) == ("onnx", EVERY, "")
    assert len({tuple(shape[2:]) for shape in facts["checked"]}) == 2
    assert {shape[0] for shape in facts["checked"]} == {1, 3}
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    model = load_model(folder)
    for x in (images(1, 32, 32), images(5, 16, 72)):
        (logits,) = session.run(["logits"], {"images": x.numpy()})
        np.testing.assert_allclose(logits, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    stored = {prop.key: json.loads(prop.value) for prop in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert stored["label_names"] == NAMES
    assert stored["input_size"] == [3, 32, 32]


def test_a_program_runs_at_other_sizes_without_this_package(folder, tmp_path, monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "export", "-m", str(folder), "--out", str(tmp_path / "m.pt2"))
    assert code == 0
    assert "batch, height, width" in out
    facts = {"infsa.json": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=facts)
    assert json.loads(json.loads(facts["infsa.json"])["label_names"]) == NAMES
    assert not [node for node in program.graph.nodes if "infsa" in str(node.target)]
    model = load_model(folder)
    for x in (images(1, 32, 32), images(5, 16, 72)):
        torch.testing.assert_close(program.module()(x), model(x))


def test_a_folder_is_read_again_and_other_files_stay(folder, tmp_path):
    done = export_model(load_model(folder), tmp_path / "copy")
    assert (done.format, done.dynamic, done.difference) == ("safetensors", EVERY, 0.0)
    (tmp_path / "copy" / "notes.txt").write_text("mine")
    (tmp_path / "copy" / "config.json").write_text("{}")
    export_model(load_model(folder), tmp_path / "copy", overwrite=True)
    assert (tmp_path / "copy" / "notes.txt").read_text() == "mine"
    assert torch.equal(load_model(tmp_path / "copy")(images()), load_model(folder)(images()))


def test_what_cannot_be_dynamic_is_said(tmp_path):
    done = export_model(small(dynamic_img_size=False, **LIGHT), tmp_path / "m.pt2")
    assert (done.dynamic, done.fixed) == (["batch"], "the model takes images of 32 × 32 only")
    assert sorted(done.checked) == [(1, 3, 32, 32), (3, 3, 32, 32)]
    done = export_model(small(**LIGHT), tmp_path / "fixed.pt2", fixed=True, size=48)
    assert (done.dynamic, done.checked) == ([], [(1, 3, 48, 48)])


def test_an_exporter_that_cannot_do_sizes_falls_back_and_says_why(tmp_path, monkeypatch):
    export = torch.export.export

    def refusing(model, arguments, dynamic_shapes=None):
        if dynamic_shapes is not None and len(dynamic_shapes[0]) > 1:
            raise RuntimeError("sides must\nbe constant")
        return export(model, arguments, dynamic_shapes=dynamic_shapes)

    monkeypatch.setattr(torch.export, "export", refusing)
    done = export_model(small(**LIGHT), tmp_path / "m.pt2")
    assert (done.dynamic, done.fixed) == (["batch"], "sides must be constant")


def test_a_file_that_does_not_agree_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("infsa.models.exporting.TOLERANCE", -1.0)
    for name in ("m.pt2", "folder"):
        with pytest.raises(ValueError, match=one_line("logits differ")):
            export_model(small(**LIGHT), tmp_path / name, fixed=name == "m.pt2")
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_it_is_said(tmp_path, monkeypatch):
    find = infsa.models.exporting.importlib.util.find_spec
    monkeypatch.setattr(
        "infsa.models.exporting.importlib.util.find_spec", lambda name: None if name == "onnxruntime" else find(name)
    )
    done = export_model(small(**LIGHT), tmp_path / "m.onnx", fixed=True)
    assert (done.checked, "not compared" in done.note) == ([], True)
    monkeypatch.setattr("infsa.models.exporting.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=one_line(r"pip install '\.\[export\]' in a checkout")):
        export_model(small(), tmp_path / "n.onnx")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-m", "MODEL"], "--out"),
        (["-m", "nowhere", "--out", "m.onnx"], "nowhere"),
        (["-m", "vit_4l16h_patch16_224", "--out", "m.onnx"], "no weights are shipped"),
        (["-m", "MODEL", "--out", "m.engine"], "'m.engine'"),
        (["-m", "MODEL", "--out", "m.onnx", "--format", "coreml"], "'coreml'"),
        (["-m", "MODEL", "--out", "m.onnx", "--format", "pt2"], "asks for onnx"),
        (["-m", "MODEL", "--out", "nowhere/m.onnx"], "no folder nowhere"),
        (["-m", "MODEL", "--out", "there.onnx"], "exists already; replace"),
        (["-m", "MODEL", "--out", "full"], "files that are not of a saved model"),
        (["-m", "MODEL", "--out", "full", "--format", "onnx"], "got the folder"),
        (["-m", "MODEL", "--out", "there.onnx", "--format", "safetensors"], "asks for onnx"),
        (["-m", "MODEL", "--out", "plain", "--format", "safetensors", "--overwrite"], "got the file"),
        (["-m", "MODEL", "--out", "m.onnx", "--image-size", "64"], "--fixed"),
        (["-m", "MODEL", "--out", "m.onnx", "--fixed", "--image-size", "33"], "multiples of the patch"),
        (["-m", "MODEL", "--out", "m.onnx", "--fixed", "--image-size", "0"], "got 0"),
        (["-m", "MODEL", "--out", "new", "--fixed"], "safetensors hold weights"),
        (["-m", "MODEL", "--out", "m.onnx", "--opset", "9"], "--opset"),
    ],
)
def test_mistakes_are_one_line_and_lose_nothing(words, reason, monkeypatch, capsys, folder, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.onnx").write_text("mine")
    (tmp_path / "plain").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(monkeypatch, capsys, "export", *(str(folder) if word == "MODEL" else word for word in words))
    assert (code in (1, 2), out) == (True, "")
    assert err.startswith("infsa: ")
    assert err.count("\n") == 1
    assert reason in err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.onnx").read_text() == (tmp_path / "plain").read_text() == "mine"


def test_help_has_an_example(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "export", "--help")
    assert code == 0
    assert "Example: infsa export" in " ".join(out.split())
