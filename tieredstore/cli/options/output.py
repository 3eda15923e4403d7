"""Options that say what a verb prints."""

from __future__ import annotations

import click

from tieredstore.cli.options.collecting import Command, Settings, collect
from tieredstore.cli.output.rows import Output, OutputFormat

_WIDE: Settings = {
    "flag": "--wide",
    "is_flag": True,
    "help": "Tables with all columns, whole and exact, however wide.",
}

output_option = collect(
    "out",
    lambda output, wide, all_rows: Output(
        OutputFormat(output), is_wide=wide, has_all_rows=all_rows
    ),
    {
        "output": {
            "flag": "--output",
            "type": click.Choice([form.value for form in OutputFormat]),
            "default": OutputFormat.TABLE.value,
            "show_default": True,
            "help": "How to print.",
        },
        "wide": _WIDE,
        "all_rows": {
            "flag": "--all-rows",
            "is_flag": True,
            "help": "Tables with all rows, also those of more than 50 queues.",
        },
    },
)
"""Adds --output, --wide and --all-rows; the command gets the `Output` `out`."""


def _make_message_output(*, wide: bool, **given: str | None) -> object:
    from tieredstore.cli.output.messages import MessageOutput

    return MessageOutput(**given, is_wide=wide)  # type: ignore[arg-type]


message_output_options = collect(
    "out",
    _make_message_output,
    {
        "body": {
            "flag": "--body",
            "type": click.Choice(["text", "base64", "sha256", "none"]),
            "default": "text",
            "show_default": True,
            "help": "How to show the body (after decompression).",
        },
        "columns": {
            "flag": "--columns",
            "metavar": "C,…",
            "help": "Only these fields; properties.NAME is one property.",
        },
        "template": {
            "flag": "--format",
            "metavar": "TEXT",
            "help": "A line for each message, such as '{queue_id}@{queue_offset} {body}'.",
        },
        "output": {
            "flag": "--output",
            "type": click.Choice(["table", "json", "ndjson", "csv", "tsv", "vertical", "raw"]),
            "default": "table",
            "show_default": True,
            "help": "How to print.",
        },
        "wide": _WIDE,
    },
)
"""Adds --body, --columns, --format, --output and --wide; the command gets the `MessageOutput`
`out`."""

body_option = click.option(
    "--body",
    type=click.Choice(["text", "base64", "sha256", "none"]),
    default="text",
    show_default=True,
    help="How to show the body (after decompression).",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be copied.")


def rows_output_options(command: Command) -> Command:
    """Add --output, in all forms of rows, and --wide."""
    command = click.option("--wide", is_flag=True, help=str(_WIDE["help"]))(command)
    return click.option(
        "--output",
        type=click.Choice(["table", "json", "ndjson", "csv", "tsv", "vertical"]),
        default="table",
        show_default=True,
        help="How to print.",
    )(command)
