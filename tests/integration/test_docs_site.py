"""The documentation site builds without a warning, and works in a browser without a network."""

from __future__ import annotations

import functools
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.by import By

from scripts.docsite.__main__ import build
from tests.kit.browser import DARK, DESK, Browser, find_browser, open_browser

BLOCKED = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",)
"""Browser options that block all other machines."""
DEAD_PROXY = "http://127.0.0.1:9"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the site on this machine. The site was built with unreachable proxies."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            patch.setenv(name, DEAD_PROXY)
        page = build(tmp_path_factory.mktemp("docs"))
    handler = functools.partial(QuietHandler, directory=str(page.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    found = find_browser()
    if isinstance(found, str):
        pytest.skip(found)
    with open_browser(found, tmp_path / "profile", further=BLOCKED) as opened:
        yield opened


def wait_for(condition: Any) -> Any:
    """Wait until a function returns a true value, and return the value."""
    deadline = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_search_finds_a_page_without_a_request_to_another_host(site: str, browser: Browser) -> None:
    browser.show(f"{site}/index.html", DESK)
    browser.driver.find_element(By.CSS_SELECTOR, ".md-search__button").click()
    field = wait_for(
        lambda: browser.driver.execute_script(
            "return document.activeElement.shadowRoot?.querySelector('input')"
        )
    )
    field.send_keys("offload follow")
    root = browser.driver.switch_to.active_element.shadow_root

    def links() -> list[str]:
        anchors = root.find_elements(By.CSS_SELECTOR, "a")
        return [str(anchor.get_attribute("href")) for anchor in anchors]

    found = wait_for(links)
    assert browser.complaints() == []
    assert any("/beside-java.html" in link for link in found)
    browser.driver.get(next(link for link in found if "/beside-java.html" in link))
    assert "--follow" in str(browser.ask("return document.body.innerText"))
    requested = browser.requests()
    assert len(requested) > 5
    hosts = {urlsplit(url).netloc for url in requested if url.startswith("http")}
    assert hosts == {urlsplit(site).netloc}


def test_the_site_is_light_or_dark_as_the_reader_prefers(site: str, browser: Browser) -> None:
    shown = {}
    for screen in (DESK, DARK):
        browser.show(f"{site}/reference/commands.html", screen)
        browser.ask("localStorage.clear()")
        browser.show(f"{site}/reference/commands.html", screen)
        color = browser.ask("return getComputedStyle(document.body).backgroundColor")
        shown[screen] = sum(map(int, color.strip("rgb()").split(",")))
    assert shown[DESK] > 600
    assert shown[DARK] < 150


def test_the_site_has_four_parts(site: str, browser: Browser) -> None:
    browser.show(f"{site}/index.html", DESK)
    tabs = browser.ask(
        "return [...document.querySelectorAll('.md-tabs__link')].map(a => a.innerText)"
    )
    assert [tab.strip() for tab in tabs] == [
        "Start",
        "Tutorials",
        "How-to guides",
        "Reference",
        "Explanation",
    ]
