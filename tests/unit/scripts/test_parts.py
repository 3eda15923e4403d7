"""Tests of running the parts of a long test run concurrently. The parts of CI contain every
test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.parts import Part, choose, parse_parts
from tests.kit.paths import ROOT

COMMAND = [sys.executable, str(ROOT / "scripts" / "parts.py"), "--at-once", "2"]
MINUTES = re.compile(r" +\d+\.\d min ")


def run(parts: str, *options: str) -> tuple[int, list[str], list[str]]:
    """Run parts. Return the exit code, the printed lines, and the summary without times."""
    done = subprocess.run(
        [*COMMAND, *options], input=parts, capture_output=True, text=True, check=False
    )
    assert not done.stderr
    shown, _, summary = done.stdout.rpartition("######## all")
    return done.returncode, shown.splitlines(), MINUTES.sub("", summary).splitlines()[1:]


def test_one_that_fails_stops_no_other_and_fails_the_run() -> None:
    code, shown, summary = run("first: echo one; exit 3\n\n# no part\nnext: echo a; echo '== b =='")
    assert code == 1
    assert "one" in shown
    assert "== b ==" in shown
    assert [line.split() for line in summary] == [
        ["first", "failed", "(3)", "one"],
        ["next", "passed", "b"],
    ]


def test_a_line_behind_what_pytest_counted_is_not_what_is_summed_up() -> None:
    _, _, summary = run("unit: echo '== 2 failed, 8 passed in 470.27s (0:07:50) =='; echo a log")
    assert summary[0].split(maxsplit=2)[2] == "2 failed, 8 passed in 470.27s (0:07:50)"


def test_those_that_are_named() -> None:
    chosen = parse_parts(["a: true", "b: true", "c: true"])
    assert [part.name for part in choose(chosen, ["c", "a"])] == ["a", "c"]
    with pytest.raises(SystemExit, match="expected one of a, b, c, found 'd'"):
        choose(chosen, ["d"])


def test_all_passed() -> None:
    assert run("only: true")[0] == 0


def test_a_failed_part_runs_again_alone_and_has_to_pass_then(tmp_path: Path) -> None:
    parts = (
        f'disturbed: echo try $PART $PART_AGAIN; test -n "$PART_AGAIN" -a -e {tmp_path}/other\n'
        f"other: touch {tmp_path}/other\n"
        "broken: exit 2"
    )
    code, shown, summary = run(parts, "--again")
    assert code == 1
    assert [line for line in shown if line.startswith("try")] == [
        "try disturbed",
        "try disturbed 1",
    ]
    assert [line.split()[:3] for line in summary] == [
        ["disturbed", "passed", "alone"],
        ["other", "passed"],
        ["broken", "failed", "(2)"],
    ]
    assert run("\n".join(parts.splitlines()[:2]), "--again")[0] == 0


@pytest.mark.parametrize(
    ("test", "is_good"),
    [
        ("def test_it(tmp):\n    assert tmp.exists() or tmp.touch()", True),
        ("import os\ndef test_it(tmp):\n    os._exit(3)", False),
    ],
    ids=["disturbed", "killed"],
)
def test_only_what_failed_runs_again(tmp_path: Path, test: str, is_good: bool) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pathlib, pytest\n"
        "@pytest.fixture\n"
        f"def tmp():\n    return pathlib.Path({str(tmp_path / 'once')!r})\n"
    )
    (tmp_path / "test_other.py").write_text(
        f"def test_good():\n    open({str(tmp_path / 'good')!r}, 'x')\n"
    )
    (tmp_path / "test_one.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow")
    name = f"again-{tmp_path.name}"
    try:
        code, shown, summary = run(
            f"{name}: scripts/test -c {tmp_path}/pytest.ini {tmp_path}", "--again"
        )
    finally:
        shutil.rmtree(ROOT / ".pytest_cache" / name, ignore_errors=True)
        shutil.rmtree(tmp_path / ".pytest_cache", ignore_errors=True)
    assert code == (0 if is_good else 1), shown
    assert ("passed alone" if is_good else "failed") in summary[0]


def test_what_each_printed_is_shown_in_one_piece() -> None:
    loop = "for i in 1 2 3; do echo {0}; sleep 0.1; done"
    _, shown, _ = run("\n".join(f"{name}: {loop.format(name)}" for name in "ab"))
    lines = [line for line in shown if line in {"a", "b"}]
    assert lines in (list("aaabbb"), list("bbbaaa"))


def test_as_many_at_once_as_was_asked(tmp_path: Path) -> None:
    """As many parts run concurrently as requested. The parts `reader` and `writer` wait for each
    other."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    code, _, _ = run(f"reader: cat {gate}\nwriter: echo x > {gate}\nlast: true")
    assert code == 0


def test_after_the_limit_what_hangs_is_ended_and_shown() -> None:
    parts = "good: echo one\nhangs: echo here; exec sleep 100\nnever: echo never"
    code, shown, summary = run(parts, "--at-once", "1", "--minutes", "0.02", "--again")
    assert code == 1
    assert "here" in shown
    assert "parts: ending hangs" in shown
    assert [line.split()[:2] for line in summary] == [
        ["good", "passed"],
        ["hangs", "stopped"],
        ["never", "stopped"],
    ]


def test_ended_it_interrupts_what_runs_and_shows_what_that_printed(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    parts = (
        f"runs: trap 'echo tidied; exit 1' INT; echo before; echo > {begun}; "
        "while true; do sleep 0.1; done\n"
        "other: sleep 100\n"
        "never: echo never"
    )
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(parts)
        process.stdin.close()
        begun.read_bytes()
        process.send_signal(signal.SIGTERM)
        text = process.stdout.read()
    assert process.returncode == 1
    assert "before\ntidied\n" in text
    results = [line.split()[:2] for line in text.splitlines()[-3:]]
    assert results == [["runs", "stopped"], ["other", "stopped"], ["never", "stopped"]]


@pytest.mark.parametrize("line", ["no command", ": true", "a:", "a: true\na: true"])
def test_what_is_no_part_is_refused(line: str) -> None:
    with pytest.raises(SystemExit, match="parts: "):
        parse_parts(line.splitlines())


def parts_of(script: str) -> list[Part]:
    text = (ROOT / script).read_text()
    return parse_parts(text.partition("<<'PARTS'\n")[2].partition("\nPARTS\n")[0].splitlines())


def covers(part: Part, test: str) -> bool:
    words = part.command.split()
    ignored = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    named = [word for word in words if word.startswith("tests/")] or ["tests"]
    under = [any(test.startswith(f"{folder}/") for folder in one) for one in (named, ignored)]
    return under == [True, False]


def test_each_test_is_in_one_part_of_ci() -> None:
    parts = [part for part in parts_of(".ci/run") if part.command.startswith("scripts/test ")]
    check_all_are_covered(parts)


def test_each_slow_test_is_in_one_part_of_a_night() -> None:
    parts = [part for part in parts_of("scripts/nightly") if "-m slow" in part.command]
    assert len(parts) == 3
    check_all_are_covered(parts)


def check_all_are_covered(parts: list[Part]) -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 400
    found = {file: [part.name for part in parts if covers(part, file)] for file in files}
    assert {file: names for file, names in found.items() if len(names) != 1} == {}
