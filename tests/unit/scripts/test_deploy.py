"""The programs run by the service unit and the container file in deploy/ exist and start."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from string import Template

import click
import pytest

from tests.kit.paths import ROOT
from tieredstore.cli.logs.choice import LogFormat, find_choice
from tieredstore.cli.main import cli
from tieredstore.cli.watching import write_health
from tieredstore.contracts.message_store import TierStatus
from tieredstore.jobs.offloading.watch import OffloadWatch

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


def test_the_probe_finds_a_daemon_well_once_it_works(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    [probe] = re.findall(r"HEALTHCHECK .*? CMD (.*)", joined(CONTAINER))
    script = probe.replace("/run/tieredstore/health.json", str(path))

    def is_well() -> bool:
        return subprocess.run(["sh", "-c", script], check=False).returncode == 0

    tier = TierStatus("file:///t", True, None, None, 0, 0, None, 0, 0, 0, 1, None, None)
    watch = OffloadWatch()
    assert not is_well()
    with write_health(path, watch):
        assert not is_well()
    watch.begin(20_000, tier)
    with write_health(path, watch):
        assert not is_well()
    watch.note_progress()
    with write_health(path, watch):
        assert is_well()
        os.utime(path, (0, 0))
        assert not is_well()


def test_what_the_container_copies_is_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINER, re.MULTILINE)
    names = [name for line in copied for name in line.split()]
    assert len(names) > 5
    assert [name for name in names if not (ROOT / name).exists()] == []


def instructions() -> list[tuple[str, str]]:
    """Return the name and the arguments of each instruction in the container file."""
    lines = [line for line in CONTAINER.splitlines() if not line.startswith("#")]
    words = joined("\n".join(lines)).splitlines()
    return [
        (name, rest.strip()) for name, _, rest in (word.partition(" ") for word in words if word)
    ]


def list_instructions(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def test_the_container_file_has_the_form_of_one() -> None:
    names = [name for name, _ in instructions()]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL",
             "HEALTHCHECK", "ENTRYPOINT", "CMD"}  # fmt: skip
    assert names[0] == "FROM"
    assert set(names) == known
    stages = [line.partition(" AS ")[2] for line in list_instructions("FROM")]
    for line in list_instructions("COPY"):
        taken = re.match(r"--from=(\S+) ", line)
        assert taken is None or taken[1] in stages
    for name in ("VOLUME", "ENTRYPOINT", "CMD"):
        assert all(isinstance(word, str) for word in json.loads(list_instructions(name)[0]))
    [probe] = [rest.partition("CMD ")[2] for rest in list_instructions("HEALTHCHECK")]
    for script in (*list_instructions("RUN"), probe):
        subprocess.run(["sh", "-n", "-c", script], check=True)
    [user] = list_instructions("USER")
    assert any(line.split("&&")[0].split()[-1] == user for line in list_instructions("RUN"))
    words = words_of_container()
    assert list_instructions("EXPOSE") == [words[words.index("--metrics-port") + 1]]


def test_all_extras_that_the_pages_install_are_there() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in (DEPLOY / "Containerfile", DEPLOY / "README.md", ROOT / "docs" / "beside-java.md"):
        named = re.findall(r"""pip install [^\n]*['"]\.\[([\w,-]+)\]""", path.read_text())
        assert named, path
        assert {name for names in named for name in names.split(",")} <= set(there)


def test_what_the_container_copies_makes_a_wheel_whose_command_runs(tmp_path: Path) -> None:
    source, venv = tmp_path / "src", tmp_path / "venv"
    built = shutil.ignore_patterns("*.so", "__pycache__")
    for line in list_instructions("COPY"):
        *names, target = line.split()
        for name in names if not line.startswith("--from") else ():
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, source / target, ignore=built)
            else:
                place = source / target / path.name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
    python = [sys.executable, "-m"]
    subprocess.run(
        [*python, "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
         tmp_path, source],
        check=True, env={**os.environ, "TIEREDSTORE_PURE": "1"},
    )  # fmt: skip
    [wheel] = tmp_path.glob("*.whl")
    subprocess.run([*python, "venv", "--without-pip", venv], check=True)
    there = venv / "bin" / "python"
    install: list[str | Path] = [
        "--python",
        there,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    subprocess.run([*python, "pip", *install], check=True)
    # Its dependencies are those of this environment.
    [packages] = venv.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    program, verb, *_ = words_of_container()
    done = subprocess.run(
        [venv / "bin" / program, verb, "--help"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert "--health-file" in done.stdout
    asked = "import tieredstore; print(tieredstore.__file__)"
    done = subprocess.run(
        [there, "-c", asked], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.startswith(str(packages))
