"""The smallest run that has everything, and processes to run it in.

Runs happen in children of a fork server that has imported the package once: a run then takes a fraction of a second,
can be killed, and shares no state with the test.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore

from infsa.train import Recipe, list_checkpoints, read_checkpoint

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["infsa.train.fit", "infsa.train.ablate", "infsa.cli.app", "infsa.report.ablation", "infsa.report.training"]
)
TINY = {  # every field that a named recipe may set otherwise
    "model": "infvit_linear_tiny", "model_options": {"depth": 2, "embed_dim": 16, "num_heads": 2},
    "data_options": {"length": 48, "classes": 4}, "image_size": 32, "val_resize": 32, "epochs": 3, "batch_size": 12,
    "accumulate": 1, "optimizer": "adamw", "lr": 1e-3, "lr_final": 0.0, "warmup_epochs": 1, "weight_decay": 0.05,
    "beta2": 0.98, "clip_norm": 1.0, "ema": 0.0, "label_smoothing": 0.0, "mixup": 0.0, "cutmix": 0.0, "mix_prob": 1.0,
    "drop_path": 0.0, "crop_min": 0.35, "crop_ratio": 4 / 3, "flip": 0.5, "jitter": (0.3, 0.3, 0.3), "randaugment": 0,
    "erase": 0.0, "interpolation": "bicubic", "loader": "resident", "workers": 0, "device": "cpu",
    "precision": "32-true", "val_every": 1, "save_every": 3, "keep": 3, "log_every": 1,
}  # fmt: skip
EVERYTHING = {
    "ema": 0.9, "mixup": 0.2, "cutmix": 1.0, "erase": 0.3, "drop_path": 0.3, "label_smoothing": 0.1, "accumulate": 2,
    "log_every": 2,
}  # fmt: skip
STEPS = 12  # of TINY: 3 epochs of 4
TIMES = {"seconds", "images_per_s", "made_with"}  # what two equal runs may differ in


def tiny(**changes):
    """A recipe of 12 steps that takes a quarter of a second."""
    return Recipe().override({**TINY, **changes})


def options(**changes):
    """The same recipe as options of the command line."""
    words = []
    for name, value in {**TINY, **changes}.items():
        if name.endswith("_options"):
            flag = f"--{name[:-1].replace('_', '-')}"
            words += [word for key, part in value.items() for word in (flag, f"{key}={part}")]
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return words


def final_state(out):
    """Tensors and facts of the last checkpoint, without times."""
    tensors, facts = read_checkpoint(list_checkpoints(Path(out) / "checkpoints")[0])
    return tensors, {name: value for name, value in facts.items() if name not in {*TIMES, "recipe"}}


def log_lines(out):
    """The lines of the log, without times."""
    lines = (Path(out) / "log.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def assert_same_run(one, other):
    """Weights, average, optimiser, history, log and exported file are equal, bit by bit."""
    (tensors, facts), (theirs, their_facts) = final_state(one), final_state(other)
    assert tensors.keys() == theirs.keys()
    for name in tensors:
        assert torch.equal(tensors[name], theirs[name]), name
    assert facts == their_facts
    assert log_lines(one) == log_lines(other)
    exported, theirs = (load_file(Path(out) / "model" / "model.safetensors") for out in (one, other))
    assert exported.keys() == theirs.keys()
    assert all(torch.equal(exported[name], theirs[name]) for name in exported)


def distance(tensors, theirs, prefix="model."):
    """Euclidean distance of all tensors under a prefix."""
    squares = [(tensors[n] - theirs[n]).double().square().sum() for n in tensors if n.startswith(prefix)]
    return float(torch.stack(squares).sum().sqrt())


# Processes


def start(function, *arguments, environment=None, console=None):
    """A process that runs ``function``; its output goes to ``console``.out and .err if given."""
    process = CONTEXT.Process(target=_enter, args=(function, arguments, environment or {}, console))
    process.start()
    return process


def finish(process, limit=120):
    """Its exit code; a process that hangs is ended and fails the test."""
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"the process did not end within {limit} s")
    return process.exitcode


def in_child(function, *arguments):
    """Run ``function`` in a process of its own and return the exit code, negative for a signal."""
    return finish(start(function, *arguments))


def together(world, function, *arguments, console=None, limit=120):
    """Run ``function`` in processes that find each other as under torchrun; return their exit codes."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.port, "TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": 0,
    }  # fmt: skip
    places = [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in range(world)]
    consoles = [console and f"{console}-{rank}" for rank in range(world)]
    runs = [
        start(function, *arguments, environment=place, console=own) for place, own in zip(places, consoles, strict=True)
    ]
    try:
        return [finish(run, limit) for run in runs]
    finally:
        for run in runs:
            run.kill()


def command(*arguments, console):
    """``infsa ARGUMENTS`` in a process of its own: exit code, standard output, standard error."""
    code = finish(start(_command, *map(str, arguments), console=str(console)))
    return code, Path(f"{console}.out").read_text(), Path(f"{console}.err").read_text()


def start_command(*arguments, console):
    """``infsa ARGUMENTS``, started."""
    return start(_command, *map(str, arguments), console=str(console))


def wait_for(condition, limit=60):
    """Until the condition holds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"waited {limit} s in vain"
        time.sleep(0.01)


def _enter(function, arguments, environment, console):
    os.environ.update({name: str(value) for name, value in environment.items()})
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # of workers that read images
    if console is not None:
        for descriptor, ending in ((1, "out"), (2, "err")):
            file = os.open(f"{console}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
    function(*arguments)


def leading_command(*arguments):
    """``infsa ARGUMENTS`` as the leader of a process group."""
    os.setsid()
    _command(*arguments)


def endless_step(*arguments):
    """``infsa ARGUMENTS``, whose fourth step waits for ever."""
    from infsa.train import module

    count = module.Classifier.count

    def counted(self):
        while self.step == 3:
            signal.pause()
        return count(self)

    module.Classifier.count = counted
    _command(*arguments)


def _command(*arguments):
    from infsa.cli.app import main

    sys.argv = ["infsa", *arguments]
    main()


# What children do


def train_here(recipe, out, resume=False):
    """Train to the end."""
    from infsa.train import train

    train(recipe, out, resume=resume)


def train_and_die(recipe, out, resume, stage, step):
    """Train and end without warning at a stage of a step, as ``kill -9`` would."""
    from infsa import files
    from infsa.train import checkpoint, module, record

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    if stage == "step":
        count = module.Classifier.count

        def counted(self):
            done = count(self)
            if done and self.step == step:
                die()
            return done

        module.Classifier.count = counted
    elif stage == "log":
        write = record.Record._write

        def written(self, trainer, kind, row):
            if row["step"] == step:
                with open(self.out / "log.jsonl", "a") as log:
                    log.write('{"kind": "tra')
                    log.flush()
                    die()
            write(self, trainer, kind, row)

        record.Record._write = written
    elif stage in ("writing", "written"):
        name, save = f"step-{step:08d}", checkpoint.save_file

        def saved(tensors, path, header):
            save(tensors, path, header)
            if name in str(path):
                with contextlib.suppress(OSError):
                    os.truncate(path, os.path.getsize(path) // (2 if stage == "writing" else 1))
                die()

        checkpoint.save_file = saved
    elif stage == "renamed":
        replace = files.os.replace

        def replaced(source, target):
            replace(source, target)
            if f"step-{step:08d}" in str(target):
                die()

        files.os.replace = replaced
    train_here(recipe, out, resume)
