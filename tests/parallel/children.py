"""What runs in the processes of a group.

Checks are batched, because starting processes is slow: each writes down how it went, the tests read it.
"""

import json
import os
import signal
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from infsa import parallel
from tests.parallel import groups, models, operators, streamed  # noqa: F401  # they register their checks
from tests.parallel.checks import CHECKS, small


def run_checks(out):
    """Run what is meant for a group of this size and write down the outcomes; a failure ends it."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    outcomes, file = {}, Path(out, f"{dist.get_rank()}.json")
    for name in names(dist.get_world_size()):
        torch.manual_seed(0)
        try:
            CHECKS[name][1]()
            dist.barrier()
            outcomes[name] = "ok"
        except Exception:
            outcomes[name] = traceback.format_exc()
            break
    file.write_text(json.dumps(outcomes))
    dist.destroy_process_group()


def names(world):
    """The checks for groups of this size."""
    return [name for name, (worlds, _) in CHECKS.items() if world in worlds]


def lose_a_rank(out, attention, moment):
    """Rank 1 is killed at a moment of a step, or never comes; the others write down what they are told."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    group = dist.new_group(timeout=timedelta(seconds=2)) if moment == "absent" else None
    rank, told = dist.get_rank(), Path(out, f"{dist.get_rank()}.txt")
    model = parallel.shard_model(small(attention), group)
    if rank == 1:
        if moment == "forward":
            model.blocks[1].register_forward_pre_hook(_die)
        elif moment == "raises":
            model.blocks[1].register_forward_pre_hook(_raise)
        elif moment == "backward":
            model.blocks[1].register_full_backward_pre_hook(_die)
        else:
            while not Path(out, "0.txt").exists():
                time.sleep(0.05)
            return
    strip = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    try:
        model(strip).sum().backward()
        told.write_text("nothing happened")
    except parallel.PeerError as error:
        told.write_text(str(error))


def _raise(*_):
    raise KeyError("a mistake in the code of one rank")


def _die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
