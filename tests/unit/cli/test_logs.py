"""All layers log to standard error, at the level set on the command line."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator

import click
import pytest

from tieredstore.cli.lazy import VerbGroup
from tieredstore.cli.logs.choice import LogChoice, LogFormat, find_choice, log_options
from tieredstore.cli.logs.choice import say as say_beside
from tieredstore.cli.logs.lines import log_to_stderr
from tieredstore.cli.main import run

STAMP = r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
_log = logging.getLogger("tieredstore.some.layer")


@click.command("say")
@click.option("--follow", is_flag=True)
def say(follow: bool) -> None:
    """Log a line at each level."""
    del follow
    log_to_stderr()
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        _log.log(level, "level\n %d", level)
    logging.getLogger("another.library").error("not ours")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    logger = logging.getLogger("tieredstore")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def logged(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    group = VerbGroup(name="tieredstore", commands={"say": say}, params=log_options())
    group.main([*arguments], standalone_mode=False)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "levels"),
    [
        (["say"], [30, 40]),
        (["say", "-v"], [20, 30, 40]),
        (["-v", "say"], [20, 30, 40]),
        (["say", "-vv"], [10, 20, 30, 40]),
        (["-v", "say", "-v"], [10, 20, 30, 40]),
        (["-vvv", "say", "--verbose"], [10, 20, 30, 40]),
        (["say", "--log-level", "error"], [40]),
        (["--log-level", "DEBUG", "say"], [10, 20, 30, 40]),
        (["--log-level", "debug", "say", "--log-level", "error"], [40]),
        (["say", "-v", "--log-level", "warning"], [30, 40]),
        (["say", "--follow"], [30, 40]),
    ],
)
def test_as_much_is_logged_as_is_asked_for(
    arguments: list[str], levels: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = logged(capsys, *arguments)
    assert [int(line.rpartition("level ")[2]) for line in lines] == levels
    assert all("\n" not in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "has_time"),
    [([], False), (["-v"], True), (["--log-level", "error"], True), (["--follow"], True)],
)
def test_lines_have_a_time_where_they_are_a_log(
    arguments: list[str], has_time: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, last = logged(capsys, "say", *arguments)
    time = STAMP if has_time else ""
    assert re.fullmatch(rf"{time}tieredstore: error: level 40", last)


def test_one_command_line_leaves_nothing_to_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(logged(capsys, "say", "-vv")) == 4
    assert len(logged(capsys, "say")) == 2
    assert not _log.isEnabledFor(logging.DEBUG)


def test_a_level_that_there_is_not_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.UsageError, match="'error', 'warning', 'info', 'debug'"):
        logged(capsys, "say", "--log-level", "loud")


def test_a_verb_with_a_default_of_its_own_counts_from_there() -> None:
    assert find_choice().find_level("info") == "info"
    choice = LogChoice()
    choice.more = 1
    with click.Context(say, obj=choice).scope():
        assert (find_choice().find_level(), find_choice().find_level("info")) == ("info", "debug")


@pytest.mark.parametrize(
    "arguments", [["--log-format", "json", "say"], ["say", "--log-format", "JSON"]]
)
def test_programs_read_lines_of_json(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (json.loads(line) for line in logged(capsys, *arguments))
    assert re.fullmatch(STAMP.strip(), first.pop("time"))
    said = {"level": "warning", "logger": "tieredstore.some.layer", "message": "level 30"}
    assert first == said
    assert second["level"] == "error"


def test_a_record_takes_its_fields_and_its_traceback_along(
    capsys: pytest.CaptureFixture[str],
) -> None:
    choice = LogChoice()
    choice.format = LogFormat.JSON
    with click.Context(say, obj=choice).scope():
        log_to_stderr()
        try:
            raise ValueError("odd \udcff")
        except ValueError as error:
            _log.exception("broke: %s", error, extra={"fields": {"topic": "orders"}})
        say_beside("nothing\nwas changed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["topic"]) == ("broke: odd \udcff", "orders")
    assert first["traceback"].startswith("Traceback")
    assert (second["level"], second["message"]) == ("info", "nothing was changed")


@pytest.mark.parametrize(
    "arguments", [["ls", "--tier", "/nowhere/at/all"], ["ls", "--tear", "x"], ["lss"]]
)
def test_the_error_that_ends_a_command_is_such_a_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--log-format", "json", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert said["level"] == "error"
    assert run(arguments) == 2
    assert capsys.readouterr().err == f"tieredstore: error: {said['message']}\n"
