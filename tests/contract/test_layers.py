"""The direction of imports, and what `import infsa` costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import infsa

ROOT = Path(infsa.__file__).parent
MAY_IMPORT = {
    "ops": set(),
    "graph": {"ops"},
    "nn": {"ops"},
    "models": {"ops", "graph", "nn"},
    "conversion": {"ops", "nn", "models"},
    "parallel": {"ops", "nn", "models"},
    "streaming": {"ops", "nn", "models", "parallel"},
    "data": set(),
    "evaluate": {"ops", "graph", "nn", "models", "data", "conversion"},
    "cohort": {"ops", "models", "data", "evaluate", "streaming"},
    "bench": {"ops", "nn", "models"},
    "train": {"ops", "graph", "nn", "models", "data", "evaluate", "bench", "conversion"},
    "report": {"ops", "graph", "nn", "models", "data", "evaluate", "bench"},
    "app": {"ops", "graph", "nn", "models", "data", "evaluate", "report", "streaming"},
    "reproduce": {"ops", "graph", "nn", "models", "data", "evaluate", "bench", "report"},
    "cli": {
        "ops",
        "graph",
        "nn",
        "models",
        "data",
        "evaluate",
        "report",
        "reproduce",
        "streaming",
        "train",
        "conversion",
        "bench",
        "app",
        "cohort",
    },
}


def imported_packages(path):
    """The infsa subpackages that a module imports, relative imports resolved."""
    package = ["infsa", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [".".join([*base, *([node.module] if node.module else [])])]
            names += [f"{names[0]}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "infsa" and len(parts) > 1 and (ROOT / parts[1]).is_dir():
                yield parts[1]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_one_way(package):
    for path in (ROOT / package).rglob("*.py"):
        wrong = set(imported_packages(path)) - MAY_IMPORT[package] - {package}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_every_package_has_its_place():
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages == set(MAY_IMPORT)


def test_import_loads_torch_only():
    code = "import sys, infsa; print(*(m for m in ('timm', 'matplotlib', 'typer', 'rich', 'PIL', 'networkx', "
    code += "'infsa.nn', 'infsa.graph') if m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_public_names_exist_and_are_documented():
    for module in (
        infsa,
        infsa.ops,
        infsa.nn,
        infsa.nn.peers,
        infsa.graph,
        infsa.models,
        infsa.parallel,
        infsa.streaming,
        infsa.cohort,
    ):
        for name in module.__all__:
            public = getattr(module, name)
            assert name.startswith("__") or public.__doc__, f"{module.__name__}.{name} has no docstring"
    with pytest.raises(AttributeError, match="no attribute 'softmax'"):
        _ = infsa.softmax


def test_version_matches_the_metadata():
    from importlib.metadata import version

    assert version("infsa") == infsa.__version__
