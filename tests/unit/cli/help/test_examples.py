"""The `--help` text of each command has examples, and every example is a valid command line."""

from __future__ import annotations

import shlex

import click
import pytest

from tieredstore.cli.help.examples import EXAMPLES
from tieredstore.cli.main import cli, run

WIDTH = 80


def find(words: list[str]) -> tuple[click.Command, list[str]]:
    """Split the words of a command line into the command and its arguments."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command, words


def verbs(command: click.Command = cli, names: tuple[str, ...] = ()) -> list[str]:
    if not isinstance(command, click.Group):
        return [" ".join(names)]
    context = click.Context(command)
    found = []
    for name in command.list_commands(context):
        part = command.get_command(context, name)
        assert part is not None
        found += verbs(part, (*names, name))
    return found


def test_each_verb_has_examples() -> None:
    assert sorted(EXAMPLES) == sorted(verbs())
    assert all(
        line.startswith(f"{verb} ") or line == verb
        for verb, lines in EXAMPLES.items()
        for line in lines
    )


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_each_example_can_be_typed(line: str) -> None:
    words = shlex.split(line, comments=True)
    for end in ("|", "<"):
        words = words[: words.index(end)] if end in words else words
    command, arguments = find(words)
    command.make_context("tieredstore", arguments)


def test_they_stand_in_the_help_and_in_the_manual(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tier", "expire", "--help"]) == 0
    shown = capsys.readouterr().out.partition("Examples:\n")[2]
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert [
        " ".join(words) for words in map(str.split, shown.replace("\\\n", "").splitlines())
    ] == [f"tieredstore {line}" for line in EXAMPLES["tier expire"]]
    assert run(["man"]) == 0
    assert "tieredstore tier skip orders" in capsys.readouterr().out.replace("\\-", "-")


def test_the_help_of_a_group_has_one_of_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "--help"]) == 0
    shown = capsys.readouterr().out.partition("Examples:\n")[2].split()
    assert shown.count("list") == 1
    assert shown.count("forget") == 1
