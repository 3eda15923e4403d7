"""A headless Chromium for tests of HTML pages. It sends no request to other hosts."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "google-chrome")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


class Screen(NamedTuple):
    """Size of a screen in pixels, and the preferred colour scheme (light or dark)."""

    width: int
    height: int
    is_dark: bool = False
    is_phone: bool = False


DESK = Screen(1280, 800)
DARK = Screen(1280, 800, is_dark=True)
PHONE = Screen(390, 844, is_phone=True)


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def show(self, page: Path | str, screen: Screen) -> None:
        """Load a page (a file or a URL) in a window of the given size."""
        metrics = {
            "width": screen.width,
            "height": screen.height,
            "deviceScaleFactor": 1,
            "mobile": screen.is_phone,
        }
        self._command("Emulation.setDeviceMetricsOverride", metrics)
        colours = {"name": "prefers-color-scheme", "value": "dark" if screen.is_dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [colours]})
        self.driver.get(page if isinstance(page, str) else page.absolute().as_uri())

    def ask(self, script: str, *arguments: object) -> Any:
        """Return the value of a JavaScript expression."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Return the console messages since the last call."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in entries]

    def requests(self) -> list[str]:
        """Return the URLs that pages and their workers requested since the last call."""
        entries = self.driver.get_log("performance")  # type: ignore[no-untyped-call]
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            str(event["params"]["request"]["url"])
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self) -> bytes:
        """Return the screen as a PNG image."""
        taken = self._command("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(taken["data"])

    def _command(self, name: str, arguments: Mapping[str, object]) -> Any:
        return self.driver.execute_cdp_cmd(name, dict(arguments))


def find_browser() -> tuple[str, str] | str:
    """Return the paths of Chromium and its driver, or the reason why they are missing."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        missing = "chromium" if browser is None else "chromedriver"
        return f"there is no {missing} (Debian: apt-get install chromium chromium-driver)"
    return browser, driver


@contextmanager
def open_browser(
    paths: tuple[str, str], profile: Path, *, further: Sequence[str] = ()
) -> Iterator[Browser]:
    """Start the browser with a new, empty profile. `further` adds command line options."""
    options = webdriver.ChromeOptions()
    options.binary_location, driver_path = paths
    for option in (*_OPTIONS, *further, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
