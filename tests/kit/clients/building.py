"""Builds the client programs of each language. Each function returns the program, or the reason why
it cannot be built.

    program = java_program("remoting")      # Apache's Java client 5.5.0, and mqadmin's classes
    program = java_program("remoting4")     # the same, 4.9.8
    program = java_program("remoting43")    # the same, 4.3.2
    program = java_program("grpc")          # rocketmq-client-java 5.2.0
    program = node_program() | go_program() | python_program()
    if isinstance(program, str): pytest.skip(program)   # or use the fixtures of `fixtures.py`
    with program.start("Producers") as client:
        client.call("start_producer", name="p", namesrv=namesrv, group="g")

The sources are in folders next to this module: `java/remoting/*.java` and so on (see FOLDERS),
`node/*.js`, `go/*.go`, `python/*.py`. A Java class that tests start has a `public static void
register(Talk talk)`, and is named in the arguments of `start`. Node and Python programs are started
by file name (`node_program("clients.js")`). Each language's own tool resolves the dependencies, at
the versions in `pom.xml`, `package.json` and `go.mod`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.kit.clients.cache import build_once
from tests.kit.clients.program import Program

HERE = Path(__file__).parent
RESOLVE_TIMEOUT_S = 600
FOLDERS = {
    "remoting": ("talk", "remoting", "consumers"),
    "remoting4": ("talk", "remoting4", "consumers"),
    "remoting43": ("talk", "remoting4"),
    "grpc": ("talk", "grpc"),
}
"""Source folders of each Java program. Its `pom.xml` is in the folder of the same name."""
JVM_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""JVM options. Programs run for seconds, so a quick start matters more than speed."""


class CannotBuild(Exception):
    """A program cannot be built. The message names the missing tool."""


@cache
def java_program(client: str) -> Program | str:
    """Return the program of a Java client (a key of FOLDERS), or the reason why it cannot be
    built."""
    return _or_reason(lambda: _java(client))


@cache
def node_program(script: str) -> Program | str:
    """Return the program `node/SCRIPT`, or the reason why it cannot be built."""
    return _or_reason(lambda: _node(script))


@cache
def go_program() -> Program | str:
    """Return the program in the folder `go/`, or the reason why it cannot be built."""
    return _or_reason(_go)


@cache
def python_program(script: str) -> Program | str:
    """Return the program `python/SCRIPT`, run by this interpreter, or the reason why it cannot be
    built."""
    if find_spec("rocketmq") is None:
        return "not installed: rocketmq-python-client"
    return Program((sys.executable, str(HERE / "python" / script)))


def _or_reason(build: Callable[[], Program]) -> Program | str:
    try:
        return build()
    except CannotBuild as reason:
        return str(reason)


def need_java() -> None:
    """Raise CannotBuild if Maven or a recent JDK is missing."""
    _need("java", "javac", "mvn")
    version = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', version.stderr)
    if found is None or int(found[1]) < 17:
        raise CannotBuild(f"Java 17 or newer is needed, found {version.stderr.splitlines()[:1]}")


def _java(client: str) -> Program:
    need_java()
    pom = HERE / "java" / client / "pom.xml"
    sources = [
        path for name in FOLDERS[client] for path in sorted((HERE / "java" / name).glob("*.java"))
    ]

    def resolve(folder: Path) -> None:
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        run_command(["mvn", "-q", "-B", "-f", str(pom), *copy])

    jars = build_once(f"java-{client}-jars", [pom], resolve)

    def compile_sources(folder: Path) -> None:
        options = ["-nowarn", "-Xlint:none", "-d", str(folder), "-cp", f"{jars}/*"]
        run_command(["javac", *options, *map(str, sources)])

    classes = build_once(f"java-{client}-classes", [pom, *sources], compile_sources)
    return Program(("java", *JVM_OPTIONS, "-cp", f"{classes}:{jars}/*", "Talk"))


def _node(script: str) -> Program:
    _need("node", "npm")
    package = [HERE / "node" / name for name in ("package.json", "package-lock.json")]

    def install(folder: Path) -> None:
        for path in package:
            shutil.copy(path, folder)
        run_command(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)

    modules = build_once("node-modules", package, install)
    node = ("node", str(HERE / "node" / script))
    return Program(node, {"NODE_PATH": str(modules / "node_modules")})


def _go() -> Program:
    _need("go")
    sources = [*(HERE / "go").glob("*.go"), *(HERE / "go").glob("go.*")]

    def build(folder: Path) -> None:
        run_command(["go", "build", "-o", str(folder / "client"), "."], HERE / "go")

    return Program((str(build_once("go-client", sources, build) / "client"),))


def _need(*tools: str) -> None:
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        raise CannotBuild(f"not installed: {', '.join(missing)}")


def run_command(command: Iterable[str], folder: Path | None = None) -> None:
    """Run a build command. Raises CannotBuild with the end of its output."""
    done = subprocess.run(
        [*command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=RESOLVE_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise CannotBuild(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()[-600:]}")
