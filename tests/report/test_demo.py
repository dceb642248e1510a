"""The demonstration's report stands alone, and its numbers are what they say."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure
from PIL import Image

from infsa.bench.cases import NINE
from infsa.cli.app import main
from infsa.report.html import Picture, Section, write_page
from infsa.report.photographs import SHIPPED, certain_images, example_images, patches_for_half, quarters
from infsa.report.table import Table


class Sources(HTMLParser):
    """Everything that a page would load, and tags left open."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.open, self.images_without_words = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.loaded += [found[name] for name in ("src", "href") if name in found]
        self.images_without_words += tag == "img" and not found.get("alt")
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["infsa", "demo", "--quick", "--out", str(folder)])
        with pytest.raises(SystemExit) as stop:
            main()
    assert stop.value.code == 0
    return folder


def test_the_report_needs_nothing_else(demo):
    text = (demo / "report.html").read_text(encoding="utf-8")
    page = Sources(text)
    assert page.loaded
    assert all(address.startswith("data:") for address in page.loaded)
    assert not page.open
    assert page.images_without_words == 0
    assert "url(" not in text
    assert "@import" not in text
    assert 'name="viewport"' in text
    assert text.count("<h2>") == 5


def test_the_numbers_hold_together(demo):
    found = json.loads((demo / "demo.json").read_text(encoding="utf-8"))
    morf = found["models"]["morf"]
    assert set(morf["curves"]) == set(SHIPPED.values())
    for name, orders in morf["curves"].items():
        for order, curve in orders.items():
            assert curve[0] == pytest.approx(1)
            trapezoid = sum(
                (b - a) * (y + z) / 2
                for a, b, y, z in zip(morf["removed"], morf["removed"][1:], curve, curve[1:], strict=False)
            )
            assert morf["aoc"][name][order] == pytest.approx(1 - trapezoid, abs=1e-5)
    assert morf["removed"][0] == 0
    assert morf["removed"][-1] == 1
    perron = found["models"]["perron"]
    assert perron["Linear-InfSA a"]["cosine"] > perron["uniform"]["cosine"]
    assert len(found["timing"]["milliseconds"]) == len(NINE)
    assert all(time > 0 for times in found["timing"]["milliseconds"].values() for time in times)


def test_photographs_come_with_packages():
    assert set(certain_images()) <= set(example_images())
    views = quarters(Image.new("RGB", (20, 10)))
    assert [view.size for view in views] == [(20, 10), *[(10, 5)] * 4]


def test_half_of_a_map():
    shares = patches_for_half([Image.new("RGB", (64, 64), "gray")])
    assert all(0 < share <= 100 for (share,) in shares.values())


def test_pictures_and_tables_are_escaped(tmp_path):
    assert "&lt;b&gt;" in Table(["<b>"], [["1"]]).html()
    picture = Picture.of(Figure(figsize=(1, 1)), 'a "square"', wide=True)
    path = write_page(tmp_path / "page.html", "a < b", "&", [Section("t", "f", pictures=[picture])], "end")
    text = path.read_text(encoding="utf-8")
    assert "<title>a &lt; b</title>" in text
    assert re.search(r'alt="a &quot;square&quot;"', text)
    assert not Sources(text).open
