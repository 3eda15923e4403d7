"""A browser shows a report page in light and dark mode, on a desktop and a phone. With
TIEREDSTORE_SCREENSHOTS=docs/report the test retakes the pictures of docs/jobs.md."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.browser import DARK, DESK, PHONE, Browser, find_browser, open_browser
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import ReportOptions
from tieredstore.jobs.reporting.job import run_report
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.scan.location import locate

NEWEST_MS = 1_795_266_330_174
SCREENS = {"light": DESK, "dark": DARK, "phone": PHONE}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = find_browser()
    if isinstance(found, str):
        pytest.skip(found)
    with open_browser(found, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(public_a: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report page, with prices, for a tier that a Java broker wrote. The report's time is one and a
    half days after the last message."""
    folder = tmp_path_factory.mktemp("report")
    tier = public_a / "tiered"
    options = ReportOptions(as_of=NEWEST_MS + 36 * 3_600_000, prices={"storage": 0.023})
    with Journal(None, {}) as journal:
        run = JobRun("report", LocalRunner(1), journal)
        run_report(run, locate(str(tier), state=public_a / "store"), folder, options)
    path = folder / "report.html"
    path.write_text(path.read_text().replace(str(tier), "/data/history"))
    return path


@pytest.mark.parametrize("name", SCREENS)
def test_it_fits_the_screen_and_can_be_read(
    browser: Browser, page: Path, tmp_path: Path, name: str
) -> None:
    screen = SCREENS[name]
    browser.show(page, screen)
    width = browser.ask("return document.documentElement.scrollWidth")
    assert width <= screen.width, "the page is wider than the screen"
    charts = browser.ask(
        "return [...document.querySelectorAll('.chart')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.left, r.right, r.height])"
    )
    assert len(charts) == 7
    for left, right, height in charts:
        assert 0 <= left < right <= screen.width
        assert 0 < height <= screen.height, "a chart is to be seen at once"
    assert browser.complaints() == []
    [paper, *inks] = browser.ask(COLOURS)
    assert (brightness(paper) < 0.5) == screen.is_dark
    assert len(inks) > 4
    for ink in inks:
        assert contrast(ink, paper) >= 4.5, (ink, paper)
    picture = browser.screenshot()
    folder = Path(os.environ.get("TIEREDSTORE_SCREENSHOTS", tmp_path))
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.png").write_bytes(picture)
    assert 10_000 < len(picture) < 150_000


COLOURS = """
const seen = new Set();
for (const each of document.querySelectorAll("h1, h2, p, a, td, tbody th, .label, .value"))
  seen.add(getComputedStyle(each).color);
return [getComputedStyle(document.body).backgroundColor, ...seen,
  ...[...document.querySelectorAll(".tile span, .warning")].map(e => getComputedStyle(e).color)];
"""


def brightness(colour: str) -> float:
    """Return the relative luminance of rgb(r, g, b), as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


PRESS = """
const [section, head] = arguments;
const table = document.getElementById(section).parentElement.querySelector("table");
const found = [...table.tHead.rows[0].cells].find(e => e.textContent === head);
found.querySelector("button").click();
const column = [...table.tBodies[0].rows].map(row => row.cells[found.cellIndex]);
return [found.getAttribute("aria-sort"), column.map(e => e.textContent),
  column.map(e => e.dataset.key ?? null), table.querySelectorAll("[aria-sort]").length];
"""


def test_pressing_a_head_sorts_by_what_a_cell_means(browser: Browser, page: Path) -> None:
    browser.show(page, DESK)
    order, shown, keys, sorted_by = browser.ask(PRESS, "sizes", "All bytes")
    numbers = [float(key) for key in keys]
    assert (order, sorted_by) == ("descending", 1)
    assert numbers == sorted(numbers, reverse=True)
    # As texts they would stand otherwise.
    assert shown != sorted(shown, reverse=True)
    order, shown_again, _, _ = browser.ask(PRESS, "sizes", "All bytes")
    assert (order, shown_again) == ("ascending", shown[::-1])
    order, names, _, sorted_by = browser.ask(PRESS, "sizes", "Topic")
    assert (order, sorted_by) == ("ascending", 1)
    assert names == sorted(names)
    _, _, keys, _ = browser.ask(PRESS, "ages", "Age")
    assert [int(key) for key in keys] == list(range(len(keys)))
    assert browser.complaints() == []


def test_what_is_not_known_comes_last_whichever_way_round(browser: Browser, page: Path) -> None:
    browser.show(page, DESK)
    cell = "#sizes ~ .wide tbody tr:nth-child(3) td"
    browser.ask(f"document.querySelector('{cell}').removeAttribute('data-key')")
    for order in ("descending", "ascending"):
        found, _, keys, _ = browser.ask(PRESS, "sizes", "Queues")
        assert found == order
        assert keys[-1] is None
        assert None not in keys[:-1]


def test_a_topic_cannot_run_a_script_in_it(browser: Browser, page: Path, tmp_path: Path) -> None:
    """A topic's name cannot run a script in the report page. Even an unescaped name could not,
    because the page's content security policy would stop the script."""
    hostile = "<script>document.title = 'taken'</script><b onclick='1'></b></footer>"
    copy = tmp_path / "hostile.html"
    copy.write_text(page.read_text().replace("</footer>", hostile))
    browser.show(copy, DESK)
    assert browser.ask("return document.title").startswith("Tier report")
    assert any("Content Security Policy" in said for said in browser.complaints())
    assert browser.ask("return document.querySelectorAll('thead button').length") > 20
