"""Groups of commands of which only the one that is called is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from tieredstore.cli.logs.choice import log_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_EXAMPLE_CELLS: Final = 74
"""With a backslash behind it, and indented as the help does it, 80."""


class LazyGroup(click.Group):
    """Knows its commands by name. The module of each holds the command `command`."""

    def __init__(self, *, lines: Mapping[str, str], package: str, **settings: object) -> None:
        """lines: command -> its line in `--help`. package: where the modules are."""
        super().__init__(**settings)  # type: ignore[arg-type]
        self._lines = lines
        self._package = package

    def find_module(self, name: str) -> str:
        """Return the name of the module of a command."""
        return f"{self._package}.{name}"

    def find_full_name(self, name: str) -> str:
        """Return what one types to call a command."""
        return f"{self.name} {name}"

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._lines:
            return None
        command: click.Command = import_module(self.find_module(cmd_name)).command
        if not isinstance(command, click.Group) and not _has_log_options(command):
            command.params.extend(log_options())
            if command.callback is not None:
                from tieredstore.cli.help.suggesting import offer_conf

                command.callback = offer_conf(command.callback)
        if command.epilog is None:
            command.epilog = _show_examples(self.find_full_name(cmd_name))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called. Raises a usage error that says which may be meant."""
        name = args[0]
        if name not in self._lines and not ctx.resilient_parsing and not name.startswith("-"):
            from tieredstore.cli.help.suggesting import hint_at

            ctx.fail(f"No such command {name!r}{hint_at(name, self._lines)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command, without an import of all, or an option of the group."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=line)
            for name, line in self._lines.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines.items()))


def _show_examples(verb: str) -> str | None:
    from tieredstore.cli.help.examples import EXAMPLES

    parts = [found[0] for part, found in EXAMPLES.items() if part.startswith(f"{verb} ")]
    examples = EXAMPLES.get(verb) or parts  # of a group: one of each part
    if not examples:
        return None
    lines = [line for example in examples for line in _break(f"tieredstore {example}")]
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _break(example: str) -> list[str]:
    """A command line in lines that fit; a shell puts them together again."""
    lines = [""]
    for word in example.replace(" --", "\0--").split("\0"):
        if lines[-1] and len(f"{lines[-1]} {word}") > _EXAMPLE_CELLS:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _has_log_options(command: click.Command) -> bool:
    return any(parameter.name == "log_level" for parameter in command.params)
