"""The tests run `tieredstore dev` as a developer does."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import orjson
import pytest

from tests.kit.paths import ROOT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_dev_says_where_it_listens_and_ends_on_a_signal(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tieredstore", "dev", "--port", "0", "--log-format", "json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        addresses = orjson.loads(process.stdout.readline())
        with urllib.request.urlopen(f"http://{addresses['metrics']}/health", timeout=30) as found:
            assert orjson.loads(found.read())["status"] == "up"
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, log
    lines = [orjson.loads(line) for line in log.splitlines()]
    assert lines[-1]["message"].startswith("stopped in")
    assert {"time", "level", "logger", "message"} <= {*lines[0]}
    assert list(tmp_path.iterdir()) == []
