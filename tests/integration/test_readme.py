"""The commands of the README run unchanged, and the page stays within its length limit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.kit.paths import ROOT
from tests.kit.tutorial import run_page
from tieredstore.cli.main import cli

README = (ROOT / "README.md").read_text()
MOST_WORDS = 900


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(tmp_path / "state-home")}
    assert run_page(README, tmp_path, env) == 3


def test_the_store_example_runs_again_in_the_same_folder(tmp_path: Path) -> None:
    [example] = re.findall(r"^```python\n(store_keys.*?)^```", README, re.DOTALL | re.MULTILINE)
    command = [sys.executable, "-c", f"import tieredstore\n{example}"]
    for number in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout == f"{number} b'one coffee' ['order-7']\n", done.stderr


@pytest.mark.parametrize(
    "line", re.findall(r"^(?:scripts/)?tieredstore ([^|>\n]+)", README, re.MULTILINE)
)
def test_every_command_parses(line: str) -> None:
    command: click.Command = cli
    context = click.Context(cli, info_name="tieredstore")
    words = shlex.split(line, comments=True)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    command.make_context("verb", words, parent=context)


def test_the_page_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_the_first_example_is_five_commands_and_their_output() -> None:
    [example] = re.findall(r"^```sh\n(.*?)^```\n\n```text\n", README, re.DOTALL | re.MULTILINE)
    assert example.count("\n") == 5
    assert README.index(example) < README.index("| I have | go to |")


def test_every_page_that_the_readme_links_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.parametrize("script", sorted({*re.findall(r"scripts/[a-z]+", README)}))
def test_every_script_that_the_readme_names_is_there(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
