"""Operators' tools built from source: rocketmq-exporter and rocketmq-dashboard.

`java/tools/sources.json` lists the repository and commit of each. On machines without access to the
repositories, `$CLIENTS_SOURCES` names a folder with clones (`$CLIENTS_SOURCES/rocketmq-exporter`).

    jar = tool_or_skip("rocketmq-exporter")
    with run_tool(jar, folder, port_option="server.port") as tool:
        tool.get("/metrics")
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clients.building import JVM_OPTIONS, CannotBuild, need_java, run_command
from tests.kit.clients.cache import build_once
from tests.kit.waiting import wait_for

SOURCES = Path(__file__).parent / "java" / "tools" / "sources.json"
WITHOUT_CHECKS = (
    "-Dmaven.test.skip=true",
    "-Drat.skip=true",
    "-Dcheckstyle.skip=true",
    "-Djacoco.skip=true",
    "-Dskip.installnodenpm",
    "-Dskip.npm",
)
"""Build options. They exclude the dashboard's pages, because tests use only its REST calls."""

_TOKEN = "any"


def tool_or_skip(name: str) -> Path:
    """Return the jar of a tool, or skip the test if it cannot be built."""
    built = _build_tool(name)
    if isinstance(built, str):
        pytest.skip(f"no {name}: {built}")
    return built


@cache
def _build_tool(name: str) -> Path | str:
    source = json.loads(SOURCES.read_bytes())[name]
    try:
        need_java()
        if shutil.which("git") is None:
            raise CannotBuild("not installed: git")
        folder = build_once(name, [SOURCES], lambda folder: _build(name, source, folder))
    except CannotBuild as reason:
        return str(reason)
    return folder / "tool.jar"


def _build(name: str, source: Mapping[str, str], folder: Path) -> None:
    clones = os.environ.get("CLIENTS_SOURCES")
    origin = str(Path(clones) / name) if clones else source["repository"]
    work = folder / "source"
    run_command(["git", "clone", "-q", "--no-checkout", origin, str(work)])
    run_command(["git", "checkout", "-q", source["commit"]], work)
    (work / "frontend-new" / "build").mkdir(parents=True, exist_ok=True)
    run_command(["mvn", "-q", "-B", *WITHOUT_CHECKS, "package"], work)
    jars = [jar for jar in (work / "target").glob(source["jar"]) if "sources" not in jar.name]
    if len(jars) != 1:
        raise CannotBuild(f"{name}: expected one jar {source['jar']}, found {jars}")
    shutil.move(jars[0], folder / "tool.jar")
    shutil.rmtree(work)


@dataclass(frozen=True, slots=True)
class Tool:
    """A running tool that serves HTTP on a local port."""

    port: int
    log: Path

    def get(self, path: str, **query: object) -> str:
        """Send a GET request and return the body. Raises OSError."""
        found = urllib.parse.urlencode({name: str(value) for name, value in query.items()})
        return self._ask(f"{path}?{found}" if found else path, None)

    def get_data(self, path: str, **query: object) -> Any:
        """Send a GET request and return the member `data` of the JSON answer. Raises AssertionError
        unless `status` is 0."""
        return _read_data(path, self.get(path, **query))

    def post_data(self, path: str, body: object) -> Any:
        """Post JSON and return the member `data` of the JSON answer."""
        return _read_data(path, self._ask(path, json.dumps(body).encode()))

    def _ask(self, path: str, body: bytes | None) -> str:
        headers = {"Content-Type": "application/json"}
        if body is not None:  # the dashboard wants the token of its cookie
            headers |= {"Cookie": f"XSRF-TOKEN={_TOKEN}", "X-XSRF-TOKEN": _TOKEN}
        address = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(address, body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
        return text


def _read_data(path: str, text: str) -> Any:
    answer = json.loads(text)
    assert answer["status"] == 0, (path, answer)
    return answer["data"]


@contextmanager
def run_tool(jar: Path, folder: Path, *arguments: str, port_option: str) -> Iterator[Tool]:
    """Run a jar for the duration of the block. Yield the tool once it answers requests.
    `port_option` is the option that sets its port."""
    port = _free_port()
    log = folder / f"{jar.parent.name}.log"
    command = ["java", *JVM_OPTIONS, f"-Duser.home={folder}", "-jar", str(jar)]
    command += [f"--{port_option}={port}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    tool = Tool(port, log)
    try:
        wait_for(lambda: _answers(tool, process))
        yield tool
    finally:
        process.kill()
        process.wait()


def _answers(tool: Tool, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, tool.log.read_text(errors="replace")[-4000:]
    try:
        tool.get("/")
    except urllib.error.HTTPError:
        return True  # it answers, with an error for this path
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
