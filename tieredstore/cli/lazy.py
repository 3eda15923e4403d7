"""Command groups that import their commands only when they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from tieredstore.cli.logs.choice import log_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_EXAMPLE_CELLS: Final = 74
"""Width of an example line in characters: 80, minus the help's indent and the backslash at the
end."""


class VerbGroup(click.Group):
    """Command group that adds the log options, and examples in the help, to each command."""

    def find_full_name(self, name: str) -> str:
        """Return what a user types to run a command of this group, such as `tier delete`."""
        return f"{self.name} {name}"

    def list_lines(self) -> Mapping[str, str]:
        """Return the line for each command in the `--help` of the group, by command name."""
        return {name: command.short_help or "" for name, command in self.commands.items()}

    def find_command(self, name: str) -> click.Command:
        return self.commands[name]

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.list_lines())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.list_lines():
            return None
        command = self.find_command(cmd_name)
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
        """Return the command named by the arguments. Raises a usage error with suggestions for an
        unknown command."""
        name = args[0]
        if name not in self.list_lines() and not ctx.resilient_parsing and not name.startswith("-"):
            from tieredstore.cli.help.suggesting import hint_at

            ctx.fail(f"No such command {name!r}{hint_at(name, self.list_lines())}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete an option of the group or the name of a command, without importing the
        commands."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=line)
            for name, line in self.list_lines().items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(self.list_lines().items()))


def _show_examples(verb: str) -> str | None:
    from tieredstore.cli.help.examples import EXAMPLES

    parts = [found[0] for part, found in EXAMPLES.items() if part.startswith(f"{verb} ")]
    examples = EXAMPLES.get(verb) or parts  # of a group: one for each part
    if not examples:
        return None
    lines = [line for example in examples for line in _break(f"tieredstore {example}")]
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _break(example: str) -> list[str]:
    """Break a command line into lines that fit into the help. A shell reads them as a single
    line."""
    lines = [""]
    for word in example.replace(" --", "\0--").split("\0"):
        if lines[-1] and len(f"{lines[-1]} {word}") > _EXAMPLE_CELLS:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def _has_log_options(command: click.Command) -> bool:
    return any(parameter.name == "log_level" for parameter in command.params)
