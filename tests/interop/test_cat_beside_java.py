"""`tieredstore cat --store --follow` runs beside a Java broker that writes the store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.kit.java import JavaTools, running_process, tieredstore


def take(process: subprocess.Popen[str], count: int) -> list[tuple[int, int]]:
    assert process.stdout is not None
    rows = [json.loads(process.stdout.readline()) for _ in range(count)]
    return [(row["queue_id"], row["queue_offset"]) for row in rows]


def test_messages_of_java_come_as_far_as_its_checkpoint_and_the_rest_when_it_stops(
    java: JavaTools, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    cat = ("cat", "--store", str(store), "--topic", "live", "--output", "ndjson")
    command = [sys.executable, "-m", "tieredstore.cli.main", *cat]
    with java.hold(store) as broker:
        broker.put("live", 0, 3)
        # Java moves the checkpoint once a second after its start, then seldom: the topic may not
        # be there for readers yet.
        with running_process(
            [*command, "--follow", "--every", "100ms", "--limit", "5"]
        ) as follower:
            broker.put("live", 1, 2)
            broker.stop()
            found = take(follower, 5)
            assert follower.wait() == 0
    assert sorted(found) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert [key for key in found if key[0] == 0] == [(0, 0), (0, 1), (0, 2)]
    rows = [json.loads(line) for line in tieredstore(*cat, "--tail", "5").splitlines()]
    assert sorted((row["queue_id"], row["queue_offset"]) for row in rows) == sorted(found)
