"""A put completes with the flush that covers its message, unless it does not wait for a flush."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, running, small_config
from tieredstore.contracts.durability import FlushFuture
from tieredstore.contracts.message_store import DURABLE
from tieredstore.local.put.rows import waits_for_nothing


def test_async_flush_promises_nothing_that_is_not_there(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        assert store.put_message(plain()).durable is DURABLE
        assert store.put_messages([plain(), plain()]).durable is DURABLE
        assert store.put_message(plain(sys_flag=0x8)).durable is DURABLE
        result = asyncio.run(store.put_message_async(plain()))
        assert (result.ok, result.queue_offset) == (True, 4)
        assert asyncio.run(store.put_messages_async([plain()])).queue_offset == 5


def test_every_kind_of_put_carries_the_round_of_its_time(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        store.put_message(plain())
        first, second = FlushFuture(), FlushFuture()
        appender = store._appender
        assert appender.seal(first) == (DURABLE, store.commit_log.max_offset)
        results = [
            store.put_message(plain()),
            store.put_message(plain(topic="new")),
            store.put_message(plain(sys_flag=0x8)),
            store.put_messages([plain(), plain()]),
        ]
        assert [result.durable for result in results] == [first] * 4
        assert appender.seal(second) == (first, store.commit_log.max_offset)
        assert store.put_message(plain()).durable is second


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"", False),
        (b"WAIT\x01true\x02", False),
        (b"WAIT\x01TRUE\x02", False),
        (b"WAIT\x01false\x02", True),
        (b"KEYS\x01k\x02WAIT\x01no\x02", True),
        (b"AWAIT\x01false\x02", False),
    ],
)
def test_wait_is_read_as_java_reads_it(tmp_path: Path, properties: bytes, expected: bool) -> None:
    assert waits_for_nothing(properties) is expected
    with running(small_config(tmp_path / "s")) as store:
        store.put_message(plain())
        future = FlushFuture()
        store._appender.seal(future)
        message, other = plain(sys_flag=1), plain()
        message.properties = properties
        durable = DURABLE if expected else future
        assert store.put_message(message).durable is durable
        assert store.put_messages([message, message]).durable is durable
        assert store.put_messages([message, other]).durable is future
        message.sys_flag = 0x8
        assert store.put_message(message).durable is durable
