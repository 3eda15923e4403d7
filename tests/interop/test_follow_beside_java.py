"""`tieredstore offload --follow` runs beside a Java broker that owns the store."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.kit.java import JavaTools, running_process, tieredstore

SELDOM = "flushConsumeQueueThoroughInterval=3600000"
"""Interval of Java's checkpoint, in ms. Java writes its checkpoint one second after its start, and
then once per interval. Java's default is a minute."""
NOTE = re.compile(
    r"offload: (?P<taken>\d+) messages, .* so far; (?P<behind>\d+) messages, \d+ s behind: "
    r"(?P<held>\d+) later than the store's checkpoint \((of no message yet|up to \S+Z), "
    r"which a Java broker moves about once a minute\)"
)


def wait_for(process: subprocess.Popen[str], pattern: re.Pattern[str]) -> re.Match[str]:
    """Return the next line of the progress output that matches a pattern."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        found = pattern.search(line)
        if found is not None:
            return found
    raise AssertionError("".join(seen))


def test_it_says_how_far_it_is_behind_and_why_and_takes_all_once_the_broker_stops(
    java: JavaTools, tmp_path: Path
) -> None:
    store, tier = tmp_path / "store", f"file://{tmp_path / 'tier'}"
    conf = tmp_path / "broker.conf"
    conf.write_text("tieredStoreGroupCommitTimeout=300\n")
    offload = [
        *(
            "offload",
            str(store),
            "--upload-index",
            "--topics",
            "live",
            "--tier",
            tier,
            "--config",
            str(conf),
        ),
        *("--state", str(tmp_path / "state"), "--broker", "b", "--cluster", "c"),
        *("--output", "json"),
    ]
    command = [sys.executable, "-m", "tieredstore.cli.main", *offload, "--follow"]
    with java.hold(store, SELDOM) as broker:
        broker.put("live", 0, 40)
        before = json.loads(tieredstore(*offload))["messages"]
        broker.put("live", 1, 60)
        with running_process(command) as follower:
            note = wait_for(follower, NOTE)
            assert int(note["behind"]) == int(note["held"]) >= 60
            assert before + int(note["taken"]) + int(note["behind"]) == 100
            broker.stop()
            wait_for(follower, re.compile(rf"offload: {100 - before} messages, .* so far$"))
            follower.send_signal(signal.SIGTERM)
            out, _ = follower.communicate()
    report = json.loads(out)
    assert (follower.returncode, report["messages"]) == (0, 100 - before)
    assert report["behind"] == {
        "messages": 0,
        "seconds": 0.0,
        "held_back_messages": 0,
        "checkpoint": None,
        "reason": "",
    }
    verified = json.loads(tieredstore("verify", "--tier", tier, "--output", "json"))
    assert (verified["messages"], verified["findings"]) == (100, [])
