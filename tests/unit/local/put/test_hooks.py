"""A broker can add hooks before puts and a listener after them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import ArrivedMessages, PutMessageResult
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.put.general import refuse
from tieredstore.message.encoding import Message
from tieredstore.message.properties import find_text


def _refuse_flow(message: Message) -> PutMessageResult | None:
    if message.topic == "timer":
        return refuse(PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL, "too many timers")
    return None


def _delay(message: Message) -> Message | None:
    if message.topic == "delayed":
        return msgspec.structs.replace(message, topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
    return None


def _topics(store: DefaultMessageStore, names: Sequence[str], queue_id: int = 0) -> list[int]:
    return [store.get_max_offset_in_queue(name, queue_id) for name in names]


def test_a_store_without_hooks_puts_by_the_appenders_own_methods(tmp_path: Path) -> None:
    with running(small_config(tmp_path)) as store:
        assert store.put_message == store._appender.put
        assert store.put_messages == store._appender.put_batch


def test_hooks_end_a_put_or_replace_its_message_in_their_order(tmp_path: Path) -> None:
    seen: list[str] = []

    def see(message: Message) -> None:
        seen.append(message.topic)

    with running(small_config(tmp_path)) as store:
        for hook in (_refuse_flow, _delay, see):
            store.add_put_message_hook(hook)
        put_all(store, [plain("T"), plain("delayed")])
        result = store.put_message(plain("timer"))
        assert result.status is PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL
        assert (result.ok, result.reason) == (False, "too many timers")
        assert seen == ["T", "SCHEDULE_TOPIC_XXXX"]
        assert _topics(store, ["T", "delayed", "timer"]) == [1, 0, 0]
        assert _topics(store, ["SCHEDULE_TOPIC_XXXX"], 2) == [1]


def test_a_hook_that_ends_the_put_of_one_ends_that_of_its_batch(tmp_path: Path) -> None:
    def refuse_second(message: Message) -> PutMessageResult | None:
        is_second = message.keys == ["k1"]
        return refuse(PutMessageStatus.MESSAGE_ILLEGAL, "no") if is_second else None

    with running(small_config(tmp_path)) as store:
        store.add_put_message_hook(refuse_second)
        batch = [plain(number=number) for number in range(3)]
        assert store.put_messages(batch).reason == "no"
        assert store.next_offset("T", 0) == 0
        assert store.put_messages([batch[0], batch[2]]).message_count == 2


def test_a_hook_that_fails_stores_nothing(tmp_path: Path) -> None:
    def fail(message: Message) -> None:
        raise ValueError(message.topic)

    with running(small_config(tmp_path)) as store:
        store.add_put_message_hook(fail)
        with pytest.raises(ValueError, match="T"):
            store.put_message(plain())
        assert store.commit_log.max_offset == 0


def test_a_listener_hears_of_messages_once_gets_find_them(tmp_path: Path) -> None:
    heard: list[tuple[ArrivedMessages, int]] = []
    with running(small_config(tmp_path, enable_lmq=True, enable_multi_dispatch=True)) as store:

        def listen(arrived: Sequence[ArrivedMessages]) -> None:
            for one in arrived:
                count = len(store.get_message("g", one.topic, one.queue_id, 0, 32).messages)
                heard.append((one, count))

        put_all(store, [plain("before")])
        store.set_message_arriving_listener(listen)
        results = put_all(
            store,
            [plain("T", 1, number) for number in range(3)]
            + [plain("T", 1, 3, properties={"INNER_MULTI_DISPATCH": "%LMQ%x"})]
            + [plain("T", 1, 4, sys_flag=0x4)],  # prepared: in no queue
        )
        by_queue: dict[tuple[str, int], list[int]] = {}
        for one, readable in heard:
            assert readable >= one.next_offset
            offsets = range(one.offset, one.next_offset)
            by_queue.setdefault((one.topic, one.queue_id), []).extend(offsets)
            assert set(one.store_timestamps_ms.tolist()) == {results[0].store_timestamp_ms}
        assert by_queue == {("T", 1): [0, 1, 2, 3], ("%LMQ%x", 0): [0]}
        queue = store.find_queue("T", 1)
        unit = None if queue is None else queue.unit(0)
        assert unit is not None
        assert heard[0][0].tags_codes.tolist()[0] == unit[2]
        keys = {
            (one.topic, one.queue_id, one.offset + number): find_text(properties, b"KEYS")
            for one, _ in heard
            for number, properties in enumerate(one.properties)
        }
        assert keys == {
            **{("T", 1, number): f"k{number}" for number in range(4)},
            ("%LMQ%x", 0, 0): "k3",
        }
        store.set_message_arriving_listener(None)
        put_all(store, [plain("T", 1, 9)])
        assert max(one.next_offset for one, _ in heard) == 4


def test_a_listener_hears_each_message_of_many_queues_with_its_properties(tmp_path: Path) -> None:
    heard: dict[tuple[str, int, int], str | None] = {}

    def listen(arrived: Sequence[ArrivedMessages]) -> None:
        for one in arrived:
            assert len(one.properties) == one.next_offset - one.offset
            for offset, properties in enumerate(one.properties, one.offset):
                heard[one.topic, one.queue_id, offset] = find_text(properties, b"KEYS")

    with running(small_config(tmp_path)) as store:
        store.set_message_arriving_listener(listen)
        results = put_all(store, [plain("AB"[i % 2], i % 3, i) for i in range(60)])
    assert heard == {
        ("AB"[i % 2], i % 3, result.queue_offset): f"k{i}" for i, result in enumerate(results)
    }


def test_a_listener_that_fails_stops_nothing(tmp_path: Path) -> None:
    def fail(arrived: Any) -> None:
        raise ValueError(arrived)

    with running(small_config(tmp_path)) as store:
        store.set_message_arriving_listener(fail)
        put_all(store, [plain(number=0), plain(number=1)])
        assert store.get_max_offset_in_queue("T", 0) == 2
        assert store.put_message(plain(number=2)).ok
