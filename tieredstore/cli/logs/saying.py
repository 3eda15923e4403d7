"""What a verb says beside its output."""

from __future__ import annotations

import click

from tieredstore.cli.logs.choice import DEFAULT_LEVEL, LEVELS, LogChoice, LogFormat, find_choice


def say(text: str, level: str = "info", choice: LogChoice | None = None) -> None:
    """Say something on stderr in one line, from `level` warning on with its name. choice: where no
    context has it any more."""
    click.echo(make_line(text, level, choice), err=True)


def make_line(text: str, level: str = "info", choice: LogChoice | None = None) -> str:
    """Return the line that `say` writes."""
    text = " ".join(text.split())
    if (choice or find_choice()).format is LogFormat.JSON:
        from tieredstore.cli.logs.lines import make_json_line

        return make_json_line("tieredstore", level, text)
    is_grave = LEVELS.index(level) <= LEVELS.index(DEFAULT_LEVEL)
    return f"tieredstore: {level}: {text}" if is_grave else f"tieredstore: {text}"
