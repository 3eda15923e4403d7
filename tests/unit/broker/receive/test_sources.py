"""Tests of receiving from single queues and from retry topics written by a Java broker."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all
from tests.kit.receiving import Receiving, bodies, drive
from tests.kit.remoting import wait_for
from tieredstore.broker.receive.polls import PollKey
from tieredstore.broker.receive.requests import (
    AckStatus,
    Receipt,
    Source,
    decode_handle,
    encode_handle,
    name_source,
    split_source,
)
from tieredstore.broker.receive.service import Popped
from tieredstore.broker.receive.state import FROM_FIRST
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.contracts.message_store import GetMessageResult, GetRequest

OK, INVALID = AckStatus.OK, AckStatus.INVALID_RECEIPT_HANDLE
NAMES = {Source.RETRY_V1: "%RETRY%G_T", Source.RETRY_V2: "%RETRY%G+T"}


def leave(on: Receiving, source: Source, body: str, reconsume_times: int = 0) -> str:
    """Put a message into a retry topic as a Java broker does. Return the topic's name."""
    name = NAMES[source]
    if on.topics.find_topic(name) is None:
        on.topics.update_topic(TopicConfig(topic_name=name, read_queue_nums=1))
    left = plain(name, 0, 0, body=body.encode())
    left.reconsume_times = reconsume_times
    put_all(on.store, [left])
    return name


def test_names_of_sources() -> None:
    for source, name in NAMES.items():
        assert name_source("G", "T", source) == name
        assert split_source("G", name) == ("T", source)
    for name in ("T", "%RETRY%G", "%RETRY%G_", "%RETRY%H_T", "%DLQ%G"):
        assert split_source("G", name) == (name, Source.TOPIC)


def test_a_handle_says_from_which_topic_its_message_is() -> None:
    for source in Source:
        lite = (0, "a:b\n") if source is Source.LITE else (3, "")
        receipt = Receipt(lite[0], 4711, 1_700_000_000_000 << 20, source, lite[1])
        assert decode_handle(encode_handle(receipt)) == receipt
    for text in ("2:0:0:0:1", "2:3:0:0:1", "2:1:0:0", "1:1:0:0:1"):
        assert decode_handle(text) is None


@pytest.mark.parametrize("source", list(NAMES))
def test_left_messages_are_received_changed_and_acknowledged(
    tmp_path: Path, source: Source
) -> None:
    async def test(on: Receiving) -> None:
        name = leave(on, source, "1000", reconsume_times=1)
        on.put(1)
        received = await on.receive()
        assert bodies(received) == [1000, 0]
        assert [one.delivery_attempt for one in received] == [2, 1]
        first = received[0]
        changed = await on.service.change_invisible("G", "T", first.handle, 5_000)
        assert changed is not None
        assert await on.service.ack("G", "T", first.handle) is INVALID
        on.clock.advance(5_000)
        (again,) = await on.receive()
        assert (again.delivery_attempt, again.message.topic) == (3, name)
        assert await on.service.ack("G", "T", changed) is INVALID
        assert await on.service.ack("G", "T", again.handle) is OK
        assert on.offsets.query_offset("G", name, 0) == 1
        assert on.offset() == 0

    drive(tmp_path, test)


def test_left_messages_become_dead_letters_after_all_their_deliveries(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        leave(on, Source.RETRY_V1, "1000", reconsume_times=2)
        (one,) = await on.receive()
        assert one.delivery_attempt == 3
        on.clock.advance(30_000)
        assert bodies(await on.receive()) == [1000]
        on.clock.advance(30_000)
        assert await on.receive() == []
        assert [letter[1] for letter in on.dead.letters] == ["1000"]

    drive(tmp_path, test, retry_max_times=3)


def test_a_left_message_is_forwarded_to_the_dead_letters(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        leave(on, Source.RETRY_V2, "1000")
        (one,) = await on.receive()
        assert await on.service.forward_to_dead_letters("G", "T", one.handle) is OK
        assert [letter[1] for letter in on.dead.letters] == ["1000"]

    drive(tmp_path, test)


def test_s82_a_left_message_goes_to_the_group_that_had_it_only(tmp_path: Path) -> None:
    """A message in a Java broker's retry topic is delivered only to its own group. The name
    `%RETRY%G_T_U` is ambiguous: group G with topic T_U, or group G_T with topic U."""

    async def test(on: Receiving) -> None:
        for topic in ("U", "T_U", "%RETRY%G_T_U"):
            on.topics.update_topic(TopicConfig(topic_name=topic, read_queue_nums=1))
        on.groups.update_group(SubscriptionGroupConfig(group_name="G_T"))
        for number, group in enumerate(("G_T", "G", "G_T")):
            properties = {"ORIGIN_GROUP": group}
            put_all(
                on.store,
                [plain("%RETRY%G_T_U", 0, 0, body=b"%d" % number, properties=properties)],
            )
        assert bodies(await on.receive(group="G", topic="T_U")) == [1]
        assert bodies(await on.receive(group="G_T", topic="U")) == [0, 2]

    drive(tmp_path, test)


def test_an_attempt_gets_left_messages_again(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        leave(on, Source.RETRY_V1, "1000")
        first = await on.receive(attempt_id="a")
        again = await on.receive(attempt_id="a")
        assert [one.handle for one in again] == [one.handle for one in first]
        await on.kill()
        await on.start()
        again = await on.receive(attempt_id="a")
        assert [one.handle for one in again] == [one.handle for one in first]

    drive(tmp_path, test)


def test_a_due_left_message_wakes_a_waiting_receive(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        leave(on, Source.RETRY_V1, "1000")
        (one,) = await on.receive()
        waits = asyncio.create_task(on.receive(poll_ms=60_000))
        await wait_for(lambda: on.service.count_waiting(PollKey("G", "T")) == 1)
        on.service.give_back("G", "T", [one])
        assert bodies(await waits) == [1000]

    drive(tmp_path, test)


def test_a_group_in_order_and_another_groups_retries_get_nothing_of_them(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        leave(on, Source.RETRY_V1, "1000")
        assert await on.receive(fifo=True) == []
        on.groups.update_group(SubscriptionGroupConfig(group_name="G_T"))
        assert await on.receive() == []

    drive(tmp_path, test)


def test_a_delivery_by_its_time_is_that_of_its_handle(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        name = leave(on, Source.RETRY_V1, "1000")
        on.put(1)
        left, new = await on.receive()
        assert left.receipt.pop_ms == new.receipt.pop_ms
        pop_ms = left.receipt.pop_ms
        for wrong in (
            Popped("H", "T", 0, 0, pop_ms),
            Popped("G", "U", 0, 0, pop_ms),
            Popped("G", "T", 1, 0, pop_ms),
            Popped("G", "T", 0, 1, pop_ms),
            Popped("G", "T", 0, 0, pop_ms + 1),
            Popped("G", "T", 0, 0, 0),
        ):
            assert on.service.ack_popped([wrong]) == 0
            assert on.service.change_popped(wrong, 1_000) is None
        both = [Popped("G", name, 0, 0, pop_ms), Popped("G", "T", 0, 0, pop_ms)]
        assert on.service.ack_popped([*both, *both]) == 4  # in one batch
        assert on.service.ack_popped(both) == 0
        assert (on.offset(), on.offsets.query_offset("G", name, 0)) == (1, 1)

    drive(tmp_path, test)


def test_deliveries_have_different_times_also_after_the_clock_was_set_back(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(2, queue_id=0)
        on.put(2, queue_id=1)
        times = []
        for _ in range(4):
            received = await on.receive()
            assert sorted(bodies(received)) == [0, 1, 2, 3]
            times.append({one.receipt.pop_ms for one in received})
            on.service.give_back("G", "T", received)
            on.clock.advance(-1_000)
        assert all(not one & other for one, other in pairwise(times))

    drive(tmp_path, test)


def test_what_a_receive_of_one_queue_leaves_wakes_a_receive_of_all(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        for task in on.service._tasks:  # they would wake it a second later
            await task.stop()
        assert await on.receive() == []
        get, may_read = on.store.get_async, asyncio.Event()

        async def get_later(request: GetRequest) -> GetMessageResult:
            await may_read.wait()
            return await get(request)

        on.store.get_async = get_later  # type: ignore[method-assign]
        one = asyncio.create_task(on.receive(queue_id=1, max_count=1, poll_ms=10_000))
        await wait_for(lambda: on.service.all_waiting == 1)
        every = asyncio.create_task(on.receive(poll_ms=10_000))
        await wait_for(lambda: on.service.all_waiting == 2)
        on.put(2, queue_id=1)
        progress = on.state.find_queues("G", "T")[1]
        await wait_for(lambda: progress.is_read)
        for _ in range(10):  # the other receive finds the queue being read, and waits again
            await asyncio.sleep(0)
        may_read.set()
        assert sorted([*bodies(await one), *bodies(await every)]) == [0, 1]

    drive(tmp_path, test)


PRIORITIES = {"message.type": "PRIORITY"}


def test_the_highest_priority_is_received_first(tmp_path: Path) -> None:
    """As in Java's broker, messages of a higher priority are received first. The queue id is the
    priority."""

    async def test(on: Receiving) -> None:
        on.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=3, attributes=PRIORITIES)
        )
        left = leave(on, Source.RETRY_V1, "1000")
        for queue_id in (0, 1, 2, 2, 0, 1, 2):
            on.put(1, queue_id)
        received = [bodies(await on.receive(max_count=3)) for _ in range(3)]
        assert received == [[2, 3, 6], [1, 5, 0], [4, 1000]]
        assert on.state.find_queues("G", left)

    drive(tmp_path, test)


def test_a_due_message_of_a_higher_priority_comes_before_new_ones(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=2, attributes=PRIORITIES)
        )
        on.put(1, 1)
        [high] = await on.receive(max_count=1)
        on.put(2, 0)
        assert await on.service.change_invisible("G", "T", high.handle, 5_000)
        assert bodies(await on.receive(max_count=1)) == [1]
        on.clock.advance(5_000)
        assert bodies(await on.receive(max_count=1)) == [0]

    drive(tmp_path, test)


@pytest.mark.parametrize(("factor", "is_first"), [("100", True), ("0", False)])
def test_a_group_says_how_many_receives_follow_priorities(
    tmp_path: Path, factor: str, is_first: bool
) -> None:
    async def test(on: Receiving) -> None:
        on.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=2, attributes=PRIORITIES)
        )
        firsts = []
        for _ in range(6):
            on.put(1, 0)
            on.put(1, 1)
            received = await on.receive()
            assert len(received) == 2
            firsts.append(received[0].receipt.queue_id)
        assert (set(firsts) == {1}) is is_first

    drive(
        tmp_path,
        test,
        attributes={"consumeFromWhere": FROM_FIRST, "priority.factor": factor},
    )


def test_priority_0_may_come_first(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=3, attributes=PRIORITIES)
        )
        on.service._sources.reads_last_first = lambda: False
        for queue_id in (2, 0, 1):
            on.put(1, queue_id)
        assert bodies(await on.receive()) == [1, 2, 0]
        on.put(3, 2)
        assert await on.receive(fifo=True)

    drive(tmp_path, test)


def test_p30_messages_of_a_queue_that_the_topic_has_no_more_come_again(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        on.put(2, queue_id=1)
        assert len(await on.receive(max_count=2, queue_id=1)) == 2
        on.topics.update_topic(TopicConfig(topic_name="T", read_queue_nums=1))
        await on.kill()
        await on.start()
        on.clock.advance(30_000)
        assert sorted(bodies(await on.receive())) == [0, 1, 2]
        on.clock.advance(30_000)
        found = await on.receive(queue_id=0)
        assert sorted(bodies(found)) == [0, 1, 2]
        assert [await on.service.ack("G", "T", one.handle) for one in found] == [OK] * 3

    drive(tmp_path, test)
