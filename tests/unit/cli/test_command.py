"""Tests of the command's imports and documentation."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import click
import pytest

from tests.kit.paths import ROOT
from tieredstore.cli.exits import ExitCode, describe_error, end_of_run, exit_code_of
from tieredstore.cli.main import VERBS, cli, run
from tieredstore.errors import Busy, Corrupt, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.scan.rows import COLUMNS

PAGE = (ROOT / "docs" / "cli.md").read_text()
HEAVY = {"numpy", "rich", "asyncio", "msgspec", "zstandard", "lz4", "javaproperties", "logging"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["offload", "--help"]])
def test_start_up_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys; from tieredstore.cli.main import run; "
        f"code = run({arguments!r}); sys.stdout.flush(); "
        "print(code, *sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    code, *modules = done.stderr.split()
    assert code == "0"
    assert HEAVY.isdisjoint(modules)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Corrupt("x"), ExitCode.DAMAGE),
        (Invalid("x"), ExitCode.INVALID),
        (Unavailable("x"), ExitCode.UNAVAILABLE),
        (Fenced("x"), ExitCode.FENCED),
        (Busy("x"), ExitCode.BUSY),
        (TieredStoreError("x"), ExitCode.INTERNAL),
        (ValueError("x"), ExitCode.INTERNAL),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (OSError(5, "Input/output error", "/f"), ExitCode.UNAVAILABLE),
    ],
)
def test_every_error_has_its_code_and_one_line(error: BaseException, code: ExitCode) -> None:
    assert exit_code_of(error) is code
    assert "\n" not in describe_error(error)


@pytest.mark.parametrize(
    ("received", "code"),
    [
        ([signal.SIGINT], ExitCode.INTERRUPTED),
        ([signal.SIGTERM], ExitCode.TERMINATED),
        ([signal.SIGTERM, signal.SIGINT], ExitCode.TERMINATED),
        ([signal.SIGHUP], ExitCode.HUNG_UP),
        ([], ExitCode.INTERRUPTED),  # by a stop of its own
    ],
)
def test_a_run_that_was_stopped_has_the_code_of_the_first_signal(
    received: list[int], code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_of_run(stopped=True, received=received, failures=[]) is code
    assert capsys.readouterr().err == "tieredstore: stopped: run it again to continue\n"
    assert end_of_run(stopped=False, received=received, failures=[]) is ExitCode.OK


def test_the_sections_of_the_page_are_commands() -> None:
    """Each section of the generated command reference is named after an existing command."""
    context = click.Context(cli)
    names = set(VERBS)
    for verb in VERBS:
        command = cli.get_command(context, verb)
        if isinstance(command, click.Group):
            names |= {f"{verb} {name}" for name in command.list_commands(context)}
    sections = re.findall(r"^###? ([a-z]+(?: [a-z]+)?)$", PAGE, re.MULTILINE)
    assert len(sections) > 30
    assert [name for name in sections if name not in names] == []


def test_every_exit_code_is_documented() -> None:
    for code in ExitCode:
        assert re.search(rf"^\| {int(code)} \|", PAGE, re.MULTILINE), code


def test_the_help_has_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    codes = capsys.readouterr().out.partition("Exit codes:\n")[2]
    assert [int(line.split()[0]) for line in codes.splitlines()] == [*map(int, ExitCode)]


def test_every_field_of_a_message_is_documented() -> None:
    for column in COLUMNS:
        assert re.search(rf"^\| `{column}` \|", PAGE, re.MULTILINE), column


def test_every_kind_of_finding_is_documented() -> None:
    scan = ROOT / "tieredstore" / "scan"
    source = "".join(path.read_text() for path in scan.rglob("*.py"))
    source += (scan.parent / "cli" / "verbs" / "checking.py").read_text()
    kinds = set(
        re.findall(
            r'"((?:segment|record|unit|units|index|metadata|bytes|queue|store-time|path)-[a-z-]+)"',
            source,
        )
    )
    kinds |= {"record-queue-offset", "record-queue-id", "record-physical-offset"}
    kinds.discard("record-")
    assert len(kinds) > 20
    for kind in kinds:
        assert re.search(rf"^\| [^|]*`{kind}`[^|]* \|", PAGE, re.MULTILINE), kind


def test_a_usage_error_is_one_sentence_with_where_to_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["copy", "--from", "file:///a", "--to", "file:///b"]) == 2
    expected = "tieredstore: error: Missing option '--to-state'; see `tieredstore copy --help`\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["expor"], "No such command 'expor'; did you mean 'export'?;"),
        (["verfy"], "No such command 'verfy'; did you mean 'verify'?;"),
        (["co"], "No such command 'co'; did you mean 'copy' or 'config' or 'compact'?;"),
        (["xyz"], "No such command 'xyz'; see `tieredstore --help`"),
        (["store", "chek"], "'chek'; did you mean 'check'?; see `tieredstore store --help`"),
        (["help", "cta"], "No such command 'cta'; did you mean 'cat'"),
        (
            ["cat", "--topc", "x"],
            "No such option '--topc'; did you mean '--topic' or '--topics'?; see",
        ),
        (["export", "--quee", "1"], "; did you mean '--queue' or"),
        (["export", "--par", "1"], "; did you mean '--partition-by'?; see"),
        (["cat", "-z"], "No such option '-z'; see `tieredstore cat --help`"),
    ],
)
def test_what_was_meant_is_told_the_likeliest_first(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert hint in capsys.readouterr().err


def test_version_and_help_have_their_usual_other_names(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for arguments in (["--version"], ["-V"], ["ls", "--help"], ["help", "ls"], ["help"], ["-h"]):
        assert run(arguments) == 0
        shown.append(capsys.readouterr().out)
    assert shown[::2] == shown[1::2]
    assert len(set(shown)) == 3
    assert run(["help", "lss"]) == 2


@pytest.mark.parametrize("arguments", [[], ["rebuild"], ["compact"], ["store"]])
def test_without_a_verb_the_help_is_shown_as_it_is(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    shown, errors = capsys.readouterr()
    assert errors == ""
    assert shown.startswith("Usage: tieredstore")
    assert "\nCommands:\n" in shown
