"""Manual page: the `--help` text of each verb in roff."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from tieredstore import __version__
from tieredstore.cli.exits import MEANINGS


def manual_page(root: click.Context) -> str:
    """Return the manual page as roff. `root`: the context of the command `tieredstore`."""
    lines = [f'.TH TIEREDSTORE 1 "" "tieredstore {__version__}" "User Commands"']
    command = root.command
    text = _paragraphs(command)
    lines += [".SH NAME", f"tieredstore \\- {_escape(text[0].rstrip('.'))}"]
    lines += [".SH SYNOPSIS", f".B tieredstore\n{_escape('VERB [OPTIONS] [ARGUMENTS]')}"]
    lines += [".SH DESCRIPTION", *_body(text[1:])]
    lines += [".SH OPTIONS", *_options(root), ".SH VERBS"]
    for context in walk_commands(root):
        lines += _verb(context)
    lines.append(".SH EXIT STATUS")
    for code, meaning in MEANINGS.items():
        lines += _item(str(int(code)), meaning)
    return "\n".join(lines) + "\n"


def walk_commands(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of each verb and its subcommands, in the order of the help."""
    group = context.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, parent=context, info_name=name)
        yield below
        yield from walk_commands(below)


def _verb(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_escape(context.command_path.partition(' ')[2])}"
    yield f".B {_escape(context.command_path)}"
    yield _escape(usage)
    yield from _body(_paragraphs(command))
    if not isinstance(command, click.Group):
        yield from _options(context)
        if command.epilog:
            yield from _body([inspect.cleandoc(command.epilog)])


def _options(context: click.Context) -> Iterator[str]:
    command = context.command
    root = context.find_root()
    if context is root:
        parameters, said = command.get_params(context), set[str | None]()
    else:  # options that each verb has are listed once
        parameters, said = command.params, {parameter.name for parameter in root.command.params}
    for parameter in parameters:
        if parameter.name in said:
            continue
        record = parameter.get_help_record(context)
        if record is not None:
            yield from _item(*record)


def _item(name: str, text: str) -> list[str]:
    return [".TP", f"\\fB{_escape(name)}\\fR", _escape(" ".join(text.split()))]


def _paragraphs(command: click.Command) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def _body(paragraphs: list[str]) -> Iterator[str]:
    """Convert paragraphs to roff. Line breaks are kept in a paragraph that starts with a backspace
    character, as in `--help`."""
    for paragraph in paragraphs:
        yield ".PP"
        kept = paragraph.removeprefix("\b\n")
        if kept == paragraph:
            yield _escape(" ".join(paragraph.split()))
        else:
            yield from (".nf", *map(_escape, kept.splitlines()), ".fi")


def _escape(text: str) -> str:
    """Escape text for roff."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    plain = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in plain)
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain
