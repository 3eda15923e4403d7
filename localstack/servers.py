"""Start, list and stop the object stores of the tests, on loopback addresses only.

Usage: servers.py up [NAME[:PORT]]... | install [NAME]... | down [NAME]... | status, each with
[--run-dir DIR]. Up with [--no-install].

Each running server has a file DIR/NAME.json (endpoint, process, log). By default DIR is `.run`
beside this file. `up` does not touch servers that run already. `down` stops exactly the servers
that `up` started.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from recipes import RECIPES, Launch, NotHere

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 2.0
ATTEMPTS_WITH_A_FREE_PORT = 3


@dataclass(frozen=True, slots=True)
class Server:
    """A started server. `started`: start time of its process, so that another process with a reused
    id is not mistaken for the server."""

    name: str
    endpoint: str
    pid: int
    started: str
    log: str


class Servers:
    """The servers of one run directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run directory's lock, so that only one `up` or `down` runs at a time."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def running(self) -> list[Server]:
        found = []
        for name in RECIPES:
            with suppress(FileNotFoundError):
                server = Server(**json.loads(self._state(name).read_bytes()))
                if _process_start(server.pid) == server.started:
                    found.append(server)
        return found

    def up(self, name: str, port: int | None, *, install: bool = True) -> Server:
        """Return the running server. Start it if necessary. Raises NotHere with the reason."""
        recipe = RECIPES[name]
        for server in self.running():
            if server.name == name and recipe.healthy(server.endpoint):
                if port and not server.endpoint.endswith(f":{port}"):
                    raise NotHere(f"{name} runs at {server.endpoint} already: stop it first")
                return server
        self.down(name)
        prepared = recipe.prepare(install)
        for attempt in range(1 if port else ATTEMPTS_WITH_A_FREE_PORT):
            try:
                return self._start(name, prepared, port or _free_port())
            except NotHere:
                # Another process may have taken the port between the check and the bind.
                if port or attempt == ATTEMPTS_WITH_A_FREE_PORT - 1:
                    raise
        raise AssertionError("unreachable")

    def down(self, name: str) -> None:
        """Stop a server that `up` started, and remove its data."""
        for server in self.running():
            if server.name == name:
                _stop(server)
        self._state(name).unlink(missing_ok=True)
        shutil.rmtree(self._directory / name, ignore_errors=True)

    def _start(self, name: str, prepared: Path, port: int) -> Server:
        folder = self._directory / name
        folder.mkdir(parents=True, exist_ok=True)
        launch = RECIPES[name].launch(prepared, port, folder)
        log = self._directory / f"{name}.log"
        process = _spawn(launch, folder, log)
        server = Server(
            name, f"http://127.0.0.1:{port}", process.pid, _process_start(process.pid), str(log)
        )
        self._state(name).write_text(json.dumps(asdict(server), indent=2))
        deadline = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            if RECIPES[name].healthy(server.endpoint):
                try:
                    RECIPES[name].fill(server.endpoint)
                except NotHere:
                    self.down(name)
                    raise
                return server
            time.sleep(0.05)
        reason = "is not healthy" if process.poll() is None else f"ended with {process.returncode}"
        self.down(name)
        raise NotHere(f"{name} {reason}. Its log ends with: {log.read_text()[-600:]}")

    def _state(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def _spawn(launch: Launch, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            list(launch.command),
            cwd=folder,
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # It outlives this command, and is stopped with its children.
        )


def _stop(server: Server) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
        while _process_start(server.pid) == server.started:
            if time.monotonic() > deadline:
                os.killpg(server.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(server.pid, os.WNOHANG)
            time.sleep(0.02)


def _process_start(pid: int) -> str:
    """Return the start time of a live process, as the system reports it, or "" if there is no such
    process."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        state, *fields = stat[stat.rindex(")") + 2 :].split()
        return "" if state in "ZX" else fields[18]
    done = subprocess.run(
        ["ps", "-o", "lstart=,stat=", "-p", str(pid)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    *began, state = done.stdout.split() or [""]
    return "" if state.startswith("Z") else " ".join(began)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wanted(argument: str) -> tuple[str, int | None]:
    name, _, port = argument.partition(":")
    if name not in RECIPES or not (port.isdigit() or port == ""):
        raise argparse.ArgumentTypeError(
            f"expected NAME or NAME:PORT with NAME one of {', '.join(RECIPES)}, found {argument!r}"
        )
    return name, int(port) if port else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "install", "down", "status"):
        of_verb = verbs.add_parser(verb)
        of_verb.add_argument(
            "--run-dir", type=Path, default=Path(__file__).resolve().parent / ".run"
        )
        if verb == "up":
            of_verb.add_argument("--no-install", action="store_true", help="only what is there")
        if verb != "status":
            of_verb.add_argument("names", nargs="*", type=_wanted)
    arguments = parser.parse_args()
    servers = Servers(arguments.run_dir.resolve())
    if arguments.verb == "status":
        for server in servers.running():
            print(server.name, server.endpoint)
        return 0
    failed = 0
    for name, port in arguments.names or [(name, None) for name in RECIPES]:
        with servers.locked():
            if arguments.verb == "down":
                servers.down(name)
                continue
            try:
                if arguments.verb == "install":
                    RECIPES[name].prepare(True)
                else:
                    server = servers.up(name, port, install=not arguments.no_install)
                    print(name, server.endpoint, flush=True)
            except NotHere as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
