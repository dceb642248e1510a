"""A whole InfViT at speed, for images of any size: few passes over the tokens, and only what the classifier reads.

    quick = infsa.models.fast(model)
    logits = quick(images)

Without gradients nothing is compiled for a size: kernels take any number of tokens, long inputs go through each MLP in
chunks, short ones are replayed as CUDA graphs. The parameters stay those of the model. A model with hooks runs as it
is. With ``fp8`` the largest products are rounded to 8 bits, and :meth:`FastInfViT.error` says what that costs.
"""

import contextlib
import itertools
import threading
import time
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ..ops.checks import check_count
from ..ops.dispatch import untouched
from ..ops.tracing import exporting, transformed
from .blocks import Block, Context
from .embedding import embed
from .fp8 import check_fp8
from .graphs import Graphs, Snapshot
from .infvit import InfViT, not_an_infvit
from .tokenwise import Ahead, add_mlp, groups_of, is_plain_mlp, is_plain_norm

MANY, BLOCK = 16, 128  # images that share a weight's read, tokens in the largest block of a kernel
COMPILING = threading.RLock()  # torch.compile in two threads at once leaves its global state wrong
SHORT = 2**26  # numbers in a batch of tokens up to which launches take longer than arithmetic: 65,536 of width 1024


def fast(
    model: InfViT, *, compile: bool = True, graphs: bool = True, chunk: int = 8448, fp8: bool = False
) -> "FastInfViT":
    """A callable that gives a model's logits faster.

    Args:
        model: any InfViT; its parameters are shared, so it can still be trained, saved and used.
        compile: use ``torch.compile`` where gradients are asked for; there a new image size compiles again. If that
            fails, a warning says so and such calls run eagerly.
        graphs: replay short inputs (up to 65,536 tokens of width 1024 a batch) as CUDA graphs; at most 64 are kept.
        chunk: tokens per MLP call without gradients. The default fills whole waves of tiles on GPUs with 132
            multiprocessors.
        fp8: run the products of MLPs and of Linear-InfSA's queries in 8 bits, a scale per row; inference only.

    Example:
        >>> infsa.models.fast(model, compile=False)(images).shape
        torch.Size([2, 10])
    """
    if not isinstance(model, InfViT):
        raise not_an_infvit(model, "fast")
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
        self.model, self.compiled, self.replays, self.chunk, self.fp8 = model, compile, graphs, chunk, fp8
        self.training = model.training
        self._prepare()

    def _prepare(self) -> None:
        self._known: tuple[Snapshot, Graphs] | None = None  # the model as it was, and the graphs made of it
        self._met: set[Any] = set()  # kinds of calls whose kernels are compiled
        whole = self._differentiable
        self._with_gradients = torch.compile(whole, dynamic=False) if self.compiled else whole

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to this object alone: compiled code and graphs."""
        own = ("_known", "_met", "_with_gradients")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without compiled code and graphs."""
        super().__setstate__(state)
        self._prepare()

    def train(self, mode: bool = True) -> "FastInfViT":
        """Set the mode of the model too; 8-bit products have no gradient."""
        if mode and self.fp8:
            raise ValueError("fp8=True is for inference: call .eval(), or build fast(model) without it")
        return super().train(mode)

    def forward(self, images: Tensor, patch_mask: Tensor | None = None) -> Tensor:
        """Images (B, C, H, W) to logits (B, classes)."""
        rows, columns = self.model.grid_of(images)
        traced = torch.compiler.is_dynamo_compiling() or exporting() or transformed() or is_in_torch_dispatch_mode()
        plain = not traced and type(images) in (Tensor, nn.Parameter) and images.shape[0] > 0
        cast = torch.is_autocast_enabled(images.device.type)
        if self.fp8 and (not plain or cast):
            raise ValueError("fp8=True takes plain tensors of at least one image, without autocast and torch.compile")
        if not plain:
            return self._differentiable(images, patch_mask, does_more(self.model))
        snapshot, graphs = self._current()
        heard = snapshot.heard() or does_more(self.model)
        if self.fp8 and snapshot.training:
            raise ValueError("fp8=True is for inference: call .eval(), or build fast(model) without it")
        if self.fp8 and heard:
            raise ValueError("fp8=True takes modules without hooks and with the forward of their class, got others")
        learning = not self.fp8 and torch.is_grad_enabled() and (images.requires_grad or snapshot.learns())
        if learning or snapshot.training:
            with COMPILING:
                return self._compiled_or_eager(images, patch_mask, heard)
        tokens = images.shape[0] * (self.model.num_prefix_tokens + rows * columns)
        with torch.no_grad():
            if cast or heard:
                return self._differentiable(images, patch_mask, heard)
            short = tokens * self.model.embed_dim <= SHORT
            if not (images.is_cuda and self._met_before(images, patch_mask) and short and self.replays):
                return self._infer(images, patch_mask)
            return graphs.run(self._infer, images, patch_mask)

    def _current(self) -> tuple[Snapshot, Graphs]:
        """What belongs to the model as it is; other threads may replace it at any time."""
        known = self._known
        if known is None or known[0].model is not self.model or not known[0].holds():
            if self.fp8:
                check_fp8(self.model)
            known = self._known = (Snapshot(self.model), Graphs())
        return known

    def _compiled_or_eager(self, images: Tensor, patch_mask: Tensor | None, whole: bool) -> Tensor:
        """The logits by compiled code; where that fails, and eager code does not, all further calls are eager."""
        try:
            return self._with_gradients(images, patch_mask, whole)
        except Exception as error:  # the compiler and its backends raise many kinds
            if self._with_gradients == self._differentiable:
                raise
            found = self._differentiable(images, patch_mask, whole)
            self._with_gradients = self._differentiable
            cause = getattr(error, "inner_exception", None) or error
            text = (str(cause).strip().splitlines() or [""])[0][:200]
            warnings.warn(
                f"not compiled, fast runs eagerly with gradients: {type(cause).__name__}: {text}", stacklevel=3
            )
            return found

    def _met_before(self, images: Tensor, patch_mask: Tensor | None) -> bool:
        """Compile at the first call what calls of this kind may need; False within a capture by the caller."""
        kind = (images.device, images.dtype, patch_mask is None)
        capturing = torch.cuda.is_current_stream_capturing()
        if kind not in self._met:
            if capturing:
                raise RuntimeError("the first call of a fast model compiles its kernels: call it once before a capture")
            if self.model.dynamic_img_size:
                self._compile(images, patch_mask is None)
            self._met.add(kind)
        return not capturing

    def _compile(self, like: Tensor, unmasked: bool) -> None:
        """Run small images of all kinds that kernels tell apart: few and many, tokens in whole blocks or not."""
        (down, across), prefix = self.model.patch_embed.patch_size, self.model.num_prefix_tokens
        for batch, (rows, columns) in itertools.product((1, MANY), ((5, 5), (1, BLOCK - prefix % BLOCK))):
            images = like.new_zeros(batch, self.model.in_chans, rows * down, columns * across)
            mask = None if unmasked else torch.ones(batch, rows, columns, dtype=torch.bool, device=like.device)
            self._infer(images, mask)

    def _differentiable(self, images: Tensor, patch_mask: Tensor | None, whole: bool) -> Tensor:
        """The logits by the model's own modules; by the model as a ``whole``, hooks see what they see there."""
        if whole:
            return self.model(images, patch_mask)
        return self.model.classify(*self.model.embed(images), patch_mask)

    def _infer(self, images: Tensor, patch_mask: Tensor | None) -> Tensor:
        """The logits without gradients, by kernels where the modules are plain; none of them has hooks."""
        with torch.cuda.device(images.device) if images.is_cuda else contextlib.nullcontext():
            x = embed(self.model, images).contiguous()
            return self.model.classify(x, self.model.grid_of(images), patch_mask, _Steps(self))

    def warm_up(self, *sizes: int | tuple[int, int], batch: int = 1) -> dict[str, float]:
        """Compile and load the kernels, and capture the graphs of the given image sizes, by default the model's own.

        Kernels are compiled at the first call, for all sizes and batches to come, and kept on disk by Triton; a few
        more at the first call with a ``patch_mask``. Returns ``seconds``, what it took, and ``graphs`` and
        ``graph_bytes`` of :meth:`graph_memory`.
        """
        check_count(batch, "batch")
        like, begin = self.model.patch_embed.proj.weight, time.perf_counter()
        for size in sizes or (self.model.patch_embed.img_size,):
            height, width = (size, size) if isinstance(size, int) else size
            images = like.new_zeros(batch, self.model.in_chans, height, width)
            with torch.no_grad():
                self(images)
        if like.is_cuda:
            torch.cuda.synchronize(like.device)
        return {"seconds": time.perf_counter() - begin, **self.graph_memory()}

    def graph_memory(self) -> dict[str, int]:
        """How many CUDA graphs are kept, and the bytes of GPU memory that they hold."""
        if self._known is None:
            return {"graphs": 0, "graph_bytes": 0}
        return {"graphs": len(self._known[1].graphs), "graph_bytes": self._known[1].bytes}

    @torch.no_grad()
    def error(self, images: Tensor) -> dict[str, float]:
        """How far these logits are from the model's, ``relative`` to their norm, and the share of ``same_class``."""
        expected, found = self.model(images).double(), self(images).double()
        difference = (found - expected).norm() / expected.norm()
        same = (found.argmax(-1) == expected.argmax(-1)).double().mean()
        return {"relative": difference.item(), "same_class": same.item()}


def does_more(model: InfViT) -> bool:
    """Whether calling a model is more than its embedding, its blocks and its read-out: it has hooks, or its own way."""
    own = any(getattr(type(model), name) is not getattr(InfViT, name) for name in ("forward", "forward_features"))
    return own or "forward_features" in vars(model) or not untouched(model)


class _Steps:
    """The blocks of one call. Each also normalises its tokens for the next, while they are at hand."""

    def __init__(self, fast: FastInfViT) -> None:
        self.fast, self.blocks = fast, fast.model.blocks
        self.ahead: Ahead | None = None  # what the next block begins with
        self.offset: Tensor | None = None  # what is still to be added to all tokens of an image: (B, D)

    def __call__(self, index: int, block: nn.Module, x: Tensor, context: Context, leaving: int | None) -> Tensor:
        """The first ``leaving`` tokens after a block, all if None: (B, N, D), written over x."""
        ahead, self.ahead = self.ahead, None
        if type(block) is not Block or not is_plain_norm(block.norm1):
            self._check_modules_may_run()
            x = block(self._settled(x), *context, *(() if leaving is None else (leaving,)))
            return x.clone(memory_format=torch.contiguous_format)  # the next block writes over it
        ahead = self._begun(block, x) if ahead is None else ahead
        attended = ahead.attend(*context)
        if leaving is not None:
            x, attended = x[:, :leaving].contiguous(), attended[:, :leaving]
        if not is_plain_mlp(block, x):
            self._check_modules_may_run()
            return block.add(self._settled(x), attended)
        following, fp8 = self.blocks[index + 1] if index + 1 < len(self.blocks) else None, self.fast.fp8
        if type(following) is Block and is_plain_norm(following.norm1):

            def begin(offset: Tensor) -> Ahead:
                return Ahead(following, x, fp8=fp8, normal=ahead.normal, added=fp8, offset=offset)

            self.offset, self.ahead = add_mlp(block, x, attended, self.offset, self.fast.chunk, fp8, begin)
            return x
        self.offset, _ = add_mlp(block, x, attended, self.offset, self.fast.chunk, fp8)
        return self._settled(x)

    def _begun(self, block: Block, x: Tensor) -> Ahead:
        """The first block's norm, and one after a block of another kind."""
        ahead, rows = Ahead(block, x, fp8=self.fast.fp8, offset=self.offset), x.view(-1, x.shape[2])
        for group in groups_of(rows.shape[0], self.fast.chunk):
            ahead(rows[group], group)
        return ahead

    def _check_modules_may_run(self) -> None:
        """Refuse 8 bits where a block's own modules would run without them."""
        if self.fast.fp8:
            raise ValueError("fp8=True takes blocks of plain norms and MLPs of one dtype, got others")

    def _settled(self, x: Tensor) -> Tensor:
        offset, self.offset = self.offset, None
        return x if offset is None else (x + offset.unsqueeze(1)).to(x.dtype)
