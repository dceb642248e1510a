"""A model as a cohort sees it: images in, embeddings, logits and maps out, in batches of one size or streamed."""

import copy
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import timm
import timm.data
import torch
from PIL import Image
from timm.layers import global_pool_nlc
from torch import Tensor, nn

from ..data import transform_for
from ..data.decode import MAX_PIXELS
from ..data.tasks import Task
from ..data.transforms import RESAMPLING, normalised, normalised_values
from ..evaluate import class_names, input_size, load_model, maps_of
from ..evaluate.maps import model_tasks, one_row
from ..models import InfViT, fast
from ..models.adopt import timm_weights
from ..models.weights import WEIGHTS
from ..streaming import stream
from ..streaming.memory import resident
from ..streaming.network import check_model
from .settings import Settings

COPIES = 6  # of the largest activation that are held at a time
Found = dict[str, Tensor]  # by column: class_token and pooled (B, D), logits (B, classes), map (B, h, w)


def open_model(source: str | nn.Module, device: torch.device | str = "cpu") -> nn.Module:
    """A model in eval mode: an InfViT by name, file or folder, or ``timm:`` and a name or a saved folder of timm.

    Weights of timm are taken from this disk, as safetensors; nothing is fetched.
    """
    if isinstance(source, nn.Module):
        return copy.deepcopy(source).eval().to(device)  # which stays as it is
    kind, _, name = source.partition(":")
    if kind != "timm":
        return load_model(source, device)
    if Path(name).is_dir():
        if not (Path(name) / WEIGHTS).is_file():
            raise FileNotFoundError(f"no {WEIGHTS} in {name}")
        model = timm.create_model(f"local-dir:{name}", pretrained=True)
    else:
        file, _ = timm_weights(name)
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": str(file)})
    return model.eval().to(device)


@dataclass
class Network:
    """A model with what is asked of it.

    Args:
        model: an InfViT or a model of timm, in eval mode.
        settings: see :class:`Settings`.
    """

    model: nn.Module
    settings: Settings

    def __post_init__(self) -> None:
        self.model = self.model.to(getattr(torch, self.settings.dtype))
        self.device = next(self.model.parameters()).device
        self.dtype = getattr(torch, self.settings.dtype)
        self.ours = isinstance(self.model, InfViT)
        self.config: dict[str, Any] = timm.data.resolve_model_data_config(self.model)
        if (size := getattr(getattr(self.model, "patch_embed", None), "img_size", None)) is not None:
            self.config["input_size"] = (self.config["input_size"][0], *size)  # what it was built for
        self._check()
        self.values = normalised_values(self.config["mean"], self.config["std"])
        if self.settings.resolution == "crop":
            self.crop = transform_for(self.config, train=False)

    def _check(self) -> None:
        """Refuse what this model cannot do, before anything is read."""
        model, settings = self.model, self.settings
        channels = getattr(model, "in_chans", self.config["input_size"][0])
        if channels != 3:
            raise ValueError(f"embedding needs a model of RGB images, got one of {channels} channels")
        if self.ours and model.global_pool == "":
            raise ValueError("embedding needs a model with a global_pool, got ''")
        if settings.maps and not self.ours:
            raise ValueError(f"maps need an InfViT, got {type(model).__name__}")
        tokens = getattr(model, "has_class_token", bool(getattr(model, "num_prefix_tokens", 0)))
        if settings.embedding in ("class", "both") and not tokens:
            raise ValueError(f"this model has no class token, got embedding={settings.embedding!r}: use 'pooled'")
        self.embedding = settings.embedding or ("class" if tokens else "pooled")
        if settings.resolution != "crop":
            self._try_sizes()

    @torch.inference_mode()
    def _try_sizes(self) -> None:
        """Refuse a model that takes images of one size only."""
        height, width = self.config["input_size"][1:]
        rows, columns = self.step
        try:
            self.model(torch.zeros(1, 3, height + rows, width + 2 * columns, device=self.device, dtype=self.dtype))
        except Exception as error:  # models refuse in many ways
            raise ValueError(
                f"this model accepts only images of {(height, width)}, got resolution={self.settings.resolution!r}: "
                "use resolution='crop'"
            ) from error

    @property
    def step(self) -> tuple[int, int]:
        """What the sides of an input must be multiples of: (rows, columns)."""
        patch = getattr(getattr(self.model, "patch_embed", None), "patch_size", None)
        if patch is None:
            return 32, 32  # the usual stride of convolutional networks
        rows, columns = (patch, patch) if isinstance(patch, int) else patch
        return int(rows), int(columns)

    @cached_property
    def classes(self) -> list[str]:
        """What the classes are called; none without a classifier."""
        return class_names(self.model) if getattr(self.model, "num_classes", 0) else []  # type: ignore[arg-type]

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The questions that the classifier answers, usually one; none without a classifier."""
        return tuple(model_tasks(self.model)) if self.classes else ()  # type: ignore[arg-type]

    @cached_property
    def streams(self) -> bool:
        """Whether images of any size can be streamed."""
        try:
            check_model(self.model)
        except (TypeError, ValueError):
            return False
        return self.settings.resolution == "native"

    def meaning(self) -> dict[str, Any]:
        """What a row of the table means: two tables with the same meaning hold the same numbers, up to rounding."""
        found = hashlib.blake2b(digest_size=16)
        for name, value in sorted(self.model.state_dict().items()):
            found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        facts = {name: self.config[name] for name in ("input_size", "mean", "std", "interpolation", "crop_pct")}
        facts["arguments"] = getattr(self.model, "arguments", type(self.model).__name__)
        found.update(json.dumps([facts, self.classes], sort_keys=True, default=str).encode())
        return {**self.settings.meaning(), "embedding": self.embedding, "weights": found.hexdigest()}

    # Sizes

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The width and height of the input for an image."""
        side, (rows, columns) = self.settings.resolution, self.step
        if side == "crop":
            return self.config["input_size"][2], self.config["input_size"][1]
        if side == "native":
            return -(-width // columns) * columns, -(-height // rows) * rows
        if side == "model":
            side = min(self.config["input_size"][1:])
        return input_size((width, height), (rows, columns), int(side))

    def needed(self, width: int, height: int) -> float:
        """About how many bytes an input of a size takes."""
        (rows, columns), model = self.step, self.model
        found = self.bytes_per_pixel * width * height
        if isinstance(model, InfViT) and not one_row(model):
            weights = 2 * model.num_heads + len(model.blocks) if self.settings.maps else 1
            found += 4 * weights * (width * height / (rows * columns)) ** 2
        return found

    @cached_property
    def bytes_per_pixel(self) -> float:
        """Bytes of activations per pixel: a few copies of the largest that a module gives."""
        most = 0

        def see(_: nn.Module, __: Any, output: Any) -> None:
            nonlocal most
            most = max(most, output.numel() if isinstance(output, Tensor) else 0)

        height, width = self.config["input_size"][1:]
        hooks = [module.register_forward_hook(see) for module in self.model.modules()]
        try:
            with torch.inference_mode():
                self.model(torch.zeros(1, 3, height, width, device=self.device, dtype=self.dtype))
        finally:
            for hook in hooks:
                hook.remove()
        return COPIES * max(self.dtype.itemsize, 2) * most / (height * width) + 15  # and the pixels themselves

    def fits(self, width: int, height: int) -> bool:
        """Whether an image can be decoded as a whole and its input run in the memory given."""
        return width * height <= MAX_PIXELS and self.needed(*self.size(width, height)) <= self.settings.room

    # Rows

    def see(self, image: Image.Image) -> Tensor:
        """An upright RGB image as input, (3, h, w)."""
        width, height = self.size(*image.size)
        if self.settings.resolution == "crop":
            return self.crop(image, np.zeros((0, 4), np.float32))[0]
        if self.settings.resolution != "native":
            image = image.resize((width, height), RESAMPLING[self.config["interpolation"]])
        pixels = normalised(image, self.values)
        return nn.functional.pad(pixels, (0, width - image.width, 0, height - image.height))

    @torch.inference_mode()
    def batch(self, images: Tensor, names: list[str], often: bool = False) -> Found:
        """What the model makes of inputs (B, 3, h, w); ``often`` if many batches have this shape."""
        images = images.to(self.device, self.dtype)
        found = self._ours(images, often) if self.ours else self._timm(images)
        if self.settings.maps:
            found["map"] = maps_of(self.model, images, "last", names)  # type: ignore[arg-type]
        return {name: value.float().cpu() for name, value in found.items()}

    def _ours(self, images: Tensor, often: bool) -> Found:
        run = self._compiled if often and self.device.type == "cuda" else self._fast
        tokens = run(images)
        if not self._pools:
            return self._labelled({"class_token": tokens})
        model = self._headless
        vectors = {"pooled": global_pool_nlc(tokens, self._pool, num_prefix_tokens=model.num_prefix_tokens)}
        return self._labelled(vectors | ({"class_token": tokens[:, 0]} if model.has_class_token else {}))

    def _labelled(self, vectors: Found) -> Found:
        """The vectors that were asked for, with the logits of the one that the classifier reads."""
        model = self.model
        assert isinstance(model, InfViT)
        found = {name: vectors[name] for name in self.columns}
        if self.classes:
            x = vectors["class_token" if model.global_pool == "token" else "pooled"]
            x = x if model.pre_logits is None else torch.tanh(model.pre_logits(x))
            found["logits"] = model.head(x)
        return found

    def _timm(self, images: Tensor) -> Found:
        model: Any = self.model
        x = model.forward_features(images)
        prefix = getattr(model, "num_prefix_tokens", 0)
        by_token = x.dim() == 3 and getattr(model, "global_pool", "") == "token"
        found = {}
        for name in self.columns:
            if name == "class_token":
                found[name] = x[:, 0]
            else:
                found[name] = x[:, prefix:].mean(1) if by_token else model.forward_head(x, pre_logits=True).flatten(1)
        return found | ({"logits": model.forward_head(x)} if self.classes else {})

    @torch.no_grad()
    def streamed(self, place: str, state: str | None = None) -> tuple[Found, tuple[int, int]]:
        """What the model makes of an image of any size, and the image's (width, height); ``state`` as in ``stream``."""
        memory = self.settings.memory if self.device.type == "cpu" else resident() + 2 * self.settings.room
        tile, maps = self.settings.tile, self.settings.maps
        result = stream(self.streaming_model, place, tile=tile, memory=memory, map=maps, state=state)
        vectors = {"pooled": result.features}
        engine = result._engine
        if (prefix := engine.prefix(engine.network.depth)) is not None and self._headless.has_class_token:
            last = engine.network.last_tokens(prefix, engine.code.rows, None)
            vectors["class_token"] = self._headless.norm(last)[:, 0]
        found = self._labelled(vectors)
        if self.settings.maps:
            found["map"] = torch.from_numpy(result.map)[None]
        height, width = result.code.size
        return {name: value.float().cpu() for name, value in found.items()}, (width, height)

    @property
    def columns(self) -> list[str]:
        """The columns of embeddings."""
        return {"class": ["class_token"], "pooled": ["pooled"], "both": ["class_token", "pooled"]}[self.embedding]

    @property
    def _pools(self) -> bool:
        """Whether the patch tokens are read: for their embedding, or by the classifier."""
        return "pooled" in self.columns or getattr(self.model, "global_pool", "") != "token"

    @property
    def _pool(self) -> str:
        own = str(self.model.global_pool)
        return "avg" if own == "token" else own

    @cached_property
    def _headless(self) -> InfViT:
        """The same model up to its final norm: the class token (B, D), or all tokens (B, N, D)."""
        return self._without_head("" if self._pools else "token")

    @cached_property
    def streaming_model(self) -> InfViT:
        """The model to stream: it pools only what is asked for, and pads its input as :meth:`see` does."""
        model = self._without_head(self._pool if self._pools else "token")
        model.patch_embed = copy.copy(model.patch_embed)
        model.patch_embed.dynamic_img_pad = True  # type: ignore[misc]  # only a hint to TorchScript
        return model

    def _without_head(self, pool: str) -> InfViT:
        model = copy.copy(self.model)
        assert isinstance(model, InfViT)
        model._modules = dict(model._modules)
        model.head, model.pre_logits, model.global_pool = nn.Identity().eval(), None, pool
        return model

    @cached_property
    def _fast(self) -> Any:
        try:
            return fast(self._headless, compile=False)
        except ValueError:  # blocks that fast does not know
            return lambda images: self._headless(images)

    @cached_property
    def _compiled(self) -> Any:
        return self._fast if not isinstance(self._fast, nn.Module) else fast(self._headless)
