"""InfViT for Hugging Face: configuration, models and image processor, registered with the Auto classes.

The models hold an :class:`InfViT` as ``model.infvit``; its weights are those of the timm-style model.
"""

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
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput

from .infvit import InfViT
from .maps import weights_of


class InfViTConfig(PretrainedConfig):
    """The arguments of :class:`InfViT`, in Hugging Face's form; ``num_labels`` is its ``num_classes``.

    Example:
        >>> config = InfViTConfig(embed_dim=192, depth=6, num_heads=12, img_size=64, patch_size=8, num_labels=10)
        >>> model = InfViTForImageClassification(config)
    """

    model_type = "infvit"

    def __init__(
        self,
        img_size: int | list[int] = 224,
        patch_size: int | list[int] = 16,
        in_chans: int = 3,
        global_pool: str | None = None,
        embed_dim: int = 1024,
        depth: int = 4,
        num_heads: int = 64,
        mlp_ratio: float = 4.0,
        attention: str = "infsa_linear",
        attention_options: dict[str, Any] | None = None,
        attention_grid: list[int] | None = None,
        gamma: float | None = None,
        learn_gamma: bool = False,
        activation: str | None = None,
        decay: str = "constant",
        readout: str = "last",
        class_token: bool = True,
        reg_tokens: int = 0,
        pos_embed: str = "learn",
        dynamic_img_size: bool = True,
        dynamic_img_pad: bool = False,
        mlp_chunk: int | None = None,
        mlla_block: bool = False,
        paper_params: bool = False,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        own = {k: v for k, v in locals().items() if k not in ("self", "kwargs", "__class__")}
        for name, value in own.items():
            setattr(self, name, value)
        super().__init__(**kwargs)

    @classmethod
    def from_infvit(cls, model: InfViT, **kwargs: Any) -> "InfViTConfig":
        """The configuration of an existing model."""
        arguments: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in model.arguments.items()}
        num_classes = arguments.pop("num_classes")
        labels: dict[str, Any] = {"num_labels": num_classes} if num_classes else {}
        return cls(**arguments, **labels, **kwargs)

    def build(self, num_classes: int) -> InfViT:
        """The model this configuration describes."""
        names = InfViT.__init__.__code__.co_varnames[1 : InfViT.__init__.__code__.co_argcount]
        arguments = {name: getattr(self, name) for name in names if hasattr(self, name) and name != "dtype"}
        arguments |= {k: tuple(v) for k, v in arguments.items() if isinstance(v, list)}
        return InfViT(**{**arguments, "num_classes": num_classes})


class InfViTPreTrainedModel(PreTrainedModel):
    """What both models share."""

    config_class = InfViTConfig
    base_model_prefix = "infvit"
    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Block", "MLLABlock")
    infvit: InfViT

    def _init_weights(self, module: nn.Module) -> None:
        """Only what a checkpoint may lack; InfViT initialises itself."""
        if isinstance(module, nn.Linear):
            init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                init.zeros_(module.bias)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Recompute every block in the backward pass; options that would change that are refused."""
        wanted = {**(gradient_checkpointing_kwargs or {}), **options}
        defaults = {"use_reentrant": wanted.get("use_reentrant"), "every_n_layers": 1, "offload": False}
        unknown = {name: value for name, value in wanted.items() if name not in defaults or defaults[name] != value}
        if unknown:
            raise ValueError(f"gradient checkpointing takes no options, got {unknown!r}")
        self.infvit.set_grad_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        """Keep activations again."""
        self.infvit.set_grad_checkpointing(False)

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether blocks are recomputed."""
        return self.infvit.grad_checkpointing

    def _run(
        self, pixel_values: Tensor, output_attentions: bool, output_hidden_states: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, tuple[Tensor, ...] | None]:
        """Normalised tokens, hidden states and attention weights."""
        model = self.infvit
        if not (output_attentions or output_hidden_states):
            return model.forward_features(pixel_values), None, None
        x, grid = model.embed(pixel_values)
        hidden, attentions = [x], []
        for block in model.blocks:
            if output_attentions:
                weights = weights_of(block, x, grid, model.num_prefix_tokens)
                attentions.append(weights.expand(-1, -1, x.shape[1], -1))
            x = model.run_block(block, x, grid)
            hidden.append(x)
        tokens = model.forward_features(pixel_values) if model.readout == "series" else model.norm(x)
        return tokens, tuple(hidden) if output_hidden_states else None, tuple(attentions) or None


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
        attentions, hidden, as_dict = _switches(self.config, output_attentions, output_hidden_states, return_dict)
        tokens, hidden_states, weights = self._run(pixel_values, attentions, hidden)
        output = BaseModelOutputWithPooling(
            last_hidden_state=tokens,
            pooler_output=self.infvit.forward_head(tokens, pre_logits=True),
            hidden_states=hidden_states,
            attentions=weights,
        )
        return output if as_dict else output.to_tuple()


class InfViTForImageClassification(InfViTPreTrainedModel):
    """InfViT with its classifier; with ``labels`` it returns a loss, so that the Trainer runs.

    Example:
        >>> model = InfViTForImageClassification.from_infvit(infsa.create_model("infvit_linear_tiny"))
        >>> model.save_pretrained("tiny")
        >>> AutoModelForImageClassification.from_pretrained("tiny")
    """

    def __init__(self, config: InfViTConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.infvit = config.build(num_classes=config.num_labels)
        self.post_init()

    @classmethod
    def from_infvit(cls, model: InfViT, **kwargs: Any) -> "InfViTForImageClassification":
        """The same model, with a copy of its weights, for Hugging Face."""
        converted = cls(InfViTConfig.from_infvit(model, **kwargs))
        converted.infvit.load_state_dict(model.state_dict())
        return converted.to(next(model.parameters()).dtype)

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
        attentions, hidden, as_dict = _switches(self.config, output_attentions, output_hidden_states, return_dict)
        tokens, hidden_states, weights = self._run(pixel_values, attentions, hidden)
        logits = self.infvit.forward_head(tokens)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        output = ImageClassifierOutput(loss=loss, logits=logits, hidden_states=hidden_states, attentions=weights)
        return output if as_dict else output.to_tuple()


def _switches(config: InfViTConfig, *flags: bool | None) -> tuple[bool, bool, bool]:
    """Arguments of a call where given, the configuration's otherwise."""
    names = ("output_attentions", "output_hidden_states", "return_dict")
    values = [
        getattr(config, name, name == "return_dict") if flag is None else flag
        for name, flag in zip(names, flags, strict=True)
    ]
    return bool(values[0]), bool(values[1]), bool(values[2])


def image_processor(model: InfViT | InfViTConfig, crop: float = 224 / 257) -> BitImageProcessor:
    """Shortest side resized, centre crop, ImageNet normalisation: the paper's validation transform."""
    size = model.patch_embed.img_size if isinstance(model, InfViT) else model.img_size
    height, width = (size, size) if isinstance(size, int) else size
    return BitImageProcessor(
        size={"shortest_edge": round(min(height, width) / crop)},
        crop_size={"height": height, "width": width},
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
        resample=3,
    )


AutoConfig.register("infvit", InfViTConfig)
AutoModel.register(InfViTConfig, InfViTModel)
AutoModelForImageClassification.register(InfViTConfig, InfViTForImageClassification)
AutoImageProcessor.register(InfViTConfig, BitImageProcessor)
