"""Options for the output of a verb."""

from __future__ import annotations

import click

from tieredstore.cli.options.collecting import Command, Settings, choice, collect, switch
from tieredstore.cli.output.rows import Output, OutputFormat

_WIDE: Settings = {
    "flag": "--wide",
    "is_flag": True,
    "help": "Tables with all columns, whole and exact, however wide.",
}

_DEFUSE: Settings = {
    "flag": "--defuse-formulas",
    "is_flag": True,
    "help": "CSV and TSV: an apostrophe before a text that a spreadsheet takes for a formula.",
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
"""Adds --output, --wide and --all-rows, passed to the command as an `Output` named `out`."""


def _make_message_output(*, wide: bool, defuse_formulas: bool, **given: str | None) -> object:
    from tieredstore.cli.output.messages import MessageOutput

    return MessageOutput(**given, is_wide=wide, defuses=defuse_formulas)  # type: ignore[arg-type]


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
            "help": "Only these fields, where properties.NAME is one property.",
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
        "defuse_formulas": _DEFUSE,
    },
)
"""Adds --body, --columns, --format, --output, --wide and --defuse-formulas, passed to the command
as a `MessageOutput` named `out`."""

body_option = choice(
    "--body",
    ["text", "base64", "sha256", "none"],
    "How to show the body (after decompression).",
    default="text",
)
yes_option = switch("--yes", "Do it. Without this option it is a dry run.")
dry_run_option = switch("--dry-run", "Only report the work, and copy nothing.")


def rows_output_options(command: Command) -> Command:
    """Add --output with all formats of rows, --wide and --defuse-formulas."""
    command = switch("--defuse-formulas", str(_DEFUSE["help"]))(command)
    command = switch("--wide", str(_WIDE["help"]))(command)
    return choice(
        "--output",
        ["table", "json", "ndjson", "csv", "tsv", "vertical"],
        "How to print.",
        default="table",
    )(command)
