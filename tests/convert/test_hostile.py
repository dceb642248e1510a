"""Converted models from strangers: a file names an architecture and its sizes; the rest is refused in one line."""

import dataclasses
import inspect
import json
import math
import random

import pytest
import timm
import torch
import torchvision
import transformers as hf
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import infsa
from infsa.conversion import converted_layers, load_converted, open_model, save_converted
from infsa.conversion import huggingface as hugging_face
from infsa.conversion.permitted import SETTINGS, TIMM, TORCHVISION, check_source
from infsa.conversion.permitted_fields import permitted_fields
from infsa.conversion.settings import Settings
from infsa.conversion.store import read_conversion

from ..traps import loaded_or_refused, traps  # noqa: F401
from .huggingface.models import build

OPTIONS = {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
FIELDS = {"image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VIT = {**FIELDS, "intermediate_size": 24, "num_labels": 3, "architectures": ["ViTForImageClassification"]}
NAME = "timm:deit_tiny_patch16_224"
VALUES = (10**9, -1, 2.5, True, None, "x", "../x", "hf-hub:x/y", [], [1, [2]], {}, {"file": "x.pth"}, math.nan, 10**30)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A converted model of timm and one of transformers."""
    folder = tmp_path_factory.mktemp("converted")
    return {
        source: save_converted(infsa.convert(open_model(source, options=options)), folder / name, source, options)
        for source, options, name in ((NAME, OPTIONS, "timm.safetensors"), ("hf:vit", VIT, "vit.safetensors"))
    }


def facts_of(file):
    with safe_open(file, framework="pt") as handle:
        return json.loads(handle.metadata()["conversion"])


def forged(file, folder, facts, **texts):
    """The same tensors with other facts."""
    path = folder / "forged.safetensors"
    text = facts if isinstance(facts, str) else json.dumps(facts)
    save_file(load_file(file), path, {"format": "pt", "conversion": text, **texts})
    return path


def refused(path, match="."):
    with pytest.raises(ValueError, match=match) as caught:
        load_converted(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 900


def names_of(*functions):
    return {name for function in functions for name in inspect.signature(function).parameters}


DANGEROUS = {
    "trust_remote_code", "auto_map", "_name_or_path", "name_or_path", "attn_implementation", "_attn_implementation",
    "code_revision", "quantization_config", "local_files_only", "proxies", "token", "subfolder", "cache_dir",
    "revision", "pretrained_model_name_or_path", "adapter_kwargs", "device_map", "state_dict", "use_kernels",
    "custom_generate", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "file", "url", "hf_hub_id",
    "pretrained", "weights", "backbone", "experts_implementation", "per_layer_config", "infsa", "__class__", "to_dict",
    "sub_configs", "", "\x1b",
}  # fmt: skip


def test_every_other_option_is_refused(files, tmp_path, traps):  # noqa: F811
    vit = timm.models.vision_transformer.VisionTransformer
    asked = names_of(timm.create_model, timm.models.build_model_with_cfg, torchvision.models.get_model, vit)
    asked |= names_of(hf.AutoConfig.from_pretrained, hf.PreTrainedModel.from_pretrained, hf.AutoModel.from_config)
    facts = facts_of(files[NAME])
    for name in sorted((asked | DANGEROUS) - TIMM.keys()):
        path = forged(files[NAME], tmp_path, facts | {"options": {**OPTIONS, name: str(traps)}})
        refused(path, "which a file may not choose")
    facts = facts_of(files["hf:vit"])
    fields = {field.name for field in dataclasses.fields(hf.ViTConfig)} | {"output_attentions", "torch_dtype"}
    for name in sorted((asked | DANGEROUS) - fields):
        path = forged(files["hf:vit"], tmp_path, facts | {"options": {**VIT, name: True}})
        refused(path, "which a file may not choose")
    assert not DANGEROUS & (TIMM.keys() | TORCHVISION.keys() | SETTINGS.keys())


def test_the_settings_are_the_signature():
    assert SETTINGS.keys() == inspect.signature(Settings).parameters.keys()


def test_other_sources_are_refused(files, tmp_path, traps):  # noqa: F811
    facts = facts_of(files[NAME])
    names = ["hf:org/name", "hf:name", f"hf:{traps}", "hf:../hostile", "hf:.", "hf:rag", "hf:timm_wrapper", "hf:evil",
             "timm:hf-hub:org/name", f"timm:local-dir:{traps}", "local-dir:x", "timm:", "torchvision:", "torchvision:x",
             "torch:x", "http://127.0.0.1/x", "jax:vit", ":", "hf:"]  # fmt: skip
    for source in names:
        refused(forged(files[NAME], tmp_path, facts | {"source": source, "options": {}}), "source|does not say")
    for source in (3, None, [NAME], {"a": 1}):
        refused(forged(files[NAME], tmp_path, facts | {"source": source}), "source must be")
    hidden = {**VIT, "architectures": ["pipeline"]}  # a name of transformers, but no model
    refused(
        forged(files["hf:vit"], tmp_path, facts_of(files["hf:vit"]) | {"options": hidden}),
        "which the model does not have",
    )
    check_source("torchvision:swin_t", {"num_classes": 3}, "file")


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_facts_are_refused_or_load_what_they_say(files, tmp_path, seed, traps):  # noqa: F811
    chance = random.Random(seed)
    for _ in range(50):
        source = chance.choice(list(files))
        facts, weights = facts_of(files[source]), load_file(files[source])
        names = sorted({*TIMM, *VIT, *SETTINGS, *facts, *DANGEROUS, "vocab_size", "image_size", "hidden_act"})
        place = chance.choice([facts, facts["options"], facts["layers"], *facts["layers"].values()])
        place[chance.choice(names)] = chance.choice(VALUES)
        path = forged(files[source], tmp_path, facts)
        model = loaded_or_refused(lambda path=path: load_converted(path))
        assert model is None or all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (NAME, {"depth": 1024, "embed_dim": 65536, "num_heads": 1}),
        (NAME, {"img_size": 16384, "patch_size": 1}),
        (NAME, {"num_classes": 1 << 24}),
        ("timm:swin_tiny_patch4_window7_224", {"img_size": 16384}),
        ("torchvision:vit_b_16", {"image_size": 16384}),
        ("hf:vit", {"num_hidden_layers": 1 << 24}),
        ("hf:vit", {"hidden_size": 1 << 24, "image_size": 1 << 24, "patch_size": 1}),
        ("hf:gpt2", {"n_positions": 1 << 24, "vocab_size": 1 << 24}),
        ("hf:bert", {"num_hidden_layers": 1 << 24, "hidden_size": 1 << 22}),
        ("hf:llama", {"num_hidden_layers": 1 << 20, "max_position_embeddings": 1 << 24}),
        ("hf:whisper", {"max_source_positions": 1 << 24}),
        ("hf:beit", {"image_size": 1 << 20, "use_relative_position_bias": True}),
        ("hf:detr", {}),
        ("hf:clip", {"text_config": {"num_hidden_layers": 1 << 24}}),
    ],
)
def test_sizes_are_bounded_by_the_file(files, tmp_path, source, options, traps):  # noqa: F811
    facts = facts_of(files[NAME]) | {"source": source, "options": options}
    refused(forged(files[NAME], tmp_path, facts), "cannot be built|do not fit|does not h")


@pytest.mark.parametrize("text", ["", "[]", "3", "NaN", "{", "{}", '{"layers": {}}', "[" * 100_000, "9" * 5000])
def test_broken_facts_are_one_line(files, tmp_path, text, traps):  # noqa: F811
    refused(forged(files[NAME], tmp_path, text))
    refused(forged(files[NAME], tmp_path, facts_of(files[NAME]), auto_map="x"), "'auto_map'")


def test_layers_are_those_of_the_model(files, tmp_path):
    facts = facts_of(files[NAME])
    settings = facts["layers"]["blocks.0.attn"]
    for name in ("*", "blocks.*", "blocks.7.attn", "__class__", "", "head"):
        refused(forged(files[NAME], tmp_path, facts | {"layers": {name: settings}}), "cannot be built|does not have")


def test_a_model_that_a_file_does_not_fit_stays_as_it_is(files, tmp_path):
    model = open_model(NAME, options={**OPTIONS, "num_classes": 4})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match="do not fit"):
        load_converted(files[NAME], model)
    assert not converted_layers(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_source_that_a_file_may_not_choose_is_the_callers(files, tmp_path):
    model = infsa.convert(open_model(NAME, options=OPTIONS))
    with pytest.warns(UserWarning, match=r"load_converted\(FILE, MODEL\)"):
        file = save_converted(model, tmp_path / "model.safetensors", "hf:org/name")
    refused(file, "give the model")
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(load_converted(file, open_model(NAME, options=OPTIONS))(x), model(x))


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (NAME, OPTIONS),
        ("timm:swin_tiny_patch4_window7_224", {"img_size": 56, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 2]}),
        ("hf:vit", VIT),
        ("hf:clip", {"projection_dim": 8, "text_config": {"hidden_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 40}, "vision_config": FIELDS}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["bfloat16", "mixed"])
def test_every_tensor_comes_back_in_its_type(source, options, kind, tmp_path):
    model = infsa.convert(open_model(source, options=options), learn_gamma=True).to(torch.bfloat16)
    if kind == "mixed":
        for index, parameter in enumerate(model.parameters()):
            parameter.data = parameter.data.to((torch.float32, torch.bfloat16, torch.float16)[index % 3])
    again = load_converted(save_converted(model, tmp_path / "model.safetensors", source, options))
    found, wanted = dict(again.named_buffers()), dict(model.named_buffers())
    assert {name: tensor.dtype for name, tensor in found.items()} == {n: t.dtype for n, t in wanted.items()}
    for name, tensor in model.state_dict().items():
        assert again.state_dict()[name].dtype == tensor.dtype
        assert torch.equal(again.state_dict()[name], tensor)
    if kind == "bfloat16" and not source.startswith("hf:clip"):
        x = torch.randn(1, 3, options.get("img_size", options.get("image_size", 32)), 1, dtype=torch.bfloat16)
        x = x.expand(-1, -1, -1, x.shape[2])
        assert read_conversion(tmp_path / "model.safetensors")["source"] == source
        outputs = [net.eval()(x) for net in (model, again)]
        assert torch.equal(*(getattr(y, "logits", y) for y in outputs))


@pytest.fixture
def folder(tmp_path):
    infsa.convert(build("vit")).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def rewrite(folder, name="config.json", **changes):
    content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps(content | changes))


def refused_folder(folder, match="."):
    for kind in (hf.ViTForImageClassification, hf.AutoModel):
        with pytest.raises(ValueError, match=match) as caught:
            hugging_face.load_converted(kind, folder)
        assert str(caught.value).isprintable()


def test_a_folder_chooses_plain_fields_only(folder, traps):  # noqa: F811
    before = (folder / "config.json").read_text()
    for name in sorted(DANGEROUS - {"infsa", "_name_or_path"}):  # the first is read, the second left out
        rewrite(folder, **{name: "org/name"})
        refused_folder(folder, "may not choose|must be")
        (folder / "config.json").write_text(before)
    for changes in ({"model_type": "evil"}, {"model_type": "rag"}, {"hidden_size": 10**9},
                    {"num_hidden_layers": 1 << 24}, {"hidden_size": 1 << 20}, {"infsa": 3},
                    {"infsa": {"layers": {"x": {"variant": "cubic"}}}},
                    {"infsa": {"layers": {"x": {}}}}, {"quantization_config": {"quant_method": "x"}},
                    {"num_labels": 10**9}, {"architectures": ["a/b"]}):  # fmt: skip
        rewrite(folder, **changes)
        refused_folder(folder)
        (folder / "config.json").write_text(before)
    for text in ("", "[]", "3", "[" * 100_000, "\udcff"):
        (folder / "config.json").write_text(text, errors="surrogateescape")
        refused_folder(folder)


def test_a_folder_leads_nowhere_else(folder, tmp_path, traps):  # noqa: F811
    rewrite(folder, "adapter_config.json", base_model_name_or_path="org/name", peft_type="LORA")
    refused_folder(folder, "adapter_config.json asks for another model")
    (folder / "adapter_config.json").unlink()
    weights = (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    refused_folder(folder, "holds no model.safetensors.index.json")
    rewrite(folder, "model.safetensors.index.json", metadata={}, weight_map={"a": "../elsewhere.safetensors"})
    refused_folder(folder, "not a safetensors file of the folder")
    (folder / "model.safetensors").symlink_to(weights)
    refused_folder(folder, "links to a file outside its folder")
    with pytest.raises(ValueError, match="nothing is downloaded"):
        hugging_face.load_converted(hf.AutoModel, "org/name")


def test_transformers_alone_warns_that_it_loads_softmax(folder):
    for load in (hf.ViTForImageClassification.from_pretrained, hf.AutoModel.from_pretrained):
        with pytest.warns(UserWarning, match=r"^this model was saved with InfSA.* with softmax: [^\n]+$"):
            load(folder)


def test_plain_fields_of_a_configuration():
    where = "file: its header"
    assert permitted_fields({"hidden_size": 8, "hidden_act": "gelu"}, hf.ViTConfig, where) == {
        "hidden_size": 8,
        "hidden_act": "gelu",
    }
    for fields, message in (
        ({"hidden_act": "a/b"}, "hidden_act must be"),
        ({"size": 8}, "'size', which a file"),
        (3, "table"),
    ):
        with pytest.raises(ValueError, match=message):
            permitted_fields(fields, hf.ViTConfig, where)


def test_a_folder_that_is_opened_by_name_leads_nowhere_else(folder, tmp_path, traps):  # noqa: F811
    assert type(open_model(f"hf:{folder}", pretrained=True)) is hf.ViTForImageClassification
    for name in ("attn_implementation", "auto_map", "quantization_config"):
        before = (folder / "config.json").read_text()
        rewrite(folder, **{name: "org/name"})
        with pytest.raises(ValueError, match="which a file may not choose"):
            open_model(f"hf:{folder}", pretrained=True)
        (folder / "config.json").write_text(before)
    with pytest.raises(ValueError, match="model_type must be"):
        open_model(f"hf:{traps}")
