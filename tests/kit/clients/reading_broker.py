"""`tieredstore broker --read-only` as users run it, in a process that serves a tier."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import orjson

from tests.kit.paths import ROOT

SETTINGS = {
    "listenPort": "0",
    "grpcServerPort": "0",
    "metricsPromExporterPort": "0",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
}


@contextmanager
def reading_broker(
    tier: str, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[dict[str, str]]:
    """Yield the broker's addresses by protocol. Its state is in `folder/state`. `settings` are
    entries of its broker.conf."""
    folder.mkdir(exist_ok=True)
    conf = folder / "broker.conf"
    keys = SETTINGS | dict(settings or {})
    conf.write_text("".join(f"{name}={value}\n" for name, value in keys.items()))
    command = [sys.executable, "-m", "tieredstore", "broker", "--read-only", "--tier", tier]
    command += ["--state", str(folder / "state"), "-c", str(conf)]
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "broker.log").read_text()
        addresses: dict[str, str] = orjson.loads(line)
        yield addresses
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0, (folder / "broker.log").read_text()
    finally:
        process.kill()
        process.communicate()
