"""Messages that a consumer sends back are redelivered later. After the last attempt they become
dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import START_MS
from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.sender import SendRequest
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.clock import ManualClock
from tieredstore.message.encoding import Message
from tieredstore.message.record import StoredMessage


async def _consumed(parts: Producing, **more: Any) -> StoredMessage:
    await parts.send(queue_id=0, uniq_key="U", **more)
    return parts.read()[-1]


def _aside(parts: Producing) -> list[StoredMessage]:
    """Return the delayed messages for the retry topic, in the order in which they were sent
    back."""
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
    assert parts.send_back.traffic.send_backs == {("T", "g"): 3}


@pytest.mark.parametrize(
    ("times", "level", "attempts"), [(-(2**31), "3", 1 - 2**31), (-1, "3", 0), (2**31 - 1, None, 0)]
)
@on_loop
async def test_p85_a_producer_may_say_any_number_of_consumptions(
    tmp_path: Path, times: int, level: str | None, attempts: int
) -> None:
    """A message with any `reconsume_times` can be sent back. The largest value is not increased,
    and a negative value is not used as a delay level."""
    with producing(tmp_path) as parts:
        message = await _consumed(parts, reconsume_times=times)
        is_dead = await parts.send_back.send_back("g", message)
        assert is_dead is (level is None)
        if level is None:
            assert [found.reconsume_times for found in parts.read("%DLQ%g")] == [2**31 - 1]
        else:
            (found,) = _aside(parts)
            assert (found.get_property("DELAY"), found.reconsume_times) == (level, attempts)


@on_loop
async def test_i32_a_message_of_an_older_log_that_recalls_another_is_sent_back(
    tmp_path: Path,
) -> None:
    """A message with a recall property can be sent back. Older brokers stored such messages without
    removing the property."""
    with producing(tmp_path) as parts:
        parts.put_as_is("T", {"TIMER_DEL_UNIQKEY": "T_U", "UNIQ_KEY": "V"})
        (message,) = parts.read("T")
        assert not await parts.send_back.send_back("g", message)
        assert await parts.send_back.send_back("g", message, -1)
        (found,) = parts.read("%DLQ%g")
        assert found.get_property("TIMER_DEL_UNIQKEY") is None


@pytest.mark.parametrize(("times", "level", "most"), [(16, 0, None), (0, -1, None), (2, 0, 2)])
@on_loop
async def test_dead_letters(tmp_path: Path, times: int, level: int, most: int | None) -> None:
    with producing(tmp_path) as parts:
        message = await _consumed(parts, reconsume_times=times)
        assert await parts.send_back.send_back("g", message, level, most)
        found = parts.read("%DLQ%g")[0]
        config = parts.topics.find_topic("%DLQ%g")
        assert _aside(parts) == []
    assert parts.send_back.traffic.send_backs == {("T", "g"): 1}
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
            (("unknown", message), Reason.SUBSCRIPTION_GROUP_NOT_EXIST),
            (("g", 999_999), Reason.SYSTEM_ERROR),
        ):
            if arguments[0] == "g":
                parts.groups.update_group(SubscriptionGroupConfig(group_name="g"))
            with pytest.raises(Refused) as raised:
                await parts.send_back.send_back(*arguments)
            assert raised.value.reason is reason
        parts.settings.broker_permission = 4
        with pytest.raises(Refused) as raised:
            await parts.send_back.send_back("g", message)
    assert raised.value.reason is Reason.NO_PERMISSION


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
    assert raised.value.reason is Reason.SYSTEM_ERROR


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


@pytest.mark.parametrize("is_sent_back", [True, False])
@on_loop
async def test_i73_a_dead_letter_is_in_no_light_queue_again(
    tmp_path: Path, is_sent_back: bool
) -> None:
    """A dead letter is never added to a light queue, even if the consumer sent it to the retry
    topic itself."""
    light = {"enable_lmq": True, "enable_multi_dispatch": True}
    named = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
    with producing(tmp_path, store=light) as parts:
        message = await _consumed(parts, properties=named)
        assert len(parts.read("%LMQ%a")) == 1
        if is_sent_back:
            assert await parts.send_back.send_back("g", message, -1)
        else:
            copy = Message.create("%RETRY%g", b"body", queue_id=0, properties=named)
            copy.reconsume_times = 99
            await parts.sender.send(SendRequest("g", copy))
        (letter,) = parts.read("%DLQ%g")
        assert letter.get_property("INNER_MULTI_DISPATCH") is None
        assert len(parts.read("%LMQ%a")) == 1
