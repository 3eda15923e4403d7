"""`offload --recovered` copies the store of a killed process, and does not write to the store."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import files_of, one_line, tieredstore
from tests.kit.local_stores import copy_store, plain, put_all, running, small_config
from tests.kit.recovered import leave_unclean, read_everything
from tieredstore.local.read_only import open_read_only
from tieredstore.local.recovery.checkpoint import Checkpoint
from tieredstore.message.record import decode_record


def offload(store: Path, root: Path, *more: Any) -> Any:
    return tieredstore(
        *("offload", store, "--tier", f"file://{root / 'tier'}", "--state", root / "state"),
        *("--broker", "b", "--cluster", "c", "--output", "json", *more),
    )


def test_all_that_java_would_recover_of_a_killed_broker_is_copied(
    crash_c: Path, tmp_path: Path
) -> None:
    store = copy_store(crash_c / "before" / "store", tmp_path / "store")
    wanted = json.loads((crash_c / "after.json").read_bytes())["messages"]
    before = files_of(store)
    assert offload(store, tmp_path).record["messages"] == 0
    ran = offload(store, tmp_path, "--recovered", "--config", crash_c / "broker.conf")
    assert ran.code == 0, ran.err
    assert ran.record["messages"] == len(wanted)
    assert "the tier may be ahead of the log" in ran.err
    assert files_of(store) == before
    found: Counter[tuple[str, int, int, str]] = Counter()
    for topic in {row["topic"] for row in wanted}:
        tier = ("--tier", f"file://{tmp_path / 'tier'}", "--topic", topic)
        rows = tieredstore("cat", *tier, "--body", "sha256", "--output", "ndjson").rows
        found.update((topic, row["queue_id"], row["queue_offset"], row["body"]) for row in rows)
    assert found == Counter(
        (row["topic"], row["queueId"], row["queueOffset"], row["bodySHA256"]) for row in wanted
    )


@pytest.mark.parametrize("kept", [0, 37])
def test_what_a_reader_sees_is_what_a_recovery_leaves(tmp_path: Path, kept: int) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        results = put_all(store, [plain("TU"[i % 3 == 2], i % 2, i) for i in range(90)])
        assert store.delete_topics({"U"}) == 1
        put_all(store, [plain("U", 0, 900), plain("T", 1, 901)])
    position = results[kept].physical_offset if kept else 0
    leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=position))
    last = results[-1]
    before = files_of(root)
    reader = open_read_only(root, recovered=True)
    seen = {}
    for key in reader.list_queues():
        found = reader.find_queue(*key)
        assert found is not None
        messages: list[bytes] = []
        while (offset := found.min_offset + len(messages)) < found.max_offset:
            result = reader.get_message("g", key.topic, key.queue_id, offset, 32)
            messages += [bytes(message.raw) for message in result.messages]
        seen[key.topic, key.queue_id] = messages
    reader.shutdown()
    assert {name: file for name, file in files_of(root).items() if name != "s/lock"} == before
    with running(small_config(root)) as store:
        wanted = read_everything(store)
        own = {name: records for name, records in seen.items() if not name[0].startswith("rmq_")}
        assert {key: records for key, records in own.items() if records} == {
            key: records
            for key, records in wanted.items()
            if records and not key[0].startswith("rmq_")
        }
    assert decode_record(seen["T", 1][-1]).physical_offset > last.physical_offset


def test_a_store_in_use_is_refused_and_an_unclean_one_is_offered_it(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(number=i) for i in range(9)])
        ran = offload(root, tmp_path, "--recovered")
        assert ran.code == 5
        assert "in use by this process" in one_line(ran)
    leave_unclean(root, checkpoint=Checkpoint())
    ran = offload(root, tmp_path)
    assert "--recovered copies all that a recovery would keep" in ran.err
    assert ran.record["messages"] == 0
    both = offload(root, tmp_path, "--recovered", "--follow")
    assert (both.code, "exclude each other" in both.err) == (2, True)
    done = offload(root, tmp_path, "--recovered")
    assert (done.code, done.record["messages"]) == (0, 9)
    again = offload(root, tmp_path, "--recovered")
    assert (again.code, again.record["messages"]) == (0, 0)
    body = hashlib.sha256(b"body-8").hexdigest()
    tier = ("--tier", f"file://{tmp_path / 'tier'}", "--topic", "T", "--body", "sha256")
    assert tieredstore("cat", *tier, "--output", "ndjson").rows[-1]["body"] == body


def test_j50_what_lies_behind_a_damaged_message_is_named(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        results = put_all(store, [plain(number=i) for i in range(20)])
    leave_unclean(root, checkpoint=Checkpoint())
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[results[12].physical_offset + 90] ^= 1
    path.write_bytes(data)
    ran = offload(root, tmp_path, "--recovered")
    assert (ran.code, ran.record["messages"]) == (1, 12)
    assert "7 valid messages" in ran.err
    assert "7 valid messages" in ran.record["unread"][0]
