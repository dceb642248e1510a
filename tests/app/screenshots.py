"""Takes the pictures of docs/app.md: ``python -m tests.app.screenshots docs/images/app``."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from infsa.app.page import serve


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    served, address = serve()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})

        def keep(name):
            page.wait_for_timeout(800)
            page.screenshot(path=folder / f"{name}.jpg", type="jpeg", quality=85)

        page.goto(address)
        page.wait_for_selector("#map figure")
        keep("map")
        page.get_by_role("tab", name="Token graph").click()
        page.get_by_text("Which tokens matter").wait_for()
        keep("graph")
        page.get_by_role("tab", name="Removal").click()
        page.wait_for_selector("#chance")
        page.locator("input[type=range][aria-label*='Patches removed']").fill("25")
        keep("removal")
        page.get_by_role("tab", name="Gigapixel").click()
        page.get_by_role("button", name="Stream it").click()
        page.wait_for_selector("infsa-viewer canvas", timeout=120_000)
        page.wait_for_timeout(1000)
        page.locator("infsa-viewer canvas").hover(position={"x": 207, "y": 205})  # the optic disc
        page.mouse.wheel(0, -350)
        keep("gigapixel")
        browser.close()
    served.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
