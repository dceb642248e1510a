"""Compiled training: the eager run within rounding, the eager run to the bit where compiling fails, exact restarts.

The blocks are traced and differentiated, then run by PyTorch's own operators: generating code takes too long.
"""

import contextlib
import signal
from types import SimpleNamespace

import pytest
import torch
from timm.layers import DropPath
from torch._dynamo.backends.common import aot_autograd

from infsa.train import Recipe, list_checkpoints, read_checkpoint, train
from infsa.train import module as module_file
from infsa.train.module import build_model
from infsa.train.recorded import record, uncached, why_not_recorded
from infsa.train.regions import Regions, compiled_blocks
from tests.train.helpers import (
    EVERYTHING,
    assert_same_run,
    distance,
    final_state,
    in_child,
    tiny,
    together,
    train_and_die,
    train_here,
)

RECIPE = {**EVERYTHING, "loader": "workers"}
COMPILE = torch.compile


def use(backend):
    """Compile by a backend that generates no code."""
    torch.compile = lambda function, **_: COMPILE(function, backend=backend, dynamic=False)


def compiled_here(recipe, out, resume=False):
    use("aot_eager")
    train_here(recipe, out, resume)


def compiled_and_killed(*arguments):
    use("aot_eager")
    train_and_die(*arguments)


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setattr(torch, "compile", COMPILE)


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    out = tmp_path_factory.mktemp("eager")
    train(tiny(**RECIPE, compile="off"), out)
    return out


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled")
    assert in_child(compiled_here, tiny(**RECIPE, compile="on"), out) == 0
    return out


def assert_close_weights(out, other):
    """Rounding alone may differ: at most a ten-thousandth of the way that training moved the weights."""
    (tensors, facts), (theirs, their_facts) = final_state(out), final_state(other)
    begin = {f"model.{name}": value for name, value in build_model(tiny(**RECIPE), 4).state_dict().items()}
    assert tensors.keys() == theirs.keys()
    assert distance(tensors, theirs) <= 1e-4 * distance(begin, theirs)
    losses = [[row["val_loss"] for row in own["history"]] for own in (facts, their_facts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_compiled_is_eager_within_rounding(compiled, eager):
    assert_close_weights(compiled, eager)


def test_a_compiled_run_killed_and_resumed_is_the_same_run(compiled, tmp_path):
    recipe = tiny(**RECIPE, compile="on")
    assert in_child(compiled_and_killed, recipe, tmp_path, False, "step", 8) == -signal.SIGKILL
    assert in_child(compiled_here, recipe, tmp_path, True) == 0
    assert_same_run(tmp_path, compiled)


def test_a_compiled_run_may_be_continued_eagerly(eager, tmp_path):
    assert in_child(compiled_and_killed, tiny(**RECIPE, compile="on"), tmp_path, False, "step", 8) == -signal.SIGKILL
    tensors, facts = read_checkpoint(list_checkpoints(tmp_path / "checkpoints")[0])
    assert facts["recipe"]["compile"] == "on"
    assert {name for name in tensors if name.startswith("model.")} == {
        f"model.{name}" for name in build_model(tiny(**RECIPE), 4).state_dict()
    }
    train(tiny(**RECIPE, compile="off"), tmp_path, resume=True)
    assert_close_weights(tmp_path, eager)


def test_several_processes_compile_too(tmp_path):
    recipe = {
        **RECIPE,
        "drop_path": 0.0,
        "accumulate": 1,
    }  # the draws of stochastic depth differ between one and several
    assert in_child(train_here, tiny(**recipe, compile="off"), tmp_path / "alone") == 0
    assert together(2, compiled_here, tiny(**recipe, compile="on"), tmp_path / "both") == [0, 0]
    assert_close_weights(tmp_path / "both", tmp_path / "alone")


def fails_at_once(graph, inputs):
    raise RuntimeError("no kernel for this\nsecond line")


def fails_in_use(graph, inputs):
    def run(*_):
        raise RuntimeError("no kernel for this")

    return run


BACKENDS = {
    "forward": fails_at_once,
    "backward": aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=fails_at_once),
    "running": fails_in_use,
    "running backward": aot_autograd(fw_compiler=lambda graph, _: graph.forward, bw_compiler=fails_in_use),
}


@pytest.mark.parametrize("stage", BACKENDS)
def test_where_compiling_fails_the_run_is_the_eager_one(stage, eager, tmp_path):
    use(BACKENDS[stage])
    run = train(tiny(**RECIPE, compile="on"), tmp_path)
    (note,) = run.notes
    assert note.startswith("not compiled, training runs eagerly: RuntimeError: no kernel for this")
    assert "\n" not in note
    assert_same_run(tmp_path, eager)


def test_views_fall_back_too(tmp_path):
    use(fails_at_once)
    said = []
    train(tiny(compile="on"), tmp_path / "on", watch=lambda row: said.append(row.get("text")))
    assert "not compiled, views are made eagerly: RuntimeError: no kernel for this" in said
    train(tiny(compile="off"), tmp_path / "off")
    assert_same_run(tmp_path / "on", tmp_path / "off")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_options": {"depth": 2, "embed_dim": 16, "num_heads": 2, "readout": "series"}}, "readout='series'"),
        ({"strategy": "fsdp"}, "strategy fsdp"),
        (
            {
                "model": "vit_tiny",
                "model_options": {
                    "depth": 1, "embed_dim": 16, "num_heads": 2, "attention": "performer",
                    "attention_options": {"redraw_every": 3},
                },
            },
            "blocks.0.attn redraws",
        ),
        ({"model_options": {"depth": 6, "embed_dim": 16, "num_heads": 2, "decay": "geometric"}}, "more than 4 kinds"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_told(changes, reason, tmp_path):
    use("eager")
    run = train(tiny(epochs=1, warmup_epochs=0, loader="workers", compile="on", **changes), tmp_path)
    (note,) = run.notes
    assert reason in note


def test_hooks_are_told(tmp_path, monkeypatch):
    def hooked(*arguments):
        model = build_model(*arguments)
        model.blocks[1].mlp.register_forward_hook(lambda *_: None)
        return model

    monkeypatch.setattr(module_file, "build_model", hooked)
    run = train(tiny(epochs=1, warmup_epochs=0, loader="workers", compile="on"), tmp_path)
    assert run.notes == ["not compiled, training runs eagerly: blocks.1.mlp has hooks or another forward"]


def test_auto_compiles_nothing_on_the_cpu(tmp_path):
    use(fails_at_once)
    assert tiny().compile == "auto"
    assert train(tiny(epochs=1, warmup_epochs=0), tmp_path).notes == []


def test_auto_compiles_no_short_run_on_a_gpu():
    said = []
    regions = Regions(Recipe(), 999, said.append, said.append)
    regions.on_train_batch_start(None, SimpleNamespace(device=torch.device("cuda"), model=None), None, 0)
    assert said == [
        "not compiled, training runs eagerly: 999 steps are too few for compiling to pay off; --compile on forces it"
    ]


def test_the_model_is_itself_again():
    use("eager")
    model = build_model(tiny(drop_path=0.3), 4)
    kinds = [type(module) for module in model.modules()]
    with compiled_blocks(model):
        assert DropPath not in {type(module) for module in model.modules()}
        assert list(model.state_dict()) == list(build_model(tiny(), 4).state_dict())
    assert [type(module) for module in model.modules()] == kinds
    assert not any("forward" in vars(module) for module in model.modules())


def test_evaluation_is_not_compiled():
    use(fails_at_once)
    model = build_model(tiny(), 4).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = model(images)
    with compiled_blocks(model):
        assert torch.equal(model(images), expected)


def test_old_recipes_say_true_or_false():
    assert [Recipe().override({"compile": value}).compile for value in (True, False, "auto")] == ["on", "off", "auto"]


@pytest.mark.parametrize(
    ("changes", "processes", "reason"),
    [
        ({}, 1, None),
        ({}, 2, "several processes"),
        ({"strategy": "ddp"}, 1, "strategy ddp"),
        ({"accumulate": 2}, 1, "2 parts"),
        ({"grad_checkpointing": True}, 1, "gradient checkpointing"),
    ],
)
def test_which_steps_are_recorded(changes, processes, reason):
    found = why_not_recorded(tiny(**changes), processes)
    assert found is None if reason is None else reason in found


def test_only_steps_like_the_recorded_one_run_as_a_graph(monkeypatch):
    model, images = build_model(tiny(), 4), torch.randn(2, 3, 32, 32)
    expected, replayed = model(images), torch.zeros(2, 4)

    def pretend(model, samples, **_):
        model.forward = lambda _: replayed

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", pretend)
    monkeypatch.setattr(torch.random, "fork_rng", lambda _: contextlib.nullcontext())
    record(model, images)
    assert model(images) is replayed
    assert model(images.double().float()) is replayed
    assert torch.equal(model(images, torch.ones(2, 4, 4, dtype=torch.bool)), expected)
    assert model(images[:1]).shape == (1, 4)
    with torch.no_grad():
        assert torch.equal(model(images), expected)
    assert torch.equal(model.eval()(images), expected)
    vars(model).pop("forward")
    assert torch.equal(model.train()(images), expected)


def test_only_the_thread_that_records_is_restricted(monkeypatch):
    model, given = build_model(tiny(), 4), {}

    def pretend(model, samples, allow_unused_input, capture_error_mode="global"):
        given["mode"] = capture_error_mode
        model.forward = len

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", pretend)
    monkeypatch.setattr(torch.random, "fork_rng", lambda _: contextlib.nullcontext())
    record(model, torch.randn(2, 3, 32, 32))
    assert given["mode"] == "thread_local"  # others go on pinning memory


def test_an_older_pytorch_records_where_no_thread_pins_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda model, samples, allow_unused_input: model)
    assert "loader='workers'" in why_not_recorded(tiny(loader="workers"), 1)
    assert why_not_recorded(tiny(loader="resident"), 1) is None


def test_after_a_failed_recording_the_first_step_compiles_nothing():
    use("eager")
    said, model, images = [], build_model(tiny(), 4), torch.randn(2, 3, 32, 32)
    precision = SimpleNamespace(forward_context=lambda: torch.autocast("cpu", torch.bfloat16))
    everyone = SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision)
    trainer = SimpleNamespace(world_size=1, precision_plugin=precision, strategy=everyone)
    regions = Regions(tiny(compile="on"), 1000, said.append, lambda seconds: None)
    regions.on_train_batch_start(trainer, SimpleNamespace(device=torch.device("cuda"), model=model), (images,), 0)
    assert "compiled the 2 blocks, no CUDA graphs" in said[0]
    graphs = torch._dynamo.utils.counters["stats"]
    known = graphs["unique_graphs"]
    with precision.forward_context():
        model(images)
    assert graphs["unique_graphs"] == known
    regions.on_train_end(None, None)


def test_the_cache_of_casts_is_back_after_a_recording():
    for precision in (contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        with uncached(precision):
            assert not torch.is_autocast_cache_enabled()
        assert torch.is_autocast_cache_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_steps_are_eager_ones_within_rounding(tmp_path):
    found = []
    for name, choice in (("on", "on"), ("again", "on"), ("off", "off")):
        recipe = tiny(**{**RECIPE, "accumulate": 1, "loader": "resident"}, device="cuda", compile=choice)
        run = train(recipe, tmp_path / name)
        found.append(run.notes)
    assert "recorded a step as CUDA graphs" in found[0][-1]
    assert_same_run(tmp_path / "on", tmp_path / "again")
    assert_close_weights(tmp_path / "on", tmp_path / "off")
