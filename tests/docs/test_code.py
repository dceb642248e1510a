"""All Python blocks of the pages run, in order, in one namespace per page, with small stand-ins for files and data."""

import os
import re
import shlex
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

import infsa
from infsa.cli.commands import COMMANDS, load
from infsa.report.photographs import example_images

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"distributed.md": "tests/parallel/test_document.py"}  # needs torchrun; run there
SMALLER = {  # text on the page -> what runs here
    "models.md": {  # γ is named: load_weights takes a default for another value than the same one saved
        '"infvit_linear_4l64h_patch16_224", num_classes=10': '"infvit_linear_tiny", num_classes=10',
        "vit_4l16h_patch16_224": "vit_tiny",
    },
    "streaming.md": {"4000, 4000, 4512, 4512": "64, 64, 128, 128", "2GiB": "8GiB"},  # what ran before holds memory
    "training.md": {'"epochs": 100': '"epochs": 1, "warmup_epochs": 0, "batch_size": 8, "workers": 0'},
    "data.md": {"num_workers=2, persistent_workers=True": "num_workers=0", "batch_size=128": "batch_size=4"},
}


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if blocks(page) and page.name not in ELSEWHERE]


def photos(folder):
    """Two classes of four images each, for training and validation."""
    for split in ("train", "val"):
        for name, colour in (("red", "darkred"), ("blue", "navy")):
            place = folder / "photos" / split / name
            place.mkdir(parents=True)
            for index in range(4):
                Image.new("RGB", (72, 64 + index), colour).save(place / f"{index}.png")


def language_model(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder / "gpt")
    prompt = {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    return {"folder": str(folder / "gpt"), "prompt": {**prompt, "max_new_tokens": 3, "pad_token_id": 0}}


def names_for(page, folder, monkeypatch):
    """What the page takes as given: images, files, and models without a download. It imports infsa itself."""
    torch.manual_seed(0)
    photo = example_images()["portrait"]
    photo.resize((512, 512)).save(folder / "orion.jpg")
    photo.save(folder / "photo.jpg")
    names = {"photo": photo, "images": torch.randn(2, 3, 64, 64)}
    if page.name == "training.md":
        photos(folder)
    if page.name == "kernels.md":
        names["model"] = infsa.create_model("infvit_linear_tiny").eval()
        monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # compiled in tests/models
    if page.name == "conversion.md":
        create, random = timm.create_model, {"pretrained": False}
        monkeypatch.setattr(timm, "create_model", lambda name, **options: create(name, **options | random))
        names |= language_model(folder)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = names_for(page, tmp_path, monkeypatch)
    with torch.random.fork_rng(devices=[]):
        for number, block in enumerate(blocks(page), start=1):
            for old, new in SMALLER.get(page.name, {}).items():
                block = block.replace(old, new)
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def command_lines():
    """Every call of the command line on the README and the pages, in blocks and in running text."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M):
            yield from re.findall(r"^infsa [^\n]*", block, re.M) if not language else ()
        yield from re.findall(r"`(infsa [^`\n]*)`", re.sub(r"```.*?```", "", text, flags=re.S))


def test_commands_and_options_exist():
    known = {name: load(name) for name in COMMANDS}
    lines = set(command_lines())
    assert len(lines) > 20
    for line in lines:
        _, *words = shlex.split(line, comments=True)
        name = next((word for word in words if not word.startswith("-")), None)
        assert name is None or name in known, line
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        accepted = {option for p in known[name].params for option in (*p.opts, *p.secondary_opts)} if name else set()
        assert options <= accepted | {"--help", "--debug"}, line


def test_training_sizes_are_multiples_of_the_patch():
    """What infsa train refuses: every command on the pages trains a model with patches of 8 pixels."""
    sizes = [int(s) for line in command_lines() for s in re.findall(r"^infsa train .*--image-size (\d+)", line)]
    assert len(sizes) > 1
    assert not [size for size in sizes if size % 8]


def test_stand_ins_are_on_the_pages():
    for name, changes in SMALLER.items():
        text = "".join(blocks(ROOT / "docs" / name))
        assert all(old in text for old in changes), name
    for name, test in ELSEWHERE.items():
        assert blocks(ROOT / "docs" / name)
        assert name.split(".")[0] in (ROOT / test).read_text(encoding="utf-8")


def test_nothing_is_left_behind():
    assert not {"orion.jpg", "photo.jpg", "photos"} & set(os.listdir(ROOT))
