"""Weights from strangers: a header chooses from closed lists, everything else is refused by name, in one line."""

import inspect
import json
import math
import random
import struct

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import infsa
from infsa.evaluate.subjects import load_model
from infsa.models import InfViT, load_weights, read_weights, save_weights
from infsa.models.header import ARGUMENTS, DATA, LARGEST_HEADER, MECHANISM_OPTIONS
from infsa.nn.peers import ATTENTIONS
from infsa.nn.peers.registry import attention_options

from ..traps import loaded_or_refused, traps  # noqa: F401
from .helpers import SMALL, small

TINY = "infvit_linear_tiny"
HUGE = (10**9, 10**18, -1, 0, 2.5, True, None, "x", [], [1, 2, 3], {}, {"a": 1}, math.nan, math.inf, "../../etc/passwd")


@pytest.fixture
def file(tmp_path):
    """A small model's weights, to which headers are given."""
    save_weights(small(), tmp_path / "model")
    return tmp_path / "model" / "model.safetensors"


def header_of(file):
    with safe_open(file, framework="pt") as handle:
        return {name: json.loads(text) for name, text in handle.metadata().items() if name != "format"}


def with_header(file, name="hostile.safetensors", texts=None, **entries):
    """The same tensors with other entries in the header."""
    texts = {key: json.dumps(value) for key, value in entries.items()} | (texts or {})
    save_file(load_file(file), file.parent / name, {"format": "pt", **texts})
    return file.parent / name


def refused(file, match="."):
    """Every way in refuses the file with a ValueError of one line."""
    ways = (
        lambda: load_model(file),
        lambda: infsa.create_model("infvit_linear_4l64h_patch16_224", pretrained=file),
    )
    for way in ways:
        with pytest.raises(ValueError, match=match) as caught:
            way()
        line = str(caught.value)
        assert len(line) < 900
        assert line.isprintable()


def names_of_others():
    """Arguments of everything between a header and a model, and attributes that would be dangerous as names."""
    functions = (timm.create_model, timm.models.build_model_with_cfg, timm.models.load_pretrained, torch.load, open)
    found = {name for function in functions for name in inspect.signature(function).parameters}
    found |= set(timm.models.PretrainedCfg.__dataclass_fields__)
    found |= {"device", "dtype", "self", "__class__", "__init__", "__reduce__", "kwargs", "trust_remote_code", "", "\n"}
    return sorted(found - ARGUMENTS.keys() - {"architecture"})


def test_the_table_is_the_signature():
    assert ARGUMENTS.keys() == inspect.signature(InfViT).parameters.keys() - {"device", "dtype"}
    follows = {"gamma", "learn_gamma", "activation", "dropout", "extra_proj", "device", "dtype"}
    own = {option for name in ATTENTIONS for option in attention_options(name)}
    assert MECHANISM_OPTIONS.keys() == own - follows


def test_every_other_name_is_refused(file, traps):  # noqa: F811
    known = header_of(file)
    for name in names_of_others():
        for value in ("x", {"file": str(traps / "evil.pth"), "url": "http://127.0.0.1/x"}):
            refused(with_header(file, infsa={**known["infsa"], name: value}), "which a file may not choose")
        if name not in DATA:
            refused(with_header(file, infsa=known["infsa"], data={name: "x"}), "which a file may not choose")
        if name not in ("infsa", "data", "format", "conversion"):
            refused(with_header(file, infsa=known["infsa"], texts={name: "x"}), "which a file may not choose")
    options = known["infsa"] | {"attention_options": {"device": "cuda"}}
    refused(with_header(file, infsa=options), "attention_options asks for 'device'")


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_headers_are_refused_or_load_what_they_say(file, seed, traps):  # noqa: F811
    known, chance = header_of(file), random.Random(seed)
    for _ in range(50):
        entry = chance.choice(["infsa", "infsa", "infsa", "data"])
        rules = ARGUMENTS | {"architecture": None} if entry == "infsa" else DATA
        name = chance.choice([*rules, *names_of_others()])
        value = chance.choice(HUGE)
        hostile = with_header(file, **{**known, entry: {**known[entry], name: value}})
        model = loaded_or_refused(lambda hostile=hostile: load_model(hostile))
        weights = load_file(file)
        assert model is None or all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("depth", 10**9, "depth must be a whole number from 1 to 1024, got 1000000000"),
        ("depth", 1000, "cannot be built: more than"),
        ("embed_dim", 10**9, "embed_dim must be"),
        ("embed_dim", 65536, "misshapen"),
        ("img_size", 10**9, "img_size must be"),
        ("img_size", 16384, "misshapen: pos_embed"),
        ("attention_grid", [10**9, 1], "attention_grid must be"),
        ("mlp_ratio", 1e3, "misshapen"),
        ("reg_tokens", 65536, "misshapen"),
        ("num_classes", 1 << 24, "misshapen: head.bias"),
        ("num_heads", 7, "cannot be built"),
        ("attention", "performer", "missing|unexpected|gamma"),
        ("attention_options", {"queries": 10**9}, "queries must be"),
        ("architecture", "hf-hub:evil/model", "architecture must be one of"),
        ("architecture", "local-dir:hostile", "architecture must be one of"),
        ("gamma", math.nan, "gamma must be"),
        ("drop_rate", True, "drop_rate must be"),
    ],
)
def test_sizes_are_bounded_by_the_file(file, name, value, message, traps):  # noqa: F811
    refused(with_header(file, infsa={**header_of(file)["infsa"], name: value}), message)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "null", "NaN", '"x"', "{", "[" * 100_000, '{"a":' * 100_000, "9" * 5000,
     f'{{"depth": {"9" * 5000}}}'],
)  # fmt: skip
@pytest.mark.parametrize("entry", ["infsa", "data"])
def test_broken_json_is_one_line(file, entry, text, traps):  # noqa: F811
    texts = {name: json.dumps(value) for name, value in header_of(file).items()} | {entry: text}
    refused(with_header(file, texts=texts), "must|is not JSON|nested")


def raw(file, header, name="raw.safetensors"):
    path = file.parent / name
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_broken_files_are_one_line(file, traps):  # noqa: F811
    for header in (b"", b"\xff\xfe{}", b"[]", b'{"__metadata__": 3}', b'{"__metadata__": {"infsa": 3}}', b'{"a": 3}',
                   b'{"a": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}',
                   b'{"a": {"dtype": "OBJ", "shape": [1], "data_offsets": [0, 8]}}',
                   b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}'):  # fmt: skip
        refused(raw(file, header))
    for length in (LARGEST_HEADER + 1, 2**63, 2**64 - 1):
        path = file.parent / "long.safetensors"
        path.write_bytes(struct.pack("<Q", length) + b"{")
        refused(path, "at most")
    path = file.parent / "sparse.safetensors"
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", 120 << 20))
        handle.truncate(130 << 20)
    refused(path, "at most")


def test_tensors_are_data_whatever_they_are_called(file, traps):  # noqa: F811
    texts = {name: json.dumps(value) for name, value in header_of(file).items()}
    for name in (
        "__class__",
        "__reduce__",
        "forward",
        "../../x",
        "blocks.0.__dict__",
        "head.weight.data",
        "\x1b[2J",
        "",
    ):
        save_file({**load_file(file), name: torch.zeros(1)}, file.parent / "odd.safetensors", texts)
        refused(file.parent / "odd.safetensors", "unexpected")
    ints = {**load_file(file), "head.bias": torch.zeros(5, dtype=torch.int64)}
    save_file(ints, file.parent / "odd.safetensors", texts)
    refused(file.parent / "odd.safetensors", "mistyped: head.bias I64")


def test_labels_are_text(file, traps):  # noqa: F811
    known = header_of(file)
    for labels in (["\x1b[2J"], ["a\nb"], ["\ud800"], [3], "abc", {"0": "a"}):
        refused(with_header(file, infsa=known["infsa"], data={"label_names": labels}), "label_names must be")


def test_a_folder_does_not_lead_out_of_itself(file, tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(file)
    refused(folder, "links to a file outside its folder")
    assert load_model(folder / "model.safetensors").num_classes == SMALL["num_classes"]  # the caller chose this file
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True), snapshot.mkdir(parents=True)
    (blobs / "123").write_bytes(file.read_bytes())
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    assert load_model(snapshot).num_classes == SMALL["num_classes"]
    assert load_model(tmp_path / "model" / ".." / "model").num_classes == SMALL["num_classes"]


def test_what_a_folder_says_beside_its_weights_is_not_read(file, traps):  # noqa: F811
    before = load_model(file.parent)
    for text in (
        "[",
        '{"pretrained_cfg": {"label_names": ["a"], "file": "x.pth"}, "model_args": {"checkpoint_path": "x"}}',
    ):
        (file.parent / "config.json").write_text(text)
        after = load_model(file.parent)
        assert after.pretrained_cfg == before.pretrained_cfg


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_files_of_every_mechanism_load(attention, tmp_path):
    options = {
        "infsa_pure": {"hops": math.inf},
        "infsa_linear": {"queries": 2, "tied": False},
        "performer": {"features": 3},
    }
    model = small(attention, attention_options=options.get(attention), drop_path_rate=0.1, reg_tokens=1)
    folder = save_weights(model, tmp_path)
    again = infsa.create_model("infvit_linear_4l64h_patch16_224", pretrained=folder)
    weights, saved = read_weights(folder)
    assert saved["attention"] == attention
    assert all(torch.equal(weights[name], tensor) for name, tensor in again.state_dict().items())
    load_weights(again, folder)


def test_a_device_is_the_callers_choice(file):
    model = infsa.create_model("infvit_linear_4l64h_patch16_224", pretrained=file, device="cpu")
    assert model.head.weight.device.type == "cpu"
