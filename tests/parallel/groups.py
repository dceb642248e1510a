"""Meshes, traffic and refusals."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

import infsa
from infsa import parallel
from tests.parallel.checks import assert_near, check, heads, small


@check(4)
def data_times_sequence():
    """A 2 x 2 mesh under DistributedDataParallel and under fully_shard trains as one process does."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
    images, targets = torch.randn(4, 3, 40, 40, dtype=torch.float64), torch.tensor([0, 2, 1, 1])
    half = slice(2 * mesh.get_local_rank("data"), 2 * mesh.get_local_rank("data") + 2)
    rows = parallel.strip_of(40, 8, mesh["sequence"])
    with pytest.raises(ValueError, match="one dimension of a mesh"):
        parallel.Ranks.of(mesh)
    for attention in ("infsa_linear", "infsa_pure"):
        for wrap in ("ddp", "fsdp"):
            alone, model = small(attention), parallel.shard_model(small(attention), mesh["sequence"])
            if wrap == "ddp":
                wrapped = DistributedDataParallel(model)
            else:
                for block in model.blocks:
                    fully_shard(block, mesh=mesh)
                wrapped = fully_shard(model, mesh=mesh)
            descents = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (alone, wrapped)]
            for _ in range(2):
                pairs = [(alone(images), targets), (wrapped(images[half, :, rows]), targets[half])]
                for descent, (logits, labels) in zip(descents, pairs, strict=True):
                    descent.zero_grad()
                    nn.functional.cross_entropy(logits, labels).backward()
                    descent.step()
            trained = {name: p.full_tensor() if wrap == "fsdp" else p for name, p in model.named_parameters()}
            for name, p in alone.named_parameters():
                assert_near(trained[name].detach(), p.detach(), 1e-11)


@check(2, 4)
def traffic_of_linear():
    """Two all-reduces per layer and direction, of H(d + 1) and H(d + 2) numbers per image, whatever N is."""
    model = parallel.shard_model(small(depth=3).float(), None)
    seen = []
    for side in (32, 64, 128):
        images = torch.randn(2, 3, side, 40)[:, :, parallel.strip_of(side, 8, None)]
        with parallel.Traffic() as forward:
            logits = model(images)
        with parallel.Traffic() as backward:
            logits.sum().backward()
        seen.append((forward.calls, forward.bytes, backward.calls, backward.bytes))
    assert seen[0] == seen[1] == seen[2]
    forward_calls, forward_bytes, backward_calls, backward_bytes = seen[0]
    batch, heads_, dim, layers = 2, 2, 16, 3
    per_layer = 4 * batch * heads_ * (2 * (dim // heads_) + 3)
    pool, shapes = 4 * batch * dim, 8 * 5 * dist.get_world_size()
    assert backward_calls == {"allreduce_": 2 * layers + 1}
    assert backward_bytes == {"allreduce_": layers * per_layer + pool}
    assert forward_calls == {"allreduce_": 2 * layers + 2}
    assert forward_bytes == {"allreduce_": layers * per_layer + pool + shapes}


@check(2, 4)
def traffic_of_pure():
    """P - 1 blocks of keys and values forward; as many backward, and P blocks of their gradients."""
    q, k, v = (x.float().requires_grad_() for x in heads(tokens=12))
    world = dist.get_world_size()
    with parallel.Traffic() as forward:
        z = parallel.pure_attention(q, k, v, group=None, tokens=[12] * world)
    with parallel.Traffic() as backward:
        z.sum().backward()
    block, norm = 4 * (k.numel() + v.numel()), 8 * 2 * 2
    assert forward.bytes == {"send": (world - 1) * block, "allreduce_": norm}
    assert backward.bytes == {"send": (2 * world - 1) * block, "allreduce_": norm}


@check(2)
def refusals():
    """One line each, and the same on every rank where the ranks must agree."""

    def refused(error, words, function):
        with pytest.raises(error, match=re.escape(words)) as problem:
            function()
        assert "\n" not in str(problem.value)

    first = dist.get_rank() == 0
    model = parallel.shard_model(small(), None)
    wide, narrow = torch.randn(1, 3, 16, 16, dtype=torch.float64), torch.randn(1, 3, 16, 8, dtype=torch.float64)
    refused(ValueError, "share batch size and width", lambda: model(wide if first else narrow))
    refused(ValueError, "must be (B, 3, H, W)", lambda: model(wide[0] if first else wide))
    refused(ValueError, "multiples of the patch 8, got [16, 12]", lambda: model(wide if first else wide[:, :, :12]))
    refused(ValueError, "at least one rank", lambda: model(wide[:, :, :0]))
    refused(ValueError, "no attention_maps", lambda: model.attention_maps(wide))
    drops = parallel.shard_model(small("infsa_pure", attn_drop_rate=0.5).train(), None)
    refused(ValueError, "got 0.5", lambda: drops(wide))
    refused(ValueError, "got 'softmax'", lambda: parallel.shard_model(small("softmax"), None))
    refused(TypeError, "got ShardedInfViT", lambda: parallel.shard_model(model, None))
    inf = small("infsa_pure", attention_options={"hops": float("inf")})
    refused(ValueError, "hops=inf", lambda: parallel.shard_model(inf, None))
    refused(ValueError, "no LinearInfSA", lambda: parallel.shard_layers(nn.Linear(2, 2), None))
    refused(
        ValueError, "got 'reference'", lambda: parallel.shard_layers(infsa.nn.PureInfSA(8, 2, impl="reference"), None)
    )
    refused(ValueError, "process group or mesh", lambda: parallel.Ranks.of("world"))
    layer = parallel.shard_layers(infsa.nn.LinearInfSA(8, 2, chunk_size=4), None)
    refused(ValueError, "is_causal", lambda: layer(torch.randn(1, 4, 8), is_causal=True))
    q, k, v = heads()
    refused(ValueError, "at most the 46 query", lambda: parallel.linear_attention(q, k, v, group=None, queries=47))
    refused(ValueError, "tokens must count", lambda: parallel.pure_attention(q, k, v, group=None, tokens=[23]))
