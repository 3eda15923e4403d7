"""The manual page matches the help texts."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from tieredstore.cli.help.manual import manual_page
from tieredstore.cli.main import VERBS, cli, run


@pytest.fixture(scope="module")
def page() -> str:
    return manual_page(click.Context(cli, info_name="tieredstore"))


def plain(page: str) -> str:
    return page.replace("\\-", "-").replace("\\(ga", "`").replace("\\&", "").replace("\\e", "\\")


def test_each_verb_and_option_is_in_it(page: str) -> None:
    text = plain(page)
    for verb in VERBS:
        assert f".SS {verb}\n" in text
    assert ".SS rebuild index\n" in text
    assert "\\fB--take-over\\fR\n" in text
    assert "\\fB--workers N\\fR\n" in text
    assert ".TP\n\\fB143\\fR\nStopped by SIGTERM.\n" in text
    assert text.count("--help\\fR\n") == text.count("\\fB--log-level") == 1


def test_each_line_is_text_or_a_request_that_there_is(page: str) -> None:
    known = {"TH", "SH", "SS", "PP", "TP", "B", "nf", "fi"}
    for line in page.splitlines():
        found = re.match(r"[.'](\w*)", line)
        assert found is None or found[1] in known, line
        assert "\b" not in line
        assert not re.search(r"\\[^-e&f(\[]", line), line


def test_the_verb_prints_it(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["man"]) == 0
    assert capsys.readouterr().out == page


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_groff_has_nothing_to_complain_of(page: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"],
        input=page,
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stderr == ""
