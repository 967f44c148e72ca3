"""Pages in a real headless Chromium; without one on this machine the tests say so and skip."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from quantkit.eval.report.write import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FOUND = next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Opened:
    """A page, with every request that it made and every message that it gave."""

    page: Page
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture(scope="session")
def generated() -> Any:
    """The module that writes generated results, shared with the tests of the report."""
    path = Path(__file__).parents[1] / "eval" / "report" / "generated.py"
    spec = spec_from_file_location("generated_results", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium of the system."""
    if FOUND is None:
        pytest.skip("no chromium on this machine; try: make browser")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=FOUND, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def show(browser: Browser) -> Iterator[Open]:
    """show(path, width=..., theme=..., script=...): the page, opened and drawn."""
    contexts = []

    def call(path: Path, width: int = 1280, theme: str = "light", script: bool = True) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            java_script_enabled=script,
            reduced_motion="reduce",
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("console", lambda message: opened.messages.append(message.text))
        opened.page.on("pageerror", lambda error: opened.messages.append(str(error)))
        opened.page.on("dialog", lambda dialog: opened.messages.append(dialog.message))
        opened.page.goto(path.as_uri())
        if script:
            opened.page.wait_for_selector("html[data-drawn]")
        return opened

    yield call
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, generated: Any) -> Path:
    """The page of nine recipes with everything measured."""
    folder = tmp_path_factory.mktemp("sweep")
    generated.write_sweep(folder, count=9)
    return write_report([folder], folder / "report.html").output


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory, generated: Any) -> Path:
    """The page of three recipes with everything measured: every kind of element, few of each."""
    folder = tmp_path_factory.mktemp("small")
    generated.write_sweep(folder, count=3, layers=4)
    return write_report([folder], folder / "report.html").output


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory, generated: Any) -> Path:
    """The page of forty recipes on 512 documents."""
    folder = tmp_path_factory.mktemp("large")
    generated.write_sweep(folder, count=40, documents=512)
    return write_report([folder], folder / "report.html").output
