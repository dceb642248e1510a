"""What starting costs, counted in modules: nothing heavy is imported before it is used."""

import json
import subprocess
import sys

import pytest
import torch

from infsa.cli.app import app
from infsa.cli.commands import COMMANDS, load, summary
from infsa.ops import dispatch, tracing

COMPILER = {"torch._dynamo", "torch._inductor", "sympy", "triton"}
LIBRARIES = {"timm", "scipy", "matplotlib", "PIL", "torchvision", "lightning", "transformers", "gradio", "tifffile"}
HEAVY = {"torch", "numpy"} | COMPILER | LIBRARIES


def loaded_by(code):
    """The heavy modules that a fresh interpreter has loaded after running some code, and what it printed."""
    ending = f"\nimport json, sys\nprint(json.dumps([name for name in {sorted(HEAVY)} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code + ending], capture_output=True, text=True, check=True)
    *printed, last = done.stdout.splitlines()
    return set(json.loads(last)), "\n".join(printed)


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import infsa; infsa.__version__; dir(infsa)")[0] == set()


@pytest.mark.parametrize("use", ["infsa.pure_attention", "infsa.nn.LinearInfSA", "infsa.graph.AttentionGraph"])
def test_operators_and_layers_load_torch_alone(use):
    assert loaded_by(f"import infsa; {use}")[0] <= {"torch", "numpy"}  # numpy is torch's own


def test_the_command_line_answers_without_torch():
    """The list of commands, the version, a wrong name, and the options of every command."""
    lines = [["--help"], ["--version"], [], ["dream"], *([name, "--help"] for name in COMMANDS)]
    code = (
        "import sys\nfrom infsa.cli import main\n"
        f"for arguments in {lines}:\n"
        "    sys.argv = ['infsa', *arguments]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
    )
    loaded, printed = loaded_by(code)
    assert loaded == set()
    assert all(f" {name} " in printed for name in COMMANDS)


def test_the_list_of_commands_shows_their_own_first_lines():
    for name in COMMANDS:
        assert load(name).help.startswith(summary(name))
        assert summary(name)[0].isupper()
        assert summary(name)[-1] == "."


def test_shells_can_complete_options(monkeypatch, capsys):
    monkeypatch.setenv("_INFSA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "infsa info --j")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        app([], prog_name="infsa")
    assert capsys.readouterr().out.split() == ["--json"]


def test_the_compiler_is_told_of_constants_as_torch_tells_it():
    """The mark is set by hand, because torch's own decorator imports the compiler."""

    def answer():
        return True

    marked = vars(torch.compiler.assume_constant_result(answer))
    for function in (tracing.exporting, dispatch.kernels_run_on, tracing._functions_transformed):
        assert vars(function) == marked


@pytest.mark.parametrize("dynamic", [True, False])
def test_sizes_are_asked_without_being_fixed(dynamic):
    """Eagerly a condition is what it is; compiled with dynamic sizes it is uncertain, and there is one program."""
    programs = []

    def count(graph, inputs):
        programs.append(graph)
        return graph.forward

    def function(x):
        return x + 1 if tracing.surely(x.shape[0] == 4) else x + 2

    compiled = torch.compile(function, backend=count, fullgraph=True, dynamic=dynamic)
    sizes = (torch.zeros(4, 2), torch.zeros(8, 2))
    assert [function(x)[0, 0].item() for x in sizes] == [1, 2]
    assert [compiled(x)[0, 0].item() for x in sizes] == ([2, 2] if dynamic else [1, 2])
    assert len(programs) == (1 if dynamic else 2)
