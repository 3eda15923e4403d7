"""`tieredstore completion`: the script by which a shell completes the command line."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete verbs, options and the topics of a tier.

    \b
    bash:  eval "$(tieredstore completion bash)"               in ~/.bashrc
    zsh:   eval "$(tieredstore completion zsh)"                in ~/.zshrc, behind compinit
    fish:  tieredstore completion fish > ~/.config/fish/completions/tieredstore.fish
    """
    from tieredstore.cli.help.completing import shell_script

    click.echo(shell_script(shell, context.find_root().command), nl=False)
