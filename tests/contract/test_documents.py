"""The documents tell the truth: their code runs, their links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]


def test_readme_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    names = {}
    exec(example, names)
    assert names["z"].shape == (1, 8, 1024, 64)
    assert names["h"].shape == (1, 8, 1, 64)
    assert names["y"].shape == (1, 4096, 512)
    assert names["maps"].shape == (2, 8, 12)
    assert names["scores"].shape == (1024,)
    assert "most important token" in capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_readme_names_both_commands():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in readme
        assert f"\n{command}:" in makefile


def test_model_table_matches_the_registry():
    import infsa

    text = (ROOT / "docs" / "models.md").read_text()
    assert all(f"`{name}`" in text for name in infsa.list_models())
    assert all(f"`{name}`" in text for name in infsa.nn.peers.ATTENTIONS)
