"""`tieredstore config show`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.tier_url import show_url

COLUMNS = ("key", "value", "origin", "problem")


@click.command("show")
@click.argument("keys", metavar="[KEY]…", nargs=-1)
@tier_options(has_defaults=True, needs_tier=False)
@click.option("--all", "every", is_flag=True, help="Those with their defaults too.")
@output_option
def command(
    keys: tuple[str, ...],
    tier: TierOptions,
    every: bool,
    out: Output,
) -> int:
    """Print which tier, state and settings count, and where each comes from: KEYs, or all that are
    given.

    A secret is not shown, nor the value of a key that nobody knows. Exit code 2 when a value
    cannot be taken.
    """
    from tieredstore.cli.conf_file import Given, Level, list_effective, read_with_findings
    from tieredstore.cli.help.suggesting import hint_at

    lines, findings = ([], []) if tier.config is None else read_with_findings(tier.config)
    names = {"brokerClusterName": "cluster", "brokerName": "broker"}
    given = {
        key: Given(value, tier.origins.get(option, "command line"))
        for key, option in names.items()
        if (value := getattr(tier, option)) is not None
    }
    rows = [*list_places(tier), *list_effective(lines, findings, str(tier.config), given)]
    known = {str(row["key"]) for row in rows}
    for key in keys:
        if key not in known:
            raise click.UsageError(f"unknown key {key!r}{hint_at(key, known)}")
    if keys:
        rows = [row for row in rows if row["key"] in keys]
    elif not every:
        rows = [row for row in rows if row["origin"] != "default"]
    out.rows(COLUMNS, rows)
    is_wrong = any(finding.level is Level.ERROR for finding in findings)
    return int(ExitCode.INVALID if is_wrong else ExitCode.OK)


def list_places(tier: TierOptions) -> Iterator[dict[str, object]]:
    """Yield which tier is worked on, and by which state and configuration."""
    places = {"tier": show_url(tier.tier) if tier.tier else None}
    places |= {name: _text(getattr(tier, name)) for name in ("state", "config")}
    for name, value in places.items():
        where = tier.origins.get(name, "default" if value is None else "command line")
        yield {"key": name, "value": value, "origin": where, "problem": None}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
