"""Messages that a consumer sends back: retried later, and dead letters in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import START_MS
from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.clock import ManualClock
from tieredstore.message.record import StoredMessage


async def _consumed(parts: Producing, **more: Any) -> StoredMessage:
    await parts.send(queue_id=0, uniq_key="U", **more)
    return parts.read()[-1]


def _aside(parts: Producing) -> list[StoredMessage]:
    """What waits for the retry topic, in the order in which it was sent back."""
    levels = [parts.read("SCHEDULE_TOPIC_XXXX", queue_id) for queue_id in range(18)]
    found = [message for level in levels for message in level]
    assert all(message.get_property("REAL_TOPIC") == "%RETRY%g" for message in found)
    return sorted(found, key=lambda message: message.physical_offset)


@on_loop
async def test_a_message_goes_to_the_retry_topic_with_where_it_came_from(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        message = await _consumed(parts, tags="a", born_timestamp_ms=9)
        assert not await parts.send_back.send_back("g", message.physical_offset)
        found = _aside(parts)[0]
    assert found.reconsume_times == 1
    assert (bytes(found.body), found.tags, found.born_timestamp_ms) == (b"body", "a", 9)
    properties = found.properties
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
    assert (properties["DELAY"], properties["WAIT"], properties["UNIQ_KEY"]) == ("3", "false", "U")


@on_loop
async def test_each_retry_keeps_the_first_topic_and_id_and_waits_longer(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        message = await _consumed(parts)
        await parts.send_back.send_back("g", message)
        again = _aside(parts)[0]
        await parts.send_back.send_back("g", again)
        await parts.send_back.send_back("g", again, 7)
        found = _aside(parts)[1:]
    assert [m.get_property("DELAY") for m in found] == ["4", "7"]
    assert {m.get_property("RETRY_TOPIC") for m in found} == {"T"}
    assert {m.get_property("ORIGIN_MESSAGE_ID") for m in found} == {message.offset_message_id}
    assert [m.reconsume_times for m in found] == [2, 2]


@pytest.mark.parametrize(("times", "level", "most"), [(16, 0, None), (0, -1, None), (2, 0, 2)])
@on_loop
async def test_dead_letters(tmp_path: Path, times: int, level: int, most: int | None) -> None:
    with producing(tmp_path) as parts:
        message = await _consumed(parts, reconsume_times=times)
        assert await parts.send_back.send_back("g", message, level, most)
        found = parts.read("%DLQ%g")[0]
        config = parts.topics.find_topic("%DLQ%g")
        assert _aside(parts) == []
    assert config
    assert (config.write_queue_nums, config.perm) == (1, 6)
    properties = found.properties
    assert (properties["DLQ_ORIGIN_TOPIC"], properties["DLQ_ORIGIN_MESSAGE_ID"]) == ("T", "U")
    assert (properties["DELAY"], found.reconsume_times) == ("0", times + 1)


@on_loop
async def test_dead_letters_by_the_broker_keep_the_attempts(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        message = await _consumed(parts)
        await parts.send_back.send_to_dead_letters("g", message, 5)
        assert parts.read("%DLQ%g")[0].reconsume_times == 5


@on_loop
async def test_what_is_refused(tmp_path: Path) -> None:
    with producing(tmp_path, auto_create_subscription_group=False) as parts:
        message = await _consumed(parts)
        for arguments, reason in (
            (("unknown", message), RefusalReason.SUBSCRIPTION_GROUP_NOT_EXIST),
            (("g", 999_999), RefusalReason.SYSTEM_ERROR),
        ):
            if arguments[0] == "g":
                parts.groups.update_group(SubscriptionGroupConfig(group_name="g"))
            with pytest.raises(Refused) as raised:
                await parts.send_back.send_back(*arguments)
            assert raised.value.reason is reason
        parts.settings.broker_permission = 4
        with pytest.raises(Refused) as raised:
            await parts.send_back.send_back("g", message)
    assert raised.value.reason is RefusalReason.NO_PERMISSION


@on_loop
async def test_a_group_without_retry_queues_drops_the_message(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.groups.update_group(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0))
        message = await _consumed(parts)
        assert not await parts.send_back.send_back("g", message)
        assert parts.topics.find_topic("%RETRY%g") is None


@on_loop
async def test_a_message_whose_place_is_another_one_is_found_by_its_id(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        other = await _consumed(parts)
        sent = await parts.send(body=b"meant", queue_id=0, uniq_key="MEANT")
        parts.store.wait_until_dispatched()
        # A message that was read from the tier: what it says of its place is true there.
        for place in (other.physical_offset, other.physical_offset + 1, 10**9):
            await parts.send_back.send_back("g", place, origin=("T", "MEANT"))
        await parts.send_back.send_back("g", sent.physical_offset, origin=("T", sent.message_id))
        assert [bytes(message.body) for message in _aside(parts)] == [b"meant"] * 4
        with pytest.raises(Refused) as raised:
            await parts.send_back.send_back("g", other.physical_offset, origin=("T", "unknown"))
    assert raised.value.reason is RefusalReason.SYSTEM_ERROR


@on_loop
async def test_a_dead_letter_keeps_nothing_of_an_earlier_delay(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await parts.send(queue_id=0, properties={"DELAY": "1", "k": "v"})
        parts.clock.advance(1000)
        parts.store.wait_until_dispatched()
        await parts.schedule.deliver_due()
        delivered = parts.read()[0]
        assert delivered.get_property("REAL_TOPIC") == "T"
        await parts.send_back.send_back("g", delivered, -1)
        properties = parts.read("%DLQ%g")[0].properties
    assert (properties["DELAY"], properties["k"], properties["RETRY_TOPIC"]) == ("0", "v", "T")
    assert not properties.keys() & {"REAL_TOPIC", "REAL_QID"}


@on_loop
async def test_a_dead_letter_does_not_wait_again_for_the_delay_of_its_message(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        await parts.send(queue_id=0, properties={"TIMER_DELAY_SEC": "60"})
        parts.store.wait_until_dispatched()
        await parts.timers.deliver_due()
        clock.advance(61_000)
        await parts.timers.deliver_due()
        (message,) = parts.read()
        assert await parts.send_back.send_back("g", message, -1)
        (found,) = parts.read("%DLQ%g")
    assert not any(name.startswith("TIMER_") for name in found.properties)
