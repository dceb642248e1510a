"""The page in a real Chromium: uploads, the slider, errors, the keyboard, the console, the network."""

import re
from urllib.parse import urlsplit

import numpy as np
import pytest

from .helpers import photograph, promise

WAIT = 20_000  # milliseconds


@pytest.fixture
def page(browser, address):
    """An open page; whatever happens on it, the console stays clean and nothing outside is asked."""
    problems, hosts = [], set()
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(WAIT)
    opened.on("console", lambda message: message.type == "error" and problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    opened.on("response", lambda answer: answer.status >= 400 and problems.append(f"{answer.status} {answer.url}"))
    opened.on("filechooser", lambda chooser: None)  # from the start: a dialog opened before this would be lost
    opened.goto(address)
    opened.wait_for_selector("#map figure")
    yield opened
    context.close()
    assert problems == []
    assert hosts - {None} == {"127.0.0.1"}


def drop(page, path, number=0):
    """Give a file to a box and wait until the box lists it; the name that the box shows on the way may flash by."""
    page.locator("input[type=file]").nth(number).set_input_files(path)
    page.locator(".drop").nth(number).locator(".file-preview", has_text=path.stem).wait_for()


def tab_to(page, wanted):
    """Press Tab until the focused element's description matches; the keyboard alone must get there."""
    describe = """() => {const e = document.activeElement; return [e.tagName, e.type, e.getAttribute('role'),
      e.getAttribute('aria-label'), e.value, e.innerText && e.innerText.slice(0, 60)].join(' | ')}"""
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(describe))
        if re.search(wanted, seen[-1]):
            return
    raise AssertionError(f"no focus on {wanted}: {seen}")


def test_the_first_screen_makes_sense(page):
    assert page.locator("#map figure").count() == 6
    assert page.locator("#map .guess").count() == 3
    for text in ("Where does attention look?", "Example picture", "Mechanism", "Pure InfSA predicts"):
        box = page.get_by_text(text, exact=True).first.bounding_box()
        assert box["y"] + box["height"] <= 800
        assert box["x"] + box["width"] <= 1280
    assert all(image.get_attribute("alt") for image in page.locator("#map img").all())


def test_what_is_chosen_while_the_server_is_busy_is_shown_in_the_end(browser, address):
    """Visitors who change their mind at once: every page ends with the picture that it says."""
    contexts = [browser.new_context(viewport={"width": 1280, "height": 800}) for _ in range(5)]
    pages = [context.new_page() for context in contexts]
    try:
        for page in pages:
            page.set_default_timeout(3 * WAIT)
            page.goto(address)
        for page in pages:
            page.wait_for_selector("#map figure")
        for page in pages:
            for name in ("Rocket", "Portrait"):
                page.get_by_text(name, exact=True).first.click()
        for page in pages:
            page.locator("#map").get_by_text("512 × 600").first.wait_for()  # its size, and no other one
    finally:
        for context in contexts:
            context.close()


def test_upload_then_remove_patches(page, tmp_path):
    photograph(120, 80, seed=3).save(tmp_path / "mine.png")
    drop(page, tmp_path / "mine.png")
    page.get_by_text("120 × 80").first.wait_for()
    page.get_by_role("tab", name="Removal").click()
    page.wait_for_selector("#chance")
    before = page.inner_text("#chance")
    assert "0 of 70 patches removed" in page.inner_text("#removal")
    page.locator("input[aria-label*='Patches removed']").first.fill("50")
    page.get_by_text("35 of 70 patches removed").wait_for()
    assert page.inner_text("#chance") != before
    drawn = page.locator("#removal .chart svg").inner_html()
    page.get_by_text("Linear-InfSA", exact=True).first.click()  # the curves are computed anew
    page.locator("input[aria-label*='Patches removed']").first.fill("20")  # and meanwhile the slider moves
    page.wait_for_function(
        """old => document.querySelector('#removal .chart svg').innerHTML != old
           && document.querySelector('#removal').innerText.includes('14 of 70 patches removed')""",
        arg=drawn,
    )


@pytest.mark.parametrize(
    ("name", "message"), [("notes.png", "not an image in a known format"), ("huge.png", "more than the 67 megapixels")]
)
def test_bad_files_are_answered_and_the_page_goes_on(page, tmp_path, name, message):
    file = tmp_path / name
    promise(file, 32768, 32768) if name == "huge.png" else file.write_text("no picture")
    drop(page, file)
    page.get_by_text(re.compile(message)).first.wait_for()
    page.get_by_text("softmax", exact=True).first.click()
    page.get_by_text("softmax predicts").wait_for()


def test_keyboard_alone(page, tmp_path):
    photograph(120, 80, seed=4).save(tmp_path / "mine.png")
    tab_to(page, "radio .*Rocket")
    page.keyboard.press("Space")
    page.get_by_text("640 × 427").first.wait_for()
    tab_to(page, "upload or drop")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(tmp_path / "mine.png")
    page.get_by_text("120 × 80").first.wait_for()
    tab_to(page, "radio .*Linear-InfSA")
    page.keyboard.press("Space")
    page.get_by_text("Linear-InfSA predicts").wait_for()
    tab_to(page, "combobox .*Map")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.locator("#map figcaption", has_text=re.compile("Decayed walks|Rollout")).wait_for()
    tab_to(page, r"range .*Layer")
    page.keyboard.press("ArrowLeft")
    tab_to(page, r"tab .*Removal")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chance")
    tab_to(page, r"range .*Patches removed")
    page.keyboard.press("ArrowRight")
    page.get_by_text("4 of 70 patches removed").wait_for()


FRAMES = """() => [...document.querySelectorAll('figure.card, .chart')].filter(e => e.offsetParent).map(e => {
  const light = c => c.match(/[0-9.]+/g).slice(0, 3).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const style = getComputedStyle(e.querySelector('figcaption') || e);
  return [light(getComputedStyle(e).backgroundColor), light(style.color)]})"""
WIDTH = "() => document.querySelector('.gradio-container').getBoundingClientRect().width"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cards_follow_the_theme_and_the_page_keeps_its_width(browser, address, scheme):
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    try:
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.goto(address)
        page.wait_for_selector(".results")
        widths, frames = [page.evaluate(WIDTH)], []
        for tab, shown in (("Map", "#map figure"), ("Token graph", "#graph figure svg"), ("Removal", ".chart svg")):
            page.get_by_role("tab", name=tab).click()
            widths.append(page.evaluate(WIDTH))  # while the tab is still empty
            page.locator(shown).first.wait_for()
            widths.append(page.evaluate(WIDTH))
            frames += page.evaluate(FRAMES)
        assert len(set(widths)) == 1
        assert len(frames) == 6 + 2 + 2
        for background, text in frames:
            assert (background > 0.5) == (scheme == "light")
            assert (max(background, text) + 0.05) / (min(background, text) + 0.05) >= 4.5
    finally:
        context.close()


def test_the_graph_of_every_mechanism(page):
    page.get_by_role("tab", name="Token graph").click()
    page.get_by_text("Which tokens matter").wait_for()
    page.get_by_text("Linear-InfSA", exact=True).first.click()
    page.get_by_text("All rows of this graph are equal").wait_for()


def test_a_large_image_is_dragged_and_zoomed(page, tmp_path):
    np.save(tmp_path / "large.npy", np.asarray(photograph(1280, 1024)))
    page.get_by_role("tab", name="Gigapixel").click()
    drop(page, tmp_path / "large.npy", number=1)
    page.get_by_role("button", name="Stream it").click()
    place = page.locator("infsa-viewer .place")
    page.get_by_text("1280 × 1024 pixels at (0, 0)").wait_for(timeout=3 * WAIT)
    canvas = page.locator("infsa-viewer canvas")
    page.wait_for_function("() => [...document.querySelector('infsa-viewer').tiles.values()].every(t => t.ready)")
    shown = "c => [...c.getContext('2d').getImageData(c.width / 2, c.height / 2, 1, 1).data]"
    both = canvas.evaluate(shown)
    page.get_by_label("Map opacity").fill("0")
    page.wait_for_function(f"([c, old]) => String(({shown})(c)) != String(old)", arg=[canvas.element_handle(), both])
    canvas.hover()
    page.mouse.wheel(0, -600)
    page.wait_for_function("() => !document.querySelector('infsa-viewer .place').textContent.startsWith('1280')")
    before = place.inner_text()
    box = canvas.bounding_box()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 60, box["y"] + box["height"] / 2 + 30, steps=3)
    page.mouse.up()
    page.wait_for_function("old => document.querySelector('infsa-viewer .place').textContent != old", arg=before)
    canvas.press("0")
    page.get_by_text("1280 × 1024 pixels at (0, 0)").wait_for()
    canvas.press("+")
    page.wait_for_function("() => !document.querySelector('infsa-viewer .place').textContent.startsWith('1280')")
