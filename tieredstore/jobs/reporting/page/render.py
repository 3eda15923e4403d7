"""Renders a report's figures with the template of the page."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

import jinja2

from tieredstore.contracts.usage import Prices
from tieredstore.jobs.reporting.facts import Facts
from tieredstore.jobs.reporting.page.cells import show_plainly, show_time
from tieredstore.jobs.reporting.page.charts import Bar, Chart
from tieredstore.jobs.reporting.page.sections import Section, make_sections, make_tiles
from tieredstore.jobs.reporting.sketches import DISTINCT_HASHES, HEAVY_HITTERS
from tieredstore.jobs.reporting.summary import Summary


def page(
    summary: Summary, tier: str, now_ms: int, keys_percent: int, prices: Prices | None, facts: Facts
) -> bytes:
    """Return the page in UTF-8. `prices`: None if no price applies, for a page without costs."""
    script = _read("sort.js")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    place = "files" if tier.startswith("file:") else "objects"
    text = environment.from_string(_read("page.html")).render(
        tier=show_plainly(tier),
        time=show_time(now_ms),
        keys_percent=keys_percent,
        tiles=make_tiles(summary.totals, prices, place),
        sections=list(map(_make_plain, make_sections(summary, keys_percent, prices, place))),
        damage=list(map(show_plainly, facts.texts)),
        findings=facts.findings,
        hitters=HEAVY_HITTERS,
        hashes=DISTINCT_HASHES,
        priced=prices is not None,
        style=_read("page.css"),
        script=script,
        # The page runs only this script, whatever the name of a topic is.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return text.encode()


def _make_plain(section: Section) -> Section:
    if section.chart is None:
        return section
    bars = [Bar(show_plainly(bar.label), bar.parts, bar.value) for bar in section.chart.bars]
    return section._replace(chart=Chart(bars, section.chart.series, section.chart.note))


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
