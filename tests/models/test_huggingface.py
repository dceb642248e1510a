"""At home in Hugging Face: Auto classes, saving, attentions, the Trainer."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    Trainer,
    TrainingArguments,
)

from infsa.models.huggingface import InfViTConfig, InfViTForImageClassification, InfViTModel, image_processor

from .helpers import NAMES, SMALL, images, small

CONFIG = {name: value for name, value in SMALL.items() if name != "num_classes"}


@pytest.mark.parametrize("attention", NAMES)
def test_weights_are_those_of_the_timm_style_model(attention):
    model = small(attention)
    converted = InfViTForImageClassification.from_infvit(model).eval()
    with torch.no_grad():
        torch.testing.assert_close(converted(images()).logits, model(images()))
    back = small(attention, seed=9)
    back.load_state_dict(converted.infvit.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(back(images()), model(images()))


@pytest.mark.parametrize("attention", ["infsa_linear", "performer", "flatten"])
def test_save_and_load_through_the_auto_classes(attention, tmp_path):
    torch.manual_seed(0)
    model = InfViTForImageClassification(InfViTConfig(**CONFIG, attention=attention, num_labels=5)).eval()
    model.save_pretrained(tmp_path)
    image_processor(model.config).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    assert not list(tmp_path.glob("*.bin"))
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, InfViTForImageClassification)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images()).logits, model(images()).logits)
        base = AutoModel.from_pretrained(tmp_path).eval()
        assert isinstance(base, InfViTModel)
        tokens = base(images()).last_hidden_state
        torch.testing.assert_close(tokens, model.infvit.forward_features(images()))
    assert AutoConfig.from_pretrained(tmp_path).attention == attention
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    pixels = processor(Image.new("RGB", (50, 40)), return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, 32, 32)


def test_a_new_head_is_initialised(tmp_path):
    InfViTForImageClassification(InfViTConfig(**CONFIG, num_labels=5)).save_pretrained(tmp_path)
    model = AutoModelForImageClassification.from_pretrained(tmp_path, num_labels=3, ignore_mismatched_sizes=True)
    assert model.infvit.head.weight.shape == (3, 32)
    assert 0 < model.infvit.head.weight.std() < 0.1
    assert model(images()).logits.isfinite().all()


def test_attentions_and_hidden_states():
    for attention in ("softmax", "infsa_pure", "infsa_linear"):
        model = InfViTForImageClassification.from_infvit(small(attention)).eval()
        out = model(images(), output_attentions=True, output_hidden_states=True)
        assert [tuple(a.shape) for a in out.attentions] == [(2, 4, 17, 17)] * 2
        assert all((a >= 0).all() for a in out.attentions)
        assert [tuple(h.shape) for h in out.hidden_states] == [(2, 17, 32)] * 3
        torch.testing.assert_close(out.logits, model(images()).logits)
    assert isinstance(model(images(), return_dict=False), tuple)
    with pytest.raises(ValueError, match="no attention map"):
        InfViTForImageClassification.from_infvit(small("linformer"))(images(), output_attentions=True)


def test_gradient_checkpointing():
    model = InfViTForImageClassification.from_infvit(small()).train()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    assert model.infvit.grad_checkpointing
    model(images(), labels=torch.tensor([0, 1])).loss.backward()
    model.gradient_checkpointing_disable()
    assert not model.infvit.grad_checkpointing


def test_the_trainer_runs(tmp_path):
    torch.manual_seed(0)
    model = InfViTForImageClassification(InfViTConfig(**CONFIG, num_labels=2))
    generator = np.random.default_rng(0)
    data = [
        {"pixel_values": torch.from_numpy(generator.normal(label, 1, (3, 32, 32)).astype("float32")), "labels": label}
        for label in [0, 1] * 16
    ]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=8, learning_rate=1e-3,
        report_to=[], save_strategy="no", use_cpu=True, logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert np.isfinite(trainer.evaluate()["eval_loss"])


@pytest.mark.parametrize("attention", ["agent", "flatten", "performer", "soft", "mlla"])
def test_what_a_checkpoint_lacks_is_initialised(attention, tmp_path):
    """Another mechanism, size and registers than were saved: the rest loads, the new parts start as in a new model."""
    InfViTForImageClassification(InfViTConfig(**CONFIG, attention="softmax", num_labels=5)).save_pretrained(tmp_path)
    torch.manual_seed(0)
    model = InfViTForImageClassification.from_pretrained(
        tmp_path, attention=attention, img_size=64, reg_tokens=2, ignore_mismatched_sizes=True
    )
    fresh = small(attention, img_size=64, reg_tokens=2)
    for (name, loaded), new in zip(model.infvit.named_parameters(), fresh.parameters(), strict=True):
        assert loaded.isfinite().all(), name
        assert loaded.std() <= 3 * new.std() + 0.1, name
    assert model(images(height=64, width=64)).logits.isfinite().all()


def test_folders_are_read_by_either_library(tmp_path):
    import infsa

    model = infsa.create_model("infvit_linear_tiny", num_classes=5, gamma=0.4).eval()
    x = torch.randn(1, 3, 64, 64)
    infsa.models.save_weights(model, tmp_path / "ours")
    theirs = AutoModelForImageClassification.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(theirs(x).logits, model(x))
    theirs.save_pretrained(tmp_path / "theirs")
    other = infsa.create_model("infvit_linear_tiny", num_classes=5, gamma=0.4).eval()
    infsa.models.load_weights(other, tmp_path / "theirs")
    torch.testing.assert_close(other(x), model(x))


def test_the_image_processor_agrees_with_timm():
    import timm

    import infsa

    for name in ("infvit_linear_tiny", "infvit_linear_4l64h_patch16_224"):
        with torch.device("meta"):
            model = infsa.create_model(name)
        config = timm.data.resolve_model_data_config(model)
        processor = image_processor(model)
        assert processor.crop_size["height"] == config["input_size"][1]
        assert processor.size["shortest_edge"] == round(config["input_size"][1] / config["crop_pct"])
    with pytest.raises(ValueError, match="in_chans=1"):
        image_processor(small(in_chans=1))
    wide = image_processor(small(img_size=(32, 64)))(Image.new("RGB", (90, 50), "white"), return_tensors="pt")
    assert wide["pixel_values"].shape == (1, 3, 32, 64)
    assert wide["pixel_values"].min() > 0


def test_wrong_conversions_are_one_line():
    with pytest.raises(ValueError, match="num_classes=0"):
        InfViTForImageClassification.from_infvit(small(num_classes=0))
    with pytest.raises(ValueError, match="got 2"):
        InfViTForImageClassification.from_infvit(small(), id2label={0: "a", 1: "b"})
    with pytest.raises(ValueError, match="use_reentrant"):
        InfViTForImageClassification.from_infvit(small()).gradient_checkpointing_enable({"use_reentrant": True})
