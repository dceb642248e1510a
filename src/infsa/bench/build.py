"""From a case to a call that can be timed."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..models import InfViT
from ..nn.infsa import merge_heads
from ..nn.peers import SoftmaxAttention, create_attention
from ..nn.peers.layout import Layout
from .cases import BASE, Case

CLASSES = 1000
WARM_UPS = 3  # calls before the capture: libraries choose their algorithms and claim their workspaces


class UnfusedSoftmax(SoftmaxAttention):
    """Softmax attention as it was written before fused kernels: the N×N matrix in the type of the input."""

    def _mix(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self._project(x)
        weights = (q * self.head_dim**-0.5 @ k.mT).softmax(-1)
        return merge_heads(weights @ v)


@dataclass(frozen=True)
class Built:
    """A case ready to run: ``call`` does one forward pass, or one forward and backward pass."""

    call: Callable[[], None]
    parameters: int
    module: nn.Module


def build(case: Case, device: torch.device | str) -> Built:
    """The model or the layer of a case on a device, with random weights and inputs.

    Positions have the resolution of the case; a mechanism's own tables are made for 224 pixels, as in training, and
    resized at every call. Training is forward and backward without an optimiser, which is the same for all.
    ``compile="graph"`` replays the eager call as a CUDA graph.
    """
    if case.compile == "graph":
        check_device(device)
    torch.manual_seed(0)
    device = torch.device(device)
    module = build_module(case, device, dict(case.variant.options))
    run: Any = module
    if case.compile not in (
        "none",
        "graph",
    ):  # every case is one shape, and none may fall back because others were compiled before
        torch._dynamo.config.recompile_limit = 256
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        run = torch.compile(module, mode=case.compile, dynamic=False)
    call = make_call(case, run, module, device)
    if case.compile == "graph":
        call = replayed(call, device)
    return Built(call, count_parameters(module), module)


def build_module(case: Case, device: torch.device | str, options: dict[str, Any]) -> nn.Module:
    """The model or the layer alone, with these options of the mechanism."""
    factory: dict[str, Any] = {"device": device, "dtype": getattr(torch, case.dtype)}
    grid = (BASE // case.patch, BASE // case.patch)
    unfused = case.mechanism == "softmax-naive"
    if case.part == "model":
        model = InfViT(
            case.size, case.patch, embed_dim=case.width, depth=case.depth, num_heads=case.heads, num_classes=CLASSES,
            attention=case.variant.attention, attention_options=options, attention_grid=grid, stem=case.stem,  # type: ignore[arg-type]
            **factory,
        )  # fmt: skip
        for block in model.blocks if unfused else ():
            block.attn = UnfusedSoftmax(case.width, case.heads, grid=grid, **factory)
        module: nn.Module = model
    elif unfused:
        module = UnfusedSoftmax(case.width, case.heads, grid=grid, **factory)
    else:
        module = create_attention(case.variant.attention, case.width, case.heads, grid=grid, **options, **factory)
    return module.train(case.mode == "train")


def count_parameters(module: nn.Module) -> int:
    """Parameters with the positions of 224 pixels, whatever the resolution."""
    total = sum(p.numel() for p in module.parameters())
    if not isinstance(module, InfViT) or module.pos_embed is None:
        return total
    rows, columns = module.attention_grid
    return total - module.pos_embed.numel() + (module.num_prefix_tokens + rows * columns) * module.embed_dim


def make_call(case: Case, run: Any, module: nn.Module, device: torch.device) -> Callable[[], None]:
    """One pass of ``run``, which is the module or its compiled form, on random inputs."""
    factory: dict[str, Any] = {"device": device, "dtype": getattr(torch, case.dtype)}
    training = case.mode == "train"
    inputs: tuple[Any, ...]
    if case.part == "model":
        labels = torch.arange(case.batch, device=device) % CLASSES
        inputs = (torch.randn(case.batch, 3, *case.size, **factory),)
    else:
        inputs = (torch.randn(case.batch, case.tokens, case.width, **factory).requires_grad_(training), case.grid)

    def loss(output: Tensor) -> Tensor:
        output = output.float()
        return F.cross_entropy(output, labels) if case.part == "model" else output.square().mean()

    def kernels() -> Any:
        backend = case.variant.backend
        return nullcontext() if backend is None else sdpa_kernel(getattr(SDPBackend, backend))

    @torch.no_grad()
    def infer() -> None:
        with kernels():
            run(*inputs)

    def train() -> None:
        with kernels():
            loss(run(*inputs)).backward()
        module.zero_grad(set_to_none=True)
        inputs[0].grad = None

    return train if training else infer


def check_device(device: torch.device | str) -> None:
    """Refuse a device that has no CUDA graphs.

    Example:
        >>> check_device("cpu")
        Traceback (most recent call last):
        ValueError: compile='graph' replays a CUDA graph and needs a CUDA device, got 'cpu'
    """
    kind = torch.device(device).type
    if kind != "cuda":
        raise ValueError(f"compile='graph' replays a CUDA graph and needs a CUDA device, got {kind!r}")


def replayed(call: Callable[[], None], device: torch.device | str, cuda: Any = torch.cuda) -> Callable[[], None]:
    """Capture one call, a forward pass or a whole training step, and return what replays it.

    The call must read and write the same tensors every time. ``cuda`` is ``torch.cuda``, or in tests what stands in
    for it.
    """
    check_device(device)
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UPS):
            call()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        call()
    return graph.replay
