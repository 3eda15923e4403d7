"""Runs the published Java broker on stores that this project wrote.

The Java programs are in `tests/interop/java`. check.sh compares every message and key query of a
manifest. Append takes over a store, appends and uploads. Hold runs a broker while a test inspects
its store.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.kit import command_line
from tests.kit.paths import JAVA

RESOLVE_TIMEOUT_S = 600
CHECK_TIMEOUT_S = 240
SERVER_TIMEOUT_S = 1800
"""Maximum lifetime in seconds of a server that serves all tests of a module."""
PORT_OFFSETS = (0, 3, 5, 6)
"""Offsets from a broker's base port: the name server, then the broker's fast, main and replication
listeners."""
EVERY_KEY = "-DkeySample=1000000000"
QUICK = (
    "-XX:TieredStopAtLevel=1",
    "-XX:-UseG1GC",
    "-XX:+UseSerialGC",
    "-Dtls.server.mode=disabled",
)
"""JVM options. A test's broker lives for seconds, so a quick start matters more than speed. TLS is
off, because with TLS the name server and the broker each make an RSA key at their start."""
OWN_KEYS = ("storePathRootDir", "storePathCommitLog", "tieredStoreFilePath")
MAX_RACES = 3
"""A check that misses at most this number of keys is repeated."""
RESULT = re.compile(r"^RESULT (PASS|FAIL) want=(\d+) ok=(\d+) keyQueries=(\d+)/(\d+)", re.MULTILINE)

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """Findings of the Java broker. `wanted` messages were expected, and `right` of them were read
    correctly. Of `key_queries` queries by key, `key_queries_right` found their message."""

    passed: bool
    wanted: int
    right: int
    key_queries: int
    key_queries_right: int
    errors: tuple[str, ...]
    text: str


class HeldBroker:
    """A running Java broker, created by `JavaTools.hold`. `namesrv` is the address for clients."""

    def __init__(self, process: subprocess.Popen[str], namesrv: str) -> None:
        self._process = process
        self.namesrv = namesrv

    def put(self, topic: str, queue_id: int, count: int) -> None:
        """Append messages to a queue, and wait until consumers can receive them."""
        self._ask(f"put {topic} {queue_id} {count}")

    def stop(self) -> None:
        """Stop the broker cleanly."""
        self._ask("exit")

    def _ask(self, request: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{request}\n"


class JavaTools:
    """A JVM with the broker's jars and our classes. Created by `resolve`."""

    def __init__(self, classpath: str, flags: list[str]) -> None:
        self._classpath = classpath
        self._flags = flags

    def command(self, main: str, folder: Path) -> list[str]:
        """Return the command that runs a RocketMQ class with its logs in `folder`."""
        where = [f"-Duser.home={folder / 'home'}", f"-Drocketmq.home.dir={folder}"]
        return ["java", *self._flags, *where, "-cp", self._classpath, main]

    @classmethod
    def resolve(cls) -> JavaTools | str:
        """Return the tools, or the reason why they are missing."""
        missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
        if missing:
            return f"not installed: {', '.join(missing)}"
        version = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
        found = re.search(r'version "(\d+)', version.stderr)
        if found is None or int(found[1]) < 17:
            return f"Java 17 or newer is needed, found {version.stderr.splitlines()[:1]}"
        script = '. ./env.sh && printf "%s\\n%s" "$CP" "$JFLAGS"'
        try:
            done = _run(["bash", "-c", script], cwd=JAVA, timeout_s=RESOLVE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"the broker's jars were not resolved within {RESOLVE_TIMEOUT_S} s"
        if done.returncode:
            return f"the broker's jars cannot be resolved: {done.stdout.strip()[-400:]}"
        classpath, _, flags = done.stdout[done.stdout.index("/") :].partition("\n")
        return cls(classpath, flags.split())

    def run_class(self, name: str, text: str) -> str:
        """Run one of our Java classes, which reads all its input before it answers."""
        done = subprocess.run(
            ["java", "-Xmx256m", *QUICK, "-cp", self._classpath, name],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=CHECK_TIMEOUT_S,
        )
        return done.stdout

    def check(self, mode: str, root: Path, manifest: Manifest, work: Path) -> Report:
        """Run check.sh on a copy of `root`. `mode`: `tiered` or `local`. A check of a tier that
        missed only a few keys is repeated, because concurrent Java reads of a segment share a file
        position (`PosixFileSegment.read0`) and may return other bytes."""
        report = self._check_once(mode, root, manifest, work)
        misses = report.key_queries - report.key_queries_right
        if mode == "tiered" and report.right == report.wanted and 0 < misses <= MAX_RACES:
            report = self._check_once(mode, root, manifest, work / "again")
        return report

    def _check_once(self, mode: str, root: Path, manifest: Manifest, work: Path) -> Report:
        work.mkdir(parents=True)
        wanted = work / "manifest.json"
        wanted.write_text(json.dumps(manifest))
        done = self._on_free_ports(
            lambda port: (
                [str(JAVA / "check.sh"), "--mode", mode, str(root), str(wanted)],
                {"PORT": str(port), "OUT": str(work / "out")},
            )
        )
        found = RESULT.search(done.stdout)
        assert found, f"the check ended without a result:\n{done.stdout[-4000:]}"
        report = json.loads((work / "out" / f"report-{mode}.json").read_bytes())
        assert report["PASS"] == (found[1] == "PASS") == (done.returncode == 0), done.stdout
        shutil.rmtree(work / "out" / mode)
        return Report(
            report["PASS"],
            report["wantMessages"],
            report["okMessages"],
            report["keyQueries"],
            report["keyQueriesOk"],
            tuple(report["errorSamples"]),
            done.stdout,
        )

    def append(
        self, root: Path, manifest: Manifest, queues: Iterable[tuple[str, int]], count: int
    ) -> dict[str, Any]:
        """Let the Java broker take over `root` in place, append `count` messages to each queue,
        upload all and stop. Return its report: `messages`, `atStart`, `afterAppend`."""
        wanted, out = root / "append-manifest.json", root / "append-out.json"
        wanted.write_text(json.dumps({"brokerConf": manifest["brokerConf"]}))
        names = [f"{topic}:{queue_id}" for topic, queue_id in queues]
        java = ["java", *self._flags, *QUICK, f"-Duser.home={root / 'home'}"]
        java += ["-cp", self._classpath]
        done = self._on_free_ports(
            lambda port: (
                _append(java, root, wanted, out, port, count, names),
                {},
            )
        )
        assert done.returncode == 0, done.stdout[-4000:]
        seen: dict[str, Any] = json.loads(out.read_bytes())
        return seen

    @contextmanager
    def hold(self, store: Path, *settings: str) -> Iterator[HeldBroker]:
        """Run a Java broker on `store` until `stop`, at most to the end of the block. `settings`
        are configuration lines `key=value`."""
        log = store.parent / "java.log"
        java = ["java", *self._flags, *QUICK, f"-Duser.home={store.parent / 'home'}"]
        for _ in range(3):
            port = free_ports()
            where = (str(store), str(port), str(port + 5))
            command = [*java, "-cp", self._classpath, "Hold", *where, *settings]
            with log.open("w") as errors, running_process(command, errors) as process:
                assert process.stdout is not None
                if process.stdout.readline() == "ready\n":
                    yield HeldBroker(process, f"127.0.0.1:{port}")
                    return
            # as in `_on_free_ports`
            assert "Address already in use" in log.read_text(), log.read_text()[-4000:]
        raise AssertionError("no free ports for a broker")

    @contextmanager
    def name_server(self, folder: Path) -> Iterator[str]:
        """Run a Java name server on a free port within the block. Yield `ip:port`."""
        port = free_ports()
        config, log = folder / "namesrv.conf", folder / "namesrv.log"
        config.write_text(f"listenPort={port}\nrocketmqHome={folder}\n")
        java = [
            "java",
            "-Xmx256m",
            *QUICK,
            f"-Duser.home={folder / 'home'}",
            "-cp",
            self._classpath,
        ]
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        with (
            log.open("w") as errors,
            running_process([*java, main, "-c", str(config)], errors, SERVER_TIMEOUT_S) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if "boot success" in line:
                    yield f"127.0.0.1:{port}"
                    return
        raise AssertionError(f"the name server ended:\n{log.read_text()[-4000:]}")

    @contextmanager
    def proxy(self, folder: Path, namesrv: str, cluster: str) -> Iterator[str]:
        """Run a Java proxy in cluster mode within the block. Yield `ip:port` of its gRPC server.
        Long polls end after 3 s, so that push consumers close quickly. Producers are registered
        every second, because the tests' brokers check transactions every second."""
        port = free_ports()
        config, log = folder / "proxy.json", folder / "proxy.log"
        settings = {
            "rocketMQClusterName": cluster,
            "namesrvAddr": namesrv,
            "grpcServerPort": port,
            "remotingListenPort": port + 3,
            "grpcClientConsumerMinLongPollingTimeoutMillis": 0,
            "grpcClientConsumerMaxLongPollingTimeoutMillis": 3000,
            "transactionHeartbeatPeriodSecond": 1,
        }
        config.write_text(json.dumps(settings))
        main = "org.apache.rocketmq.proxy.ProxyStartup"
        java = ["java", *self._flags, *QUICK, "-Dtls.server.mode=permissive"]
        java += [f"-Duser.home={folder / 'home'}"]
        command = [*java, "-cp", self._classpath, main, "-pm", "cluster", "-pc", str(config)]
        with (
            log.open("w") as errors,
            running_process(command, errors, SERVER_TIMEOUT_S) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if "startup successfully" in line:
                    yield f"127.0.0.1:{port}"
                    return
        raise AssertionError(f"the proxy ended:\n{log.read_text()[-4000:]}")

    def _on_free_ports(self, command: Any) -> subprocess.CompletedProcess[str]:
        for attempt in range(3):
            arguments, extra = command(free_ports())
            environment = {
                "TIMEOUT": str(CHECK_TIMEOUT_S),
                "JEXTRA": " ".join([EVERY_KEY, *QUICK]),
                **extra,
            }
            done = _run(arguments, timeout_s=CHECK_TIMEOUT_S + 30, environment=environment)
            # Another process may have taken a port before Java binds it
            if attempt == 2 or "Address already in use" not in done.stdout:
                return done
        raise AssertionError("unreachable")


def _append(
    java: list[str], root: Path, wanted: Path, out: Path, port: int, count: int, names: list[str]
) -> list[str]:
    ports = (str(port), str(port + 5))
    return [*java, "Append", str(root), str(wanted), *ports, str(count), str(out), *names]


def _run(
    command: list[str],
    *,
    timeout_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process group, which is always stopped at the end."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output)


@contextmanager
def running_process(
    command: list[str],
    errors: int | IO[str] = subprocess.PIPE,
    longest_s: float = CHECK_TIMEOUT_S,
) -> Iterator[subprocess.Popen[str]]:
    """Run a process group whose input and output the test uses. It is killed at the end of the
    block, or after `longest_s`."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=errors, text=True, start_new_session=True
    ) as process:

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(longest_s, kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            kill()


def free_ports() -> int:
    """Return a port P such that P plus each of PORT_OFFSETS is a free loopback port."""
    for _ in range(100):
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            with suppress(OSError, OverflowError):
                for offset in PORT_OFFSETS[1:]:
                    other = stack.enter_context(socket.socket())
                    other.bind(("127.0.0.1", port + offset))
                return port
    raise AssertionError("no free ports on 127.0.0.1")


def copy_tree(source: Path, target: Path) -> None:
    """Make a writable copy of a folder. Sparse files stay sparse."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-R", "--sparse=always", str(source), str(target)], check=True)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def write_broker_conf(path: Path, manifest: Manifest, **extra: str) -> Path:
    """Write the fixture's broker configuration without the paths of stores and tiers."""
    values = {**manifest["brokerConf"], **extra}
    path.write_text("".join(f"{k}={v}\n" for k, v in values.items() if k not in OWN_KEYS))
    return path


def tieredstore(*arguments: str | Path) -> str:
    """Run the command line in this process and return its standard output."""
    ran = command_line.tieredstore(*arguments)
    assert ran.code == 0, f"{arguments}: {ran.err}"
    return ran.out


def key_queries(messages: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of key queries in the Java check. It queries each message by its UNIQ_KEY
    and its first key, except in system topics and `%…` topics."""
    hidden = ("RMQ_SYS", "rmq_sys", "SCHEDULE", "%")
    return sum(
        (message["uniqKey"] is not None) + (message["keys"] is not None)
        for message in messages
        if not message["topic"].startswith(hidden)
    )
