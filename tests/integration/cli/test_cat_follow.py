"""The tests run `cat --follow`, and `cat` of a local store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.local_stores import plain, running, small_config
from tests.kit.paths import ROOT
from tieredstore.clock import SYSTEM_CLOCK


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tieredstore", "cat", *map(str, arguments), "--follow"]
    return subprocess.Popen(
        [*command, "--every", "100ms", "--output", "ndjson"],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def take(process: subprocess.Popen[str], count: int) -> list[int]:
    """Return the offsets of the next messages. `cat` must print each message immediately, without
    waiting for a full buffer."""
    stdout: IO[str] | None = process.stdout
    assert stdout is not None
    rows: list[Any] = [json.loads(stdout.readline()) for _ in range(count)]
    return [row["queue_offset"] for row in rows]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_messages_of_a_tier_come_as_it_grows(tmp_path: Path, number: signal.Signals) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 3)
    with start("--tier", tier.url, "--topic", "orders", "--tail", 1) as process:
        assert take(process, 1) == [2]
        tier.append("orders", 0, 2)
        assert take(process, 2) == [3, 4]
        process.send_signal(number)
        rest, said = process.communicate()
        assert (process.returncode, rest, said) == (0, "", "")


def test_messages_of_a_store_come_as_it_is_written(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "store"), SYSTEM_CLOCK) as store:
        store.put_message(plain("orders", 0, 0))
        store.flush()
        with start("--store", tmp_path / "store", "--topic", "orders", "--limit", 3) as process:
            for number in range(1, 4):  # the last message is held back until another one follows
                store.put_message(plain("orders", 0, number))
                store.flush()
            assert take(process, 3) == [0, 1, 2]
            assert process.wait() == 0


def test_a_store_of_java_is_printed(public_a: Path, public_a_manifest: dict[str, Any]) -> None:
    wanted = [row for row in public_a_manifest["messages"] if row["topic"].startswith("pub_")]
    ran = tieredstore(
        *("cat", "--store", public_a / "store", "--topic", "pub_*", "--output", "ndjson")
    )
    assert ran.code == 0, ran.err
    assert len(ran.rows) == len(wanted)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--follow", "--reverse"], "--follow excludes"),
        (["--follow", "--until", "now"], "--follow excludes"),
        (["--follow", "--output", "json"], "ndjson is a line each"),
        (["--every", "1s"], "--every needs --follow"),
        (["--follow", "--every", "soon"], "--every: expected a time such as"),
        (["--store", "nowhere", "--reverse"], "needs --tail"),
        (["--store", "nowhere"], "nowhere: no message store"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 1)
    ran = tieredstore("cat", "--tier", tier.url, "--topic", "orders", *arguments)
    assert ran.code == 2
    assert problem in one_line(ran)
