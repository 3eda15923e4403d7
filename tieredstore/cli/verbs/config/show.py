"""`tieredstore config show`."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output

COLUMNS = ("key", "value", "origin", "problem")


@click.command("show")
@click.argument("keys", metavar="[KEY]…", nargs=-1)
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="A broker.conf.")
@click.option("--cluster", metavar="NAME", help="Cluster name (brokerClusterName).")
@click.option("--broker", metavar="NAME", help="Broker name (brokerName).")
@click.option("--all", "every", is_flag=True, help="Those with their defaults too.")
@output_option
def command(
    keys: tuple[str, ...],
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    every: bool,
    out: Output,
) -> int:
    """Print the settings that count, and where each comes from: KEYs, or all that are given.

    A secret is not shown, nor the value of a key that nobody knows. Exit code 2 when a value
    cannot be taken.
    """
    from tieredstore.cli.conf_file import Level, list_effective, read_with_findings
    from tieredstore.cli.suggesting import hint_at

    lines, findings = ([], []) if config is None else read_with_findings(config)
    names = {"brokerClusterName": cluster, "brokerName": broker}
    given = {key: name for key, name in names.items() if name is not None}
    rows = list(list_effective(lines, findings, str(config), given))
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
