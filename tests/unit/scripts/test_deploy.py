"""The unit and the container file of deploy/: what they run is there, and runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template

import click
import pytest

from tests.kit.paths import ROOT
from tieredstore.cli.logs.choice import LogFormat, find_choice
from tieredstore.cli.main import cli

DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "tieredstore-offload.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()
PROGRAM = "/opt/tieredstore/bin/tieredstore"


def joined(text: str) -> str:
    return text.replace("\\\n", " ")


def test_systemd_takes_the_unit_without_a_word(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    installed = Path(sys.executable).with_name("tieredstore")
    unit = tmp_path / "tieredstore-offload.service"
    unit.write_text(UNIT.replace(PROGRAM, str(installed)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def settings_of_unit() -> dict[str, str]:
    lines = (DEPLOY / "offload.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def words_of_unit() -> list[str]:
    [line] = re.findall(r"^ExecStart=(.*)$", joined(UNIT), re.MULTILINE)
    return [Template(word).substitute(settings_of_unit()) for word in shlex.split(line)]


def words_of_container() -> list[str]:
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", CONTAINER, re.MULTILINE)
    [command] = re.findall(r"^CMD (.*)$", CONTAINER, re.MULTILINE)
    return [*json.loads(entry), *json.loads(command)]


@pytest.mark.parametrize(
    ("words", "form"),
    [(words_of_unit(), LogFormat.TEXT), (words_of_container(), LogFormat.JSON)],
    ids=["unit", "container"],
)
def test_it_runs_a_command_that_there_is(
    words: list[str], form: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIEREDSTORE_TIER", "/tier")
    program, verb, *arguments = words
    assert (Path(program).name, verb) == ("tieredstore", "offload")
    offload = cli.get_command(click.Context(cli), verb)
    assert offload is not None
    context = offload.make_context(verb, list(arguments))
    given = context.params
    assert given["follow"]
    assert given["metrics_port"] == 9464
    assert str(given["health_file"]) == "/run/tieredstore/health.json"
    with context.scope():
        assert find_choice().format is form


def test_settings_of_the_unit_are_in_its_file() -> None:
    assert set(re.findall(r"\$\{(\w+)\}", UNIT)) == set(settings_of_unit())


def test_all_places_have_the_probe_of_the_docs() -> None:
    probe = (
        """[ -n "$(find FILE -mmin -1)" ] && grep -q '"status":"up"' FILE"""
    )  # fmt: skip
    assert probe in (ROOT / "docs" / "cli.md").read_text()
    there = probe.replace("FILE", "/run/tieredstore/health.json")
    assert there in CONTAINER
    assert there in (DEPLOY / "README.md").read_text()


def test_what_the_container_copies_is_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINER, re.MULTILINE)
    names = [name for line in copied for name in line.split()]
    assert len(names) > 5
    assert [name for name in names if not (ROOT / name).exists()] == []
