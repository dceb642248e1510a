"""InfViT for Hugging Face: configuration, models and image processor, registered with the Auto classes.

The models hold an :class:`InfViT` as ``model.infvit``; its weights are those of the timm-style model.
"""

import inspect
import os
from typing import Any

from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    BitImageProcessor,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput

from ..nn.peers import Attention
from .folder import folder_config, label_names, processor_config
from .infvit import InfViT, init_linear
from .maps import weights_of

ARGUMENTS = {
    name: parameter.default
    for name, parameter in inspect.signature(InfViT).parameters.items()
    if name not in ("num_classes", "device", "dtype")
}
HUB = ("push_to_hub", "repo_id", "token", "private", "commit_message")  # of save_pretrained, for the processor too


class InfViTConfig(PretrainedConfig):
    """The arguments of :class:`InfViT`, in Hugging Face's form; ``num_labels`` is its ``num_classes``.

    ``pretrained_cfg`` is timm's description of the data: colours, crop, resampling and names of the classes.
    """

    model_type = "infvit"

    def __init__(self, **kwargs: Any) -> None:
        for name, default in ARGUMENTS.items():
            setattr(self, name, kwargs.pop(name, default))
        self.pretrained_cfg: dict[str, Any] = dict(kwargs.pop("pretrained_cfg", None) or {})
        super().__init__(**kwargs)

    @classmethod
    def from_infvit(cls, model: InfViT, **kwargs: Any) -> "InfViTConfig":
        """The configuration of an existing model, with the names of its classes if it knows them."""
        arguments = {k: list(v) if isinstance(v, tuple) else v for k, v in model.arguments.items()}
        num_classes, names = arguments.pop("num_classes"), label_names(model)
        if names is not None and "id2label" not in kwargs:
            kwargs |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        labels = {"num_labels": num_classes} if num_classes and "id2label" not in kwargs else {}
        return cls(**arguments, **labels, **{"pretrained_cfg": folder_config(model)["pretrained_cfg"], **kwargs})

    def build(self, num_classes: int) -> InfViT:
        """The model this configuration describes."""
        values = {name: getattr(self, name) for name in ARGUMENTS}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        model = InfViT(**values, num_classes=num_classes)
        model.pretrained_cfg = {**self.pretrained_cfg, "label_names": self.label_names()}  # type: ignore[assignment]
        return model

    def label_names(self) -> list[str] | None:
        """The names of the classes, or None where they are Hugging Face's stand-ins."""
        names = [str(self.id2label[index]) for index in range(self.num_labels)]
        return None if names == [f"LABEL_{index}" for index in range(self.num_labels)] else names


class InfViTPreTrainedModel(PreTrainedModel):
    """What both models share."""

    config_class = InfViTConfig
    base_model_prefix = "infvit"
    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Block", "MLLABlock")
    infvit: InfViT

    def _init_weights(self, module: nn.Module) -> None:
        """Module by module, what ``InfViT.init_weights`` does; tensors that a checkpoint filled are guarded."""
        if isinstance(module, InfViT):
            module.init_tokens()
        elif isinstance(module, nn.Linear):
            init_linear(module)
        elif isinstance(module, Attention):
            module.reset_own()
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Recompute every block in the backward pass; options that would change that are refused."""
        wanted = {**(gradient_checkpointing_kwargs or {}), **options}
        defaults = {"use_reentrant": False, "every_n_layers": 1, "offload": False}
        unknown = {name: value for name, value in wanted.items() if name not in defaults or defaults[name] != value}
        if unknown:
            raise ValueError(f"gradient checkpointing takes no options, got {unknown!r}")
        self.infvit.set_grad_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        """Keep activations again."""
        self.infvit.set_grad_checkpointing(False)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, **kwargs: Any
    ) -> None:
        """Write weights, configuration and image processor: a folder that timm and this package read as well."""
        self.infvit.pretrained_cfg["label_names"] = self.config.label_names()  # type: ignore[index, operator]
        facts = folder_config(self.infvit)
        described = set() if facts["num_labels"] else {"num_labels"}  # without a classifier, labels stay as they are
        for name in facts.keys() - described - {"id2label", "label2id", "architectures", "model_type"}:
            setattr(self.config, name, facts[name])
        super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)
        if is_main_process and self.config.in_chans == 3 and os.path.isdir(save_directory):
            hub = {name: kwargs[name] for name in HUB if name in kwargs}
            image_processor(self).save_pretrained(save_directory, **hub)

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether blocks are recomputed."""
        return self.infvit.grad_checkpointing

    def _run(self, pixel_values: Tensor, *flags: bool | None) -> tuple[Tensor, dict[str, Any], bool]:
        """Normalised tokens, hidden states and attention weights if asked for, and whether the result has names.

        The flags are ``output_attentions``, ``output_hidden_states`` and ``return_dict`` of a call, or None for those
        of the configuration.
        """
        names = ("output_attentions", "output_hidden_states", "return_dict")
        output_attentions, output_hidden_states, return_dict = (
            getattr(self.config, name, name == "return_dict") if flag is None else flag
            for name, flag in zip(names, flags, strict=True)
        )
        model = self.infvit
        embedded, grid = model.embed(pixel_values)
        hidden: list[Tensor] = []
        attentions: list[Tensor] = []

        def read(index: int, before: Tensor, after: Tensor) -> None:
            if output_hidden_states:
                hidden.extend([before, after] if index == 0 else [after])
            if output_attentions:
                weights = weights_of(model.blocks[index], before, grid, model.num_prefix_tokens)
                attentions.append(weights.expand(-1, -1, before.shape[1], -1))

        tokens = model.norm(model.run_blocks(embedded, grid, visit=read))
        states = {"hidden_states": tuple(hidden) or None, "attentions": tuple(attentions) or None}
        return tokens, states, bool(return_dict)


class InfViTModel(InfViTPreTrainedModel):
    """InfViT without a classifier: tokens and one pooled vector per image."""

    def __init__(self, config: InfViTConfig) -> None:
        super().__init__(config)
        self.infvit = config.build(num_classes=0)
        self.post_init()

    def forward(
        self,
        pixel_values: Tensor,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPooling | tuple[Any, ...]:
        """Images (B, C, H, W) to ``last_hidden_state`` (B, N, D) and ``pooler_output`` (B, D)."""
        tokens, states, as_dict = self._run(pixel_values, output_attentions, output_hidden_states, return_dict)
        pooled = self.infvit.forward_head(tokens, pre_logits=True)
        output = BaseModelOutputWithPooling(last_hidden_state=tokens, pooler_output=pooled, **states)
        return output if as_dict else output.to_tuple()


class InfViTForImageClassification(InfViTPreTrainedModel):
    """InfViT with its classifier; with ``labels`` it returns a loss, so that the Trainer runs."""

    def __init__(self, config: InfViTConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.infvit = config.build(num_classes=config.num_labels)
        self.post_init()

    @classmethod
    def from_infvit(cls, model: InfViT, **kwargs: Any) -> "InfViTForImageClassification":
        """The same model, with a copy of its weights, for Hugging Face."""
        if model.num_classes == 0:
            raise ValueError("an image classifier needs classes, got num_classes=0; use InfViTModel")
        labels = kwargs.get("id2label")
        if labels is not None and len(labels) != model.num_classes:
            raise ValueError(f"id2label must name {model.num_classes} classes, got {len(labels)}")
        converted = cls(InfViTConfig.from_infvit(model, **kwargs))
        converted.infvit.load_state_dict(model.state_dict())
        weight = model.patch_embed.proj.weight
        return converted.to(device=weight.device, dtype=weight.dtype).train(model.training)

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput | tuple[Any, ...]:
        """Images (B, C, H, W) to ``logits`` (B, classes), with ``loss`` if ``labels`` (B,) are given."""
        tokens, states, as_dict = self._run(pixel_values, output_attentions, output_hidden_states, return_dict)
        logits = self.infvit.forward_head(tokens)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        output = ImageClassifierOutput(loss=loss, logits=logits, **states)
        return output if as_dict else output.to_tuple()


def image_processor(model: InfViT | InfViTPreTrainedModel | InfViTConfig) -> BitImageProcessor:
    """The model's validation transform: shortest side resized, centre crop, normalised, as timm does it.

    A base size that is not square is resized to directly.
    """
    config = model.config if isinstance(model, InfViTPreTrainedModel) else model
    size = config.patch_embed.img_size if isinstance(config, InfViT) else config.img_size
    if config.in_chans != 3:
        raise ValueError(f"the image processor makes RGB images, got a model with in_chans={config.in_chans}")
    settings = processor_config(size, getattr(config, "pretrained_cfg", None) or {})
    return BitImageProcessor(**{name: value for name, value in settings.items() if name != "image_processor_type"})


AutoConfig.register("infvit", InfViTConfig)
AutoModel.register(InfViTConfig, InfViTModel)
AutoModelForImageClassification.register(InfViTConfig, InfViTForImageClassification)
AutoImageProcessor.register(InfViTConfig, BitImageProcessor)
