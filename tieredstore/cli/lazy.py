"""Groups of commands of which only the one that is called is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import click

from tieredstore.cli.logs import log_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Knows its commands by name. The module of each holds the command `command`."""

    def __init__(self, *, lines: Mapping[str, str], modules: str, **settings: object) -> None:
        """lines: command -> its line in `--help`. modules: a format such as
        `tieredstore.cli.verbs.{}`."""
        super().__init__(**settings)  # type: ignore[arg-type]
        self._lines = lines
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._lines:
            return None
        command: click.Command = import_module(self._modules.format(cmd_name)).command
        if not isinstance(command, click.Group) and not _has_log_options(command):
            command.params.extend(log_options())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called. Raises a usage error that says which may be meant."""
        name = args[0]
        if name not in self._lines and not ctx.resilient_parsing and not name.startswith("-"):
            from tieredstore.cli.suggesting import hint_at

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


def _has_log_options(command: click.Command) -> bool:
    return any(parameter.name == "log_level" for parameter in command.params)
