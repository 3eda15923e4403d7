"""Options that say what a verb prints."""

from __future__ import annotations

import click

from tieredstore.cli.options.collecting import collect
from tieredstore.cli.output.rows import Output, OutputFormat

output_option = collect(
    "out",
    lambda output: Output(OutputFormat(output)),
    {
        "output": {
            "flag": "--output",
            "type": click.Choice([form.value for form in OutputFormat]),
            "default": OutputFormat.TABLE.value,
            "show_default": True,
            "help": "How to print.",
        }
    },
)
"""Adds --output; the command gets the `Output` `out`."""

body_option = click.option(
    "--body",
    type=click.Choice(["text", "base64", "sha256", "none"]),
    default="text",
    show_default=True,
    help="How to show the body (after decompression).",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be copied.")
