"""Layers and models over ranks against those of one process."""

from copy import deepcopy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import infsa
from infsa import parallel
from tests.parallel.checks import assert_near, check, own_share, small


def alone_and_together(model, images, targets, masks=None, own=None, group=None, tolerance=1e-11):
    """Logits and averaged parameter gradients of a sharded model against those of one process."""
    expected = model(images, masks) if masks is not None else model(images)
    nn.functional.cross_entropy(expected, targets).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    sharded = parallel.shard_model(model, group)
    patch = model.patch_embed.patch_size[0]
    rows = slice(own.start // patch, -(-own.stop // patch))
    logits = sharded(images[:, :, own], None if masks is None else masks[:, rows])
    nn.functional.cross_entropy(logits, targets).backward()
    assert all(p.grad is not None for p in sharded.parameters())  # DistributedDataParallel waits for each of them
    parallel.average_gradients(sharded, group)
    assert_near(logits.detach(), expected.detach(), tolerance)
    for name, p in sharded.named_parameters():
        assert_near(p.grad, gradients[name], tolerance)
    return sharded


MODELS = [
    (["infsa_pure", "infsa_linear"], {"learn_gamma": True}),
    ("infsa_linear", {}),
    ("infsa_pure", {}),
    ("infsa_linear", {"class_token": False, "learn_gamma": True, "paper_params": True}),
    ("infsa_pure", {"class_token": False, "reg_tokens": 2, "pos_embed": "sincos", "attention_options": {"hops": 2}}),
    ("infsa_linear", {"readout": "series", "pos_embed": "none", "attention_options": {"tied": False, "queries": 3}}),
    ("infsa_pure", {"global_pool": "avgmax", "learn_gamma": True}),
    ("infsa_linear", {"global_pool": "max", "mlp_chunk": 5, "decay": "geometric"}),
    ("infsa_pure", {"stem": "conv"}),
]


@check(2, 4)
def models():
    """Strips of uneven height, one of them empty in four; the grid is not the base grid, so positions are resized."""
    images, targets = torch.randn(2, 3, 80, 40, dtype=torch.float64), torch.tensor([0, 2])
    own = slice(*(8 * edge for edge in (own_share(10).start, own_share(10).stop)))
    for attention, options in MODELS:
        alone_and_together(small(attention, **options), images, targets, own=own)


@check(2, 4)
def model_at_its_base_grid():
    images, targets = torch.randn(2, 3, 32, 32, dtype=torch.float64), torch.tensor([0, 2])
    rank, world = dist.get_rank(), dist.get_world_size()
    own = slice(rank * 32 // world, (rank + 1) * 32 // world)
    assert own == parallel.strip_of(32, 8, None)
    alone_and_together(small(), images, targets, own=own)


@check(2, 4)
def fewer_rows_than_ranks():
    """One row of patches: only one rank holds any, and the class token may stand alone."""
    images, targets = torch.randn(1, 3, 8, 48, dtype=torch.float64), torch.tensor([1])
    last = dist.get_rank() == dist.get_world_size() - 1
    for attention in ("infsa_linear", "infsa_pure"):
        alone_and_together(small(attention), images, targets, own=slice(0, 8) if last else slice(0, 0))


@check(2, 4)
def padded_edges():
    """Sides that the patch does not divide: the lowest strip is padded as the whole image is."""
    images, targets = torch.randn(2, 3, 61, 43, dtype=torch.float64), torch.tensor([1, 0])
    for stem in ("patch", "conv"):
        model = small(dynamic_img_pad=True, stem=stem)
        alone_and_together(model, images, targets, own=parallel.strip_of(61, 8, None))


@check(2, 4)
def margins_of_several_ranks():
    """Strips of one row of patches, or none: a convolutional stem sees more rows than the next rank has."""
    images, targets = torch.randn(2, 3, 29, 21, dtype=torch.float64), torch.tensor([1, 0])
    rank, world = dist.get_rank(), dist.get_world_size()
    edges = [0, 16, 29] if world == 2 else [0, 0, 8, 16, 29]
    model = small(dynamic_img_pad=True, stem="conv", patch_size=8, depth=1)
    pixels = images.clone().requires_grad_()
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(model(pixels), targets), pixels)
    sharded = alone_and_together(model, images, targets, own=slice(*edges[rank : rank + 2]))
    strip = images[:, :, slice(*edges[rank : rank + 2])].clone().requires_grad_()
    (found,) = torch.autograd.grad(nn.functional.cross_entropy(sharded(strip), targets), strip)
    assert_near(found / world, expected[:, :, slice(*edges[rank : rank + 2])], 1e-11)  # all ranks have the same loss


@check(2, 4)
def patch_masks():
    images, targets = torch.randn(2, 3, 64, 40, dtype=torch.float64), torch.tensor([0, 2])
    masks = torch.rand(2, 8, 5) > 0.3
    for attention in ("infsa_linear", "infsa_pure"):
        for pool in ("token", "avg"):
            model = small(attention, global_pool=pool)
            alone_and_together(model, images, targets, masks, own=parallel.strip_of(64, 8, None))


@check(2)
def mixed_precision():
    """Under autocast, at most twice the error of one process against float64."""
    images = torch.randn(2, 3, 64, 40)
    for attention in ("infsa_linear", "infsa_pure"):
        model = small(attention)
        exact = model(images.double())
        model.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            alone = model(images)
            together = parallel.shard_model(model, None)(images[:, :, parallel.strip_of(64, 8, None)])
        assert together.dtype == alone.dtype
        assert (together - exact).abs().max() <= 2 * (alone - exact).abs().max()


@check(2)
def checkpointing_and_dropping():
    """Blocks are computed again in the backward pass, their talk included; whole images drop what rank 0 drops."""
    images, targets = torch.randn(8, 3, 64, 40, dtype=torch.float64), torch.arange(8) % 3
    for attention in ("infsa_linear", "infsa_pure"):
        model = small(attention, drop_path_rate=0.6, drop_rate=0.3).train()
        model.set_grad_checkpointing(True)
        seeds = iter([7, 7 + dist.get_rank()])  # alone, then over ranks: only rank 0 draws the same again
        model.patch_embed.register_forward_pre_hook(lambda *_, seeds=seeds: torch.manual_seed(next(seeds)) and None)
        alone_and_together(model, images, targets, own=parallel.strip_of(64, 8, None))


@check(2)
def layers_of_ones_own():
    """Layers outside InfViT, causal Pure included; each rank's loss is that of its tokens, gradients add up."""
    own = own_share(23)
    x, weights = torch.randn(2, 23, 8, dtype=torch.float64), torch.randn(2, 23, 8, dtype=torch.float64)
    for layer, options in (
        (infsa.nn.LinearInfSA(8, 2, dtype=torch.float64), {}),
        (infsa.nn.PureInfSA(8, 2, dtype=torch.float64), {"is_causal": True}),
    ):
        module = nn.Sequential(nn.LayerNorm(8, dtype=torch.float64), layer)
        expected = layer(module[0](x), **options)
        (expected * weights).sum().backward()
        gradients = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        parallel.shard_layers(module, None)
        result = layer(module[0](x[:, own]), **options)
        (result * weights[:, own]).sum().backward()
        parallel.average_gradients(module, None)
        assert_near(result.detach(), expected.detach()[:, own])
        for p, gradient in zip(module.parameters(), gradients, strict=True):
            assert_near(p.grad * dist.get_world_size(), gradient, 1e-11)


@check(4)
def two_models_on_two_groups():
    """Ranks 0 and 1 share one image, 2 and 3 another; both models of a process run in turn."""
    mine = dist.get_rank() // 2
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    images = torch.randn(2, 1, 3, 40, 24, dtype=torch.float64)[mine]
    for attention in ("infsa_linear", "infsa_pure"):
        alone, model = small(attention), parallel.shard_model(small(attention), groups[mine])
        with torch.no_grad():
            logits = model(images[:, :, parallel.strip_of(40, 8, groups[mine])])
            assert_near(logits, alone(images), 1e-11)
    with pytest.raises(ValueError, match="holds this rank"):
        parallel.shard_model(small(), groups[1 - mine])


@check(2)
def a_sharded_model_is_saved_and_copied():
    """Names of parameters stay, so weights go back into an ordinary model; a copy talks to the same ranks."""
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    model = parallel.shard_model(small(), None)
    alone = small()
    alone.load_state_dict(model.state_dict())
    assert_near(deepcopy(model)(images[:, :, parallel.strip_of(32, 8, None)]), alone(images))
