"""What the checks share: a list of them, uneven shares, comparison, a small model.

Every check runs in all processes of a group, computes the answer of one process and compares its own part.
"""

import torch
import torch.distributed as dist

import infsa

CHECKS = {}  # name -> (number of processes, function)


def check(*worlds):
    """Register a check for groups of these sizes."""

    def keep(function):
        CHECKS[function.__name__] = (worlds, function)
        return function

    return keep


def shares(count):
    """Uneven shares of ``count`` tokens, one rank without any: the slice of each rank."""
    world = dist.get_world_size()
    sizes = (
        [count - count // 3, count // 3] if world == 2 else [count // 2, 0, count // 3, count - count // 2 - count // 3]
    )
    stops = torch.tensor(sizes).cumsum(0).tolist()
    return [slice(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


def own_share(count):
    return shares(count)[dist.get_rank()]


def assert_near(value, expected, tolerance=1e-12):
    """Equal up to ``tolerance`` of the largest entry; float64 leaves rounding far below it."""
    assert value.shape == expected.shape, (value.shape, expected.shape)
    scale = expected.abs().max().clamp_min(1e-300) if expected.numel() else 1
    assert value.numel() == 0 or (value - expected).abs().max() <= tolerance * scale, (value - expected).abs().max()


def heads(batch=2, count=2, tokens=23, width=4, parts=3):
    return [torch.randn(batch, count, tokens, width, dtype=torch.float64) for _ in range(parts)]


def compare_operator(function, sharded, tensors, weights, own, whole_output=False):
    """Values and gradients of this rank's tokens against those of one process; the loss is a weighted sum of tokens."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    expected = function(*leaves)
    (expected * weights).sum().backward()
    parts = [x[:, :, own].clone().requires_grad_() for x in tensors]
    result = sharded(*parts)
    own_weights = weights[:, :, own] if not whole_output else weights / dist.get_world_size()
    (result * own_weights).sum().backward()
    assert_near(result.detach(), (expected if whole_output else expected[:, :, own]).detach())
    for part, leaf in zip(parts, leaves, strict=True):
        assert_near(part.grad, leaf.grad[:, :, own])


def small(attention="infsa_linear", **options):
    chosen = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    torch.manual_seed(1)
    model = infsa.models.InfViT(attention=attention, dtype=torch.float64, **{**chosen, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # away from the small start, where little happens
    return model
