"""Reference page of the command line, generated from its commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from tieredstore.cli.exits import MEANINGS
from tieredstore.cli.help.manual import walk_commands
from tieredstore.cli.main import cli


def page() -> str:
    """Return the page: a section for each command, with its options and examples."""
    root = click.Context(cli, info_name="tieredstore", **cli.context_settings)
    lines = ["# Commands", "", "This page is generated from the help of the commands.", ""]
    lines += [_text_of(cli), "", "## Options of all commands", "", *_options(root), ""]
    for context in walk_commands(root):
        lines += [*_section(context), ""]
    lines += ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(lines) + "\n"


def _section(context: click.Context) -> Iterator[str]:
    command = context.command
    name = context.command_path.partition(" ")[2]
    yield f"{'##' if ' ' not in name else '###'} {name}"
    yield ""
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```\n{context.command_path} {usage}\n```"
    yield ""
    yield _text_of(command)
    yield ""
    if isinstance(command, click.Group):
        return
    yield from _options(context)
    if command.epilog:
        examples = inspect.cleandoc(command.epilog).removeprefix("\b\nExamples:\n")
        yield f"\nExamples:\n\n```\n{inspect.cleandoc(examples)}\n```"


def _options(context: click.Context) -> Iterator[str]:
    root = context.find_root()
    of_all = set() if context is root else {one.name for one in root.command.params}
    records = [
        one.get_help_record(context)
        for one in context.command.get_params(context)
        if one.name not in of_all and "--help" not in one.opts
    ]
    rows = [record for record in records if record is not None]
    if rows:
        yield "| option | meaning |"
        yield "|---|---|"
        yield from (f"| `{name}` | {_sentence(text)} |" for name, text in rows)


def _sentence(text: str) -> str:
    return escape_text(" ".join(text.split()))


def _text_of(command: click.Command) -> str:
    """Return a command's help text. Paragraphs that begin with a backspace keep their lines, as in
    `--help`."""
    paragraphs = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        same = kept != paragraph
        paragraphs.append(f"```\n{kept}\n```" if same else escape_text(" ".join(kept.split())))
    return "\n\n".join(paragraphs)


def escape_text(text: str) -> str:
    """Return plain text as Markdown. Text in backquotes stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>[\]|])", r"\\\1", part) for part in parts
    )
