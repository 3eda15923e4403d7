"""Tests of records with several messages in ordinary topics, which RocketMQ 4 accepted from any
client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.local_stores import START_MS
from tieredstore.message.encoding import OwnMessage, encode_record
from tieredstore.message.hosts import encode_host
from tieredstore.message.sysflag import INNER_BATCH

HOST = encode_host("10.0.0.9", 40_000)
JOINT = b"INNER_NUM\x012\x02INNER_BASE\x013\x02"


@pytest.mark.parametrize("table", [{"T": {"topicName": "T"}}, {}, None])
def test_j98_a_record_of_several_messages_hides_no_ordinary_topic(
    tmp_path: Path, table: dict[str, object] | None
) -> None:
    root, log = tmp_path / "store", b""
    (root / "commitlog").mkdir(parents=True)
    (root / "config").mkdir()
    if table is not None:
        text = json.dumps({"topicConfigTable": table, "dataVersion": {"counter": 1}})
        (root / "config" / "topics.json").write_text(text)
    for number in range(6):
        flag, more = (INNER_BATCH, JOINT) if number == 3 else (0, b"")
        properties = b"UNIQ_KEY\x01u%d\x02" % number + more
        message = OwnMessage("T", b"b", 0, properties, 0, flag, START_MS, HOST)
        log += bytes(encode_record(message, number, len(log), START_MS, store_host=HOST))
    (root / "commitlog" / f"{0:020d}").write_bytes(log.ljust(1 << 20, b"\0"))
    where = ("--tier", tmp_path / "tier", "--broker", "b", "--cluster", "c")
    done = tieredstore(
        "offload", root, *where, "--state", tmp_path / "state", "--quiet", "--output", "json"
    )
    assert done.code == 1, done.err
    assert done.record["messages"] >= 3
    [named] = done.record["unread"]
    assert "records of several messages in T" in named
