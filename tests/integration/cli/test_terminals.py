"""Verbs print to terminals of 80 and of 120 columns, and to a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.terminals import run_in_terminal
from tests.kit.tier_builder import BuiltTier, small_tier


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("terminals"))


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [("ls",), ("cat", "--topic", "orders"), ("cat", "--topic", "*"), ("stat", "--topic", "orders")],
)
def test_no_line_is_longer_than_the_terminal(
    tier: BuiltTier, columns: int, arguments: tuple[str, ...]
) -> None:
    verb, *others = arguments
    shown = run_in_terminal(
        verb, "--tier", tier.url, *others, columns=columns, environment={"NO_COLOR": "1"}
    )
    lines = shown.splitlines()
    assert len(lines) > 3
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in shown


def test_heads_have_a_colour_in_a_terminal_alone(tier: BuiltTier) -> None:
    shown = run_in_terminal("ls", "--tier", tier.url, columns=120)
    assert shown.startswith("\x1b[1mbroker")
    assert "2.8 kB" in shown
    assert "2023-11-14 22:13:20" in shown
    dumb = run_in_terminal("ls", "--tier", tier.url, columns=120, environment={"TERM": "dumb"})
    assert dumb.startswith("broker")
    piped = tieredstore("ls", "--tier", tier.url).out
    assert piped.startswith("broker")
    assert "2023-11-14T22:13:20.000Z" in piped
    assert " 2799 " in piped


def test_wide_tables_are_the_same_everywhere(tier: BuiltTier) -> None:
    arguments = ("cat", "--tier", tier.url, "--topic", "orders", "--wide")
    assert run_in_terminal(*arguments, columns=80) == tieredstore(*arguments).out


def test_the_page_shows_what_a_terminal_shows(tier: BuiltTier) -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    shown = run_in_terminal(
        *("cat", "--tier", tier.url, "--topic", "orders", "--limit", "2"),
        columns=80,
        environment={"NO_COLOR": "1"},
    )
    assert "".join(f"    {line}\n" for line in shown.splitlines()) in page
