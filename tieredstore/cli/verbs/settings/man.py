"""`tieredstore man`: all of the help as a manual page."""

from __future__ import annotations

import click


@click.command("man")
@click.pass_context
def command(context: click.Context) -> None:
    """Print the manual page, which has the help of every verb.

    \b
    tieredstore man | man -l -
    tieredstore man > ~/.local/share/man/man1/tieredstore.1
    """
    from tieredstore.cli.help.manual import manual_page

    click.echo(manual_page(context.find_root()), nl=False)
