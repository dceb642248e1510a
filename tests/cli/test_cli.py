"""The command line: what it prints, what it writes, how it fails."""

import json
import math
import re
import subprocess
import sys

import pytest
from PIL import Image

import infsa
from infsa.cli.app import main
from infsa.cli.commands import load

COMMANDS = [
    "demo",
    "info",
    "train",
    "evaluate",
    "ablate",
    "explain",
    "app",
    "quality",
    "align",
    "stream",
    "convert",
    "adapt",
    "reproduce",
    "bench",
]


def run(monkeypatch, capsys, *arguments):
    """Run the command in this process; return its exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["infsa", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, *capsys.readouterr()


def test_installed_command_runs():
    done = subprocess.run([sys.executable, "-c", "from infsa.cli import main; main()", "-h"], capture_output=True)
    assert done.returncode == 0


def test_info_json(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "info", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["infsa"] == infsa.__version__
    assert facts["implementations"][:2] == ["reference", "chunked"]
    assert facts["devices"][0].startswith("cpu")


def test_info_table(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "info")
    assert code == 0
    assert infsa.__version__ in out


def test_demo_measures_and_draws(monkeypatch, capsys, tmp_path):
    code, out, _ = run(monkeypatch, capsys, "demo", "--json", "--quick", "--out", str(tmp_path))
    result = json.loads(out)
    assert code == 0
    assert all(difference < 1e-12 for difference in result["identities"].values())
    assert result["truncation"] == sorted(result["truncation"], reverse=True)
    for candidates in result["alignment"].values():
        assert {"Linear-InfSA a", "query norm ‖q‖", "uniform"} <= set(candidates)
    assert json.loads((tmp_path / "demo.json").read_text())["identities"] == result["identities"]
    figures = [file for file in result["files"] if file.endswith(".png")]
    assert len(figures) == 4
    for figure in figures:
        with Image.open(figure) as image:
            assert min(image.size) > 300


def test_demo_tables(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "140")
    code, out, _ = run(monkeypatch, capsys, "demo", "--quick", "--out", str(tmp_path), "--gamma", "0.5", "--seed", "3")
    assert code == 0
    for text in ("Neumann closed form", "pagerank", "uniform", "demo.json", "gamma = 0.5"):
        assert text in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command, monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, command, "--help")
    assert code == 0
    assert f"Example: infsa {command}" in " ".join(out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_default(command, monkeypatch, capsys):
    """The fields of a recipe have those of the recipe; flags are off; what is not set by default has none."""
    monkeypatch.setenv("COLUMNS", "200")
    for option in load(command).params:
        if option.param_type_name == "option" and not option.is_flag and option.default is not None:
            assert option.show_default or option.required, option.name
    out = " ".join(run(monkeypatch, capsys, command, "--help")[1].split())
    assert "none)]" not in out
    assert "[default: ()]" not in out


def test_help_keeps_values_and_symbols_as_they_are_typed():
    """A sentence does not begin with a value or a Greek letter, which a capital would change."""
    values = {"Auto", "Bicubic", "Adamw", "Ddp"}
    for option in load("train").params:
        first = re.split(r"[ :,;]", option.help or "")[0]
        assert first.isascii(), option.help
        assert first not in values, option.help


@pytest.mark.parametrize("command", ["stream", "predict", "embed", "export", "evaluate", "quality", "align", "explain"])
def test_commands_name_the_model_alike(command, monkeypatch, capsys):
    """One option and one sentence for the model, one for the input size, one for the device."""
    from infsa.cli import options

    own = {option.name: option for option in load(command).params}
    model = own.get("model") or own["models"]
    assert model.opts == ["--model", "-m"]
    assert options.SOURCE in model.help
    if "resolution" in own:
        assert own["resolution"].help == options.RESOLUTION
    if "device" in own:
        assert own["device"].help == "auto, cpu, cuda or cuda:1."


def test_help_lists_what_a_name_may_be():
    """These modules are not imported for a help text, so that the lists in it are written out."""
    import dataclasses

    from infsa.bench.cases import VARIANTS
    from infsa.cli import adapt, bench, options
    from infsa.data.registry import ACCEPTED
    from infsa.train.adaptation import Adaptation

    words = bench.MECHANISMS.partition(";")[0].replace(" (unfused)", "").replace(" or ", ", ").split(", ")
    assert words == list(VARIANTS)
    own = {option.name for option in load("adapt").params}
    fields = [field.name for field in dataclasses.fields(Adaptation) if field.name not in own | {"data_options"}]
    assert adapt.FIELDS.partition("Fields: ")[2].rstrip(".").split(", ") == fields
    listed = options.DATA.removeprefix("Dataset: ").rstrip(".").replace(" or ", ", ").split(", ")
    assert listed == [name for name in ACCEPTED.split(", ") if "digit" not in name]


def test_failure_is_one_line_and_exit_code_1(monkeypatch, capsys, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, _, err = run(monkeypatch, capsys, "demo", "--out", str(blocked / "folder"))
    assert code == 1
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback(place, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    arguments = ["demo", "--out", str(blocked / "folder")]
    monkeypatch.setattr(sys, "argv", ["infsa", *arguments[:place], "--debug", *arguments[place:]])
    with pytest.raises(NotADirectoryError):
        main()


def test_truncation_is_below_its_bound():
    """‖K hops − closed form‖ / ‖closed form‖ <= γ^K, since ‖Â‖ <= 1."""
    from infsa.report.demo import run_demo

    result = run_demo(gamma=0.9, seed=1)
    assert all(distance <= math.pow(0.9, hops) for hops, distance in enumerate(result.truncation, start=1))
