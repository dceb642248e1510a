"""What timm asks of a model beside forward: features, classifier, parameter groups."""

from typing import Any

from timm.models._features import feature_take_indices
from torch import Tensor, nn

from ..ops.checks import check_choice
from .blocks import Trunk
from .options import check_pool, layer_names, short_names, unused_options
from .patches import resize_table


class TimmInterface(Trunk):
    """The part of :class:`InfViT` that timm's feature wrappers, optimisers and training scripts call."""

    attention_grid: tuple[int, ...]
    feature_info: list[dict[str, Any]]
    num_classes: int

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Features after the chosen blocks, as timm defines it: (final, [features]) or [features]."""
        wanted = str(getattr(output_fmt, "value", output_fmt))
        check_choice("output_fmt", wanted, ("NCHW", "NLC"))
        take, last = feature_take_indices(len(self.blocks), indices)
        tokens, grid = self.embed(x)
        features: list[Tensor] = []

        def keep(index: int, before: Tensor, after: Tensor) -> None:
            if index in take:
                features.append(self.norm(after) if norm else after)

        final = self.run_blocks(tokens, grid, visit=keep, depth=last + 1 if stop_early else None)
        prefixes = [feature[:, : self.num_prefix_tokens] for feature in features]
        features = [feature[:, self.num_prefix_tokens :] for feature in features]
        if wanted == "NCHW":
            features = [f.unflatten(1, grid).permute(0, 3, 1, 2).contiguous() for f in features]
        result = list(zip(features, prefixes, strict=True)) if return_prefix_tokens else features
        return result if intermediates_only else (self.norm(final), result)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        """Make another image or patch size the base, resizing learned positions and patch weights."""
        before = self.patch_embed.grid_size
        img_size = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.patch_embed.set_input_size(img_size=img_size, patch_size=patch_size)
        self.feature_info = [{**info, "reduction": self.patch_embed.feat_ratio()} for info in self.feature_info]
        self.arguments |= {
            "img_size": self.patch_embed.img_size,
            "patch_size": self.patch_embed.patch_size,
            "attention_grid": self.attention_grid,  # tables of the mechanisms stay as they are
        }
        grid = self.patch_embed.grid_size
        if self.pos_embed is not None and grid != before:
            table = resize_table(self.pos_embed.detach(), before, grid, self.num_prefix_tokens)
            self.pos_embed = nn.Parameter(table)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the blocks after the last wanted one, and the head; returns the indices kept."""
        take, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        names = layer_names(self.arguments["attention"], self.arguments["depth"])[: last + 1]
        options, uniform = self.arguments["attention_options"], isinstance(self.arguments["attention"], str)
        if options and not uniform:
            kept = {name: table for name, table in options.items() if name in names}
            options = kept.get(names[0]) if len(set(names)) == 1 else kept
        kept_names = {"depth": last + 1, "attention": short_names(names), "attention_options": options}
        self.arguments |= {**kept_names, **unused_options(names)}
        if prune_head:
            self.pre_logits = None
            self.reset_classifier(0)
        return take

    def no_weight_decay(self) -> set[str]:
        """Parameters that should not decay."""
        own = {name for name, _ in self.named_parameters() if name.endswith("decay.logit")}
        return {"pos_embed", "cls_token", "reg_token"} | own

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Layer groups, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|reg_token|pos_embed|patch_embed",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The classifier."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier, and the pooling if given."""
        if global_pool is not None:
            check_pool(global_pool, self.has_class_token)
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.arguments |= {"num_classes": num_classes, "global_pool": self.global_pool}
        like = self.patch_embed.proj.weight
        self.head = (
            nn.Linear(self.embed_dim, num_classes, device=like.device, dtype=like.dtype)
            if num_classes
            else nn.Identity()
        )
        self.head.train(self.training)
