"""The site builds without a warning, leads everywhere, and asks the network for nothing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
mkdocs = pytest.importorskip("mkdocs", reason="the documentation site was not built: mkdocs is missing (infsa[docs])")
pytest.importorskip(
    "mkdocstrings", reason="the documentation site was not built: mkdocstrings is missing (infsa[docs])"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)  # strict: a warning raises
    return folder


def test_every_page_is_in_the_navigation(site):
    listed = set(re.findall(r"([\w-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//[^"]*"', text), page
        links = re.findall(r"<link[^>]*>", text)
        assert not [link for link in links if re.search(r'href="(?:https?:)?//', link) and "canonical" not in link], (
            page
        )
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import\s)['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_reference_shows_examples_as_code(site):
    text = (site / "api" / "index.html").read_text(encoding="utf-8")
    assert text.count("Examples:") > 20
    assert "&gt;&gt;&gt;" in text


def test_nothing_but_pages_is_published(site):
    assert not list(site.rglob("*.py"))
