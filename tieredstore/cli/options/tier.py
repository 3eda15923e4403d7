"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tieredstore.cli.output.rows import OutputFormat

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Which tier a verb works on. cluster and broker may be left out where the tier has one."""

    tier: str
    state: Path | None = None
    config: Path | None = None
    cluster: str | None = None
    broker: str | None = None


def tier_options(command: _Command) -> _Command:
    """Adds --tier, --state, --config, --cluster and --broker."""
    for option in reversed(
        (
            click.option(
                "--tier",
                required=True,
                metavar="URL",
                help="Where the tier is: file:///dir or s3://bucket/prefix.",
            ),
            click.option(
                "--state",
                metavar="DIR",
                type=click.Path(path_type=Path),
                help="State directory (config/tieredStoreMetadata.json); without it, the tier "
                "alone is listed.",
            ),
            click.option(
                "--config",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="A broker.conf; the command line beats it.",
            ),
            click.option("--cluster", metavar="NAME", help="Cluster name (brokerClusterName)."),
            click.option("--broker", metavar="NAME", help="Broker name (brokerName)."),
        )
    ):
        command = option(command)
    return command


def output_option(command: _Command) -> _Command:
    """Adds --output."""
    return click.option(
        "--output",
        type=click.Choice([form.value for form in OutputFormat]),
        default=OutputFormat.TABLE.value,
        show_default=True,
        help="How to print.",
    )(command)


def time_options(command: _Command) -> _Command:
    """Adds --since and --until: store times."""
    for option in reversed(
        (
            click.option("--since", metavar="TIME", help="Stored at this time or later."),
            click.option("--until", metavar="TIME", help="Stored before this time."),
        )
    ):
        command = option(command)
    return command


def body_option(command: _Command) -> _Command:
    """Adds --body."""
    return click.option(
        "--body",
        type=click.Choice(["text", "base64", "sha256", "none"]),
        default="text",
        show_default=True,
        help="How to show the body (after decompression).",
    )(command)


def topics_option(command: _Command) -> _Command:
    """Adds --topics: a list of shell patterns, empty for all."""
    return click.option(
        "--topics",
        metavar="T,…",
        multiple=True,
        callback=_split,
        help="Only these topics; shell patterns, comma-separated or repeated.",
    )(command)


def _split(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> list[str]:
    return [name for text in given for name in text.split(",") if name]


dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be copied.")
take_over_option = click.option(
    "--take-over", is_flag=True, help="End another writer's right, where the backend can do that."
)
staging_option = click.option(
    "--staging",
    metavar="URL",
    help="A place for files between the steps, file:///dir or s3://bucket/prefix, that all workers "
    "reach; by default a folder beside the journal. Needed with --spark.",
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress on stderr.")
