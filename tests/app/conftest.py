"""The page, served once for the tests of a process."""

import shutil

import pytest


@pytest.fixture(scope="session")
def address():
    pytest.importorskip(
        "gradio", reason="gradio is missing, so the page was not served: pip install '.[app]' in a checkout"
    )
    from infsa.app.page import serve

    page, address = serve()
    yield address
    page.close()


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: no test in a browser")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium in PATH, so the page was not tested in a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"], headless=True)
        yield started
        started.close()
