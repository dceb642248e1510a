"""A whole InfViT at speed: compiled, the last MLP for the class token alone, long inputs in chunks, short as graphs.

Disjoint patches are embedded by the matrix product that their convolution is.

    quick = infsa.models.fast(model)
    logits = quick(images)

The parameters stay those of the model. What it leaves out is what the classifier never reads, so the result is the
model's up to rounding; with ``fp8`` the MLP's products are rounded to 8 bits, and :meth:`FastInfViT.error` says what
that costs.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from timm.layers import Mlp
from torch import Tensor, nn

from ..ops.checks import check_count
from ..ops.dispatch import untouched
from ..ops.rows import linear
from ..ops.tracing import transformed
from .block import Block
from .embedding import embed_by_product
from .fp8 import Fp8Linear, check_fp8
from .gelu import HALF, HalfGELU, half_gelu, is_exact_gelu
from .infvit import InfViT

REPLAYED = {
    "triton.cudagraphs": True,
    "realize_reads_threshold": 2,  # tokens are written, not added up again
    "unroll_reductions_threshold": 17,  # a sum over a head's 16 channels needs no threads of its own
}
MOST_PLACES = 8  # kinds of images; torch compiles no more by default
SHORT = 20480  # tokens of a batch up to which launches, not arithmetic, take the time: 2048² and more


def fast(
    model: InfViT, *, compile: bool = True, graphs: bool = True, chunk: int = 8448, fp8: bool = False
) -> "FastInfViT":
    """A callable that gives a model's logits faster.

    Args:
        model: any InfViT; its parameters are shared, so it can still be trained, saved and used.
        compile: use ``torch.compile``; a new image size compiles again.
        graphs: replay short inputs (up to 20,480 tokens a batch, without gradients, on a GPU) as CUDA graphs.
        chunk: tokens per MLP call for longer inputs without gradients, which then hold one copy of the tokens. The
            default fills whole waves of tiles on GPUs with 132 processors.
        fp8: run the MLPs' products in 8 bits, with a scale per row; inference only.

    Example:
        >>> model = infsa.create_model("infvit_linear_4l64h_patch16_224").to("cuda", torch.bfloat16).eval()
        >>> logits = infsa.models.fast(model)(images)
    """
    if not isinstance(model, InfViT):
        raise TypeError(f"fast takes an InfViT, got {type(model).__name__}")
    other = next((type(block).__name__ for block in model.blocks if not isinstance(block, Block)), None)
    if other is not None:
        raise ValueError(f"fast takes models of attention and MLP (mlla_block=False), got blocks of type {other}")
    check_count(chunk, "chunk")
    if fp8:
        check_fp8(model)
    return FastInfViT(model, compile, graphs, chunk, fp8)


class FastInfViT(nn.Module):
    """What :func:`fast` returns: ``forward(images, patch_mask=None)``, (B, C, H, W) -> (B, classes)."""

    def __init__(self, model: InfViT, compile: bool, graphs: bool, chunk: int, fp8: bool) -> None:
        super().__init__()
        self.model, self.compiled, self.graphs, self.chunk = model, compile, graphs and compile, chunk
        self.training = model.training
        self.mlps = nn.ModuleList(_eight_bit(block) for block in model.blocks) if fp8 else None
        self._prepare()

    def _prepare(self) -> None:
        as_is: Callable[..., Any] = lambda function, **_: function  # noqa: E731
        prepare: Callable[..., Any] = torch.compile if self.compiled else as_is
        self._places: dict[Any, Tensor] = {}  # where graphs find images
        self._with_gradients = prepare(self._differentiable, dynamic=False)
        self._whole = prepare(self._inferred, dynamic=False)
        self._replayed = prepare(self._inferred, dynamic=False, options=REPLAYED)
        self._embed = prepare(embed_by_product, dynamic=False)
        self._attend = prepare(_attend, dynamic=False)
        self._add = prepare(_add, dynamic=False)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to this object alone: compiled code and graphs' memory."""
        own = ("_places", "_with_gradients", "_whole", "_replayed", "_embed", "_attend", "_add")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Compile anew."""
        super().__setstate__(state)
        self._prepare()

    def train(self, mode: bool = True) -> "FastInfViT":
        """Set the mode of the model too; 8-bit products have no gradient."""
        if mode and self.mlps is not None:
            raise ValueError("fp8=True is for inference: call .eval(), or build fast(model) without it")
        return super().train(mode)

    def forward(self, images: Tensor, patch_mask: Tensor | None = None) -> Tensor:
        """Images (B, C, H, W) to logits (B, classes)."""
        rows, columns = self.model.grid_of(images)
        tokens = images.shape[0] * (self.model.num_prefix_tokens + rows * columns)
        if self.mlps is None and not self._infers(images):
            return self._with_gradients(images, patch_mask)
        with torch.no_grad():
            if self.mlps is not None or tokens > SHORT:
                return self._in_chunks(images, patch_mask)
            if not (self.graphs and images.is_cuda):
                return self._whole(images, patch_mask)
            return self._replayed(self._placed(images), patch_mask).clone()  # the graph's memory is used again

    def _infers(self, images: Tensor) -> bool:
        """Whether nothing is learned or dropped, and the blocks are what the short cuts know."""
        model = self.model
        learning = torch.is_grad_enabled() and any(x.requires_grad for x in (images, *model.parameters()))
        dropping = self.training or any(module.training for module in model.modules())
        return not (learning or dropping) and model.readout == "last" and all(type(b) is Block for b in model.blocks)

    def _differentiable(self, images: Tensor, patch_mask: Tensor | None) -> Tensor:
        model = self.model
        return model.classify(embed_by_product(model, images), model.grid_of(images), patch_mask)

    def _placed(self, images: Tensor) -> Tensor:
        """The images at an address that stays, one per thread, where a graph reads them without a copy of its own."""
        if torch.compiler.is_compiling() or transformed():
            return images
        kind = (images.shape, images.dtype, images.device, threading.get_ident())
        if kind not in self._places:
            if len(self._places) >= MOST_PLACES:
                return images
            with torch.inference_mode(False):
                self._places[kind] = torch.empty(images.shape, dtype=images.dtype, device=images.device)
            torch._dynamo.mark_static_address(self._places[kind])
        return self._places[kind].copy_(images)

    def _inferred(self, images: Tensor, patch_mask: Tensor | None) -> Tensor:
        """The logits without gradients, in one piece."""
        return self._blocks(images, patch_mask, embed_by_product(self.model, images), _attend, _add, None)

    def _in_chunks(self, images: Tensor, patch_mask: Tensor | None) -> Tensor:
        """Block by block, the MLP of each in chunks of tokens that overwrite their input."""
        tokens = self._embed(self.model, images)
        return self._blocks(images, patch_mask, tokens, self._attend, self._add, self.chunk)

    def _blocks(
        self,
        images: Tensor,
        patch_mask: Tensor | None,
        x: Tensor,
        attend: Callable[..., Tensor],
        add: Callable[..., Tensor],
        chunk: int | None,
    ) -> Tensor:
        model = self.model
        grid = model.grid_of(images)
        context = (grid, model.num_prefix_tokens, model.key_mask(patch_mask, grid))
        for index, block in enumerate(model.blocks):
            attended = attend(block, x, *context)
            if index == len(model.blocks) - 1 and model.global_pool == "token":
                x, attended = x[:, :1].clone(), attended[:, :1]
            mlp = None if self.mlps is None else self.mlps[index]
            if chunk is None:
                x = add(block, mlp, x, attended)
                continue
            for start in range(0, x.shape[1], chunk):
                part = slice(start, start + chunk)
                add(block, mlp, x[:, part], attended[:, part], in_place=True)
        return model.forward_head(model.norm(x), patch_mask=patch_mask)

    @torch.no_grad()
    def error(self, images: Tensor) -> dict[str, float]:
        """The distance of these logits from the model's own, relative to their norm, and the share of equal classes.

        Example:
            >>> infsa.models.fast(model, fp8=True).eval().error(images)
            {'relative': 0.012, 'same_class': 1.0}
        """
        expected, found = self.model(images).double(), self(images).double()
        difference = (found - expected).norm() / expected.norm()
        same = (found.argmax(-1) == expected.argmax(-1)).double().mean()
        return {"relative": difference.item(), "same_class": same.item()}


def _attend(block: Block, x: Tensor, *context: Any) -> Tensor:
    return block.attend(x, *context)


def _add(block: Block, mlp: nn.Module | None, x: Tensor, attended: Tensor, in_place: bool = False) -> Tensor:
    """x + attended, then + MLP: (B, n, D), over x itself where asked."""
    found = x + attended
    if block.norm2 is not None and block.mlp is not None:
        found = found + (_mlp(block.mlp, block.norm2(found)) if mlp is None else mlp(block.norm2(found)))
    return x.copy_(found) if in_place else found


def _mlp(mlp: nn.Module, x: Tensor) -> Tensor:
    """The block's MLP; a plain one in half precision with the cheaper GELU."""
    if type(mlp) is not Mlp or x.dtype not in HALF or not is_exact_gelu(mlp.act):
        return mlp(x)
    if not isinstance(mlp.norm, nn.Identity) or not untouched(*mlp.modules()):
        return mlp(x)
    return linear(half_gelu(linear(x, mlp.fc1)), mlp.fc2)


def _eight_bit(block: nn.Module) -> nn.Module:
    """The block's MLP with its two products in 8 bits."""
    assert isinstance(block, Block)
    mlp = block.mlp
    if mlp is None:
        return nn.Identity()
    assert isinstance(mlp, Mlp) and isinstance(mlp.fc1, nn.Linear) and isinstance(mlp.fc2, nn.Linear)  # noqa: PT018
    return nn.Sequential(Fp8Linear(mlp.fc1), HalfGELU() if is_exact_gelu(mlp.act) else mlp.act, Fp8Linear(mlp.fc2))
