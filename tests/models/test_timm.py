"""At home in timm: registry, features, classifier, helpers, either import order."""

import subprocess
import sys

import pytest
import timm
import timm.data
import timm.optim
import timm.scheduler
import timm.utils
import torch

import infsa

from .helpers import images, small

TINY = "infvit_linear_tiny"


@pytest.mark.parametrize("order", ["import infsa, timm", "import timm, infsa", "import infsa; from timm import models"])
def test_either_import_order_registers(order):
    code = f"{order}; import timm; print(timm.is_model('infvit_pure_tiny'), timm.is_model('vit_4l16h_patch16_224'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
    assert "Overwriting" not in done.stderr


def test_looking_timm_up_does_not_disable_registration():
    code = (
        "import infsa, importlib.util; importlib.util.find_spec('timm'); import timm; print(timm.is_model('vit_tiny'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_import_infsa_does_not_import_timm():
    code = "import infsa, sys; print('timm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", infsa.list_models())
def test_every_name_builds_with_a_data_configuration(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    config = timm.data.resolve_model_data_config(model)
    assert config["input_size"] == ((3, 64, 64) if name.endswith("tiny") else (3, 224, 224))
    assert model.pretrained_cfg["architecture"] == name
    assert timm.models.get_pretrained_cfg(name).classifier == "head"


def test_create_model_is_timms():
    torch.manual_seed(0)
    ours = infsa.create_model(TINY, num_classes=7, attention="agent")
    torch.manual_seed(0)
    theirs = timm.create_model(TINY, num_classes=7, attention="agent")
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))
    with pytest.raises(ValueError, match="unknown model 'resnet50'"):
        infsa.create_model("resnet50")
    with pytest.raises(ValueError, match="no weights are shipped for infvit_pure_24l16h_patch16_224"):
        infsa.create_model("infvit_pure_24l16h_patch16_224", pretrained=True)


def test_features_only():
    model = timm.create_model(TINY, features_only=True, out_indices=(1, 3))
    features = model(torch.randn(2, 3, 64, 96))
    assert [tuple(f.shape) for f in features] == [(2, 192, 8, 12)] * 2
    assert model.feature_info.channels() == [192, 192]
    assert model.feature_info.reduction() == [8, 8]
    assert len(model.model.blocks) == 4


def test_forward_intermediates():
    model = small(reg_tokens=1)
    x = images(height=24, width=40)
    final, features = model.forward_intermediates(x, indices=2)
    torch.testing.assert_close(final, model.forward_features(x))
    assert [tuple(f.shape) for f in features] == [(2, 32, 3, 5)] * 2
    flat, prefix = model.forward_intermediates(
        x, indices=[1], output_fmt="NLC", return_prefix_tokens=True, norm=True, intermediates_only=True
    )[0]
    torch.testing.assert_close(torch.cat([prefix, flat], 1), final)
    early = model.forward_intermediates(x, indices=[0], stop_early=True, intermediates_only=True)
    torch.testing.assert_close(early[0], features[0])


def test_head_and_classifier():
    model = small(paper_params=True)
    x = images()
    tokens = model.forward_features(x)
    torch.testing.assert_close(model.forward_head(tokens), model(x))
    assert model.forward_head(tokens, pre_logits=True).shape == (2, 32)
    model.reset_classifier(11, "avg")
    assert model(x).shape == (2, 11)
    assert model.get_classifier().out_features == 11
    model.reset_classifier(0)
    assert model(x).shape == (2, 32)
    with pytest.raises(ValueError, match="class_token=False"):
        small(class_token=False).reset_classifier(3, "token")


def test_optimiser_groups_scheduler_ema_and_checkpoints(tmp_path):
    model = small(learn_gamma=True).train()
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", weight_decay=0.05, layer_decay=0.7)
    without = {id(p) for group in optimizer.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    named = dict(model.named_parameters())
    assert id(named["pos_embed"]) in without
    assert id(named["blocks.0.attn.decay.logit"]) in without
    scheduler, _ = timm.scheduler.create_scheduler_v2(optimizer, num_epochs=3)
    ema = timm.utils.ModelEmaV3(model, decay=0.5)
    saver = timm.utils.CheckpointSaver(model, optimizer, model_ema=ema, checkpoint_dir=str(tmp_path))
    before = named["head.weight"].detach().clone()
    for epoch in range(2):
        model(images()).square().sum().backward()
        optimizer.step()
        ema.update(model)
        scheduler.step(epoch + 1)
        saver.save_checkpoint(epoch, metric=float(epoch))
    assert not torch.equal(named["head.weight"], before)
    assert list(tmp_path.glob("*.pth.tar"))


def test_timms_training_transforms_and_loader_settings():
    model = timm.create_model(TINY)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    from PIL import Image

    assert transform(Image.new("RGB", (80, 70))).shape == (3, 64, 64)
