"""Tests of ReceiveService on a real store: delivery, order and acknowledgements."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.receiving import Receiving, bodies, drive
from tieredstore.broker.receive.requests import AckStatus, Receipt, decode_handle, encode_handle
from tieredstore.broker.receive.state import FROM_LAST, FROM_WHERE
from tieredstore.broker.refused import Reason, Refused
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus
from tieredstore.errors import Invalid, Unavailable
from tieredstore.local.dispatch_source import LocalDispatchSource

OK, INVALID = AckStatus.OK, AckStatus.INVALID_RECEIPT_HANDLE


def test_messages_of_all_queues_go_out_once_and_acknowledged_ones_never_again(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        on.put(3, queue_id=0)
        on.put(3, queue_id=1)
        received = await on.receive()
        assert sorted(bodies(received)) == [0, 1, 2, 3, 4, 5]
        assert {one.delivery_attempt for one in received} == {1}
        assert await on.receive() == []
        handles = [one.handle for one in received]
        assert await on.service.ack_all("G", "T", handles) == [OK] * 6
        assert (on.offset(0), on.offset(1)) == (3, 3)
        on.clock.advance(100_000)
        assert await on.receive() == []
        traffic = on.service.traffic
        found = traffic.deliveries["T", "G"]
        assert (found.messages, found.answers) == (6, 1)
        assert found.size_bytes == sum(one.message.size for one in received)
        assert (traffic.found, traffic.missed) == (1, 2)

    drive(tmp_path, test)


def test_each_receive_begins_with_another_queue(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(10, queue_id=0)
        on.put(10, queue_id=1)
        queues = [{one.message.queue_id for one in await on.receive(max_count=2)} for _ in range(4)]
        assert queues == [{0}, {1}, {0}, {1}]

    drive(tmp_path, test)


def test_the_consumer_offset_moves_over_the_acknowledged_prefix(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(4)
        received = await on.receive()
        for number, expected in ((2, 0), (0, 1), (3, 1), (1, 4)):
            assert await on.service.ack("G", "T", received[number].handle) is OK
            assert on.offset() == expected

    drive(tmp_path, test)


def test_a_message_goes_out_again_when_its_time_is_over_and_the_old_handle_is_invalid(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        on.put(2)
        first = await on.receive(invisible_ms=10_000)
        await on.service.ack("G", "T", first[0].handle)
        on.clock.advance(9_999)
        assert await on.receive() == []
        on.clock.advance(1)
        assert await on.service.ack("G", "T", first[1].handle) is INVALID
        again = await on.receive()
        assert [(one.delivery_attempt, one.handle != first[1].handle) for one in again] == [
            (2, True)
        ]
        assert bodies(again) == [1]
        assert await on.service.ack("G", "T", first[1].handle) is INVALID
        assert await on.service.ack("G", "T", again[0].handle) is OK
        assert on.offset() == 2

    drive(tmp_path, test)


def test_a_changed_time_gives_a_new_handle_and_counts_from_now(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        (one,) = await on.receive(invisible_ms=10_000)
        on.clock.advance(5_000)
        handle = await on.service.change_invisible("G", "T", one.handle, 20_000)
        assert handle is not None
        assert await on.service.change_invisible("G", "T", one.handle, 20_000) is None
        assert await on.service.ack("G", "T", one.handle) is INVALID
        on.clock.advance(19_999)
        assert await on.receive() == []
        assert await on.service.ack("G", "T", handle) is OK
        on.clock.advance(20_000)
        assert await on.receive() == []

    drive(tmp_path, test)


def test_a_message_given_back_goes_out_after_a_second_at_the_soonest(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        (one,) = await on.receive()
        assert await on.service.change_invisible("G", "T", one.handle, 0)
        on.clock.advance(999)
        assert await on.receive() == []
        on.clock.advance(1)
        assert [one.delivery_attempt for one in await on.receive()] == [2]

    drive(tmp_path, test)


def test_times_above_twelve_hours_are_refused(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        with pytest.raises(Invalid, match="at most 43200000 ms, found 43200001"):
            await on.receive(invisible_ms=43_200_001)
        (one,) = await on.receive(invisible_ms=43_200_000)
        with pytest.raises(Invalid, match="at most 43200000 ms, found 43200001"):
            await on.service.change_invisible("G", "T", one.handle, 43_200_001)

    drive(tmp_path, test)


@pytest.mark.parametrize(
    "handle",
    ["", "x", "1:0:0", "1:0:0:ffffffffffffffff", "2:0:0:1", "1:99:0:1", "1:0:-1:1", "1" * 5000],
)
def test_handles_that_nobody_gave_out_are_invalid(tmp_path: Path, handle: str) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        await on.receive()
        assert await on.service.ack("G", "T", handle) is INVALID
        assert await on.service.change_invisible("G", "T", handle, 1_000) is None
        assert await on.service.forward_to_dead_letters("G", "T", handle) is INVALID
        assert await on.service.ack("other", "T", handle) is INVALID

    drive(tmp_path, test)


def test_a_handle_says_which_delivery_it_is() -> None:
    receipt = Receipt(3, 4711, 1_700_000_000_000 << 20)
    assert decode_handle(encode_handle(receipt)) == receipt


def test_after_the_last_attempt_a_message_is_a_dead_letter(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(2)
        for attempt in (1, 2):
            received = await on.receive()
            assert [one.delivery_attempt for one in received] == [attempt] * 2
            on.clock.advance(30_000)
        assert await on.receive() == []
        assert on.dead.letters == [("G", "0", 2), ("G", "1", 2)]
        assert on.offset() == 2

    drive(tmp_path, test, retry_max_times=1)


def test_a_dead_letter_that_cannot_be_stored_is_tried_again(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        await on.receive()
        on.clock.advance(30_000)
        on.dead.error = Unavailable("full")
        assert await on.receive() == []
        assert on.offset() == 0
        on.dead.error = None
        assert await on.receive() == []
        on.clock.advance(1_000)
        assert await on.receive() == []
        assert on.dead.letters == [("G", "0", 1)]
        assert on.offset() == 1

    drive(tmp_path, test, retry_max_times=0)


def test_where_there_are_no_dead_letters_a_message_goes_out_again(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        on.dead.error = Refused(Reason.NO_PERMISSION, "read-only")
        for attempt in (1, 2, 3):
            assert [one.delivery_attempt for one in await on.receive()] == [attempt]
            on.clock.advance(30_000)

    drive(tmp_path, test, retry_max_times=0)


def test_dead_letters_that_cannot_be_stored_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(on: Receiving) -> None:
        on.put(3)
        await on.receive()
        on.dead.error = Unavailable("full")
        for _ in range(3):
            on.clock.advance(30_000)
            assert await on.receive() == []
        assert caplog.text.count("cannot be a dead letter") == 1

    drive(tmp_path, test, retry_max_times=0)


def test_a_client_forwards_a_message_to_the_dead_letters(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        (one,) = await on.receive(fifo=True)
        assert await on.service.forward_to_dead_letters("G", "T", one.handle) is OK
        assert on.dead.letters == [("G", "0", 1)]
        assert on.offset() == 1
        assert await on.service.forward_to_dead_letters("G", "T", one.handle) is INVALID

    drive(tmp_path, test)


def test_two_forwards_of_one_handle_make_one_dead_letter(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        (one,) = await on.receive(fifo=True)
        forward = on.service.forward_to_dead_letters
        outcomes = await asyncio.gather(*(forward("G", "T", one.handle) for _ in range(3)))
        assert outcomes == [OK] * 3
        assert on.dead.letters == [("G", "0", 1)]
        assert on.offset() == 1

    drive(tmp_path, test)


def test_a_forward_whose_client_has_gone_comes_to_its_end(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        (one,) = await on.receive(fifo=True)
        gone = asyncio.create_task(on.service.forward_to_dead_letters("G", "T", one.handle))
        await on.dead.was_put.wait()
        gone.cancel()
        assert await on.service.forward_to_dead_letters("G", "T", one.handle) is OK
        assert on.dead.letters == [("G", "0", 1)]
        assert on.offset() == 1

    drive(tmp_path, test)


def test_fifo_messages_are_no_dead_letters_by_themselves(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        for attempt in (1, 2, 3):
            assert [one.delivery_attempt for one in await on.receive(fifo=True)] == [attempt]
            on.clock.advance(30_000)
        assert on.dead.letters == []

    drive(tmp_path, test, retry_max_times=0)


def test_a_message_group_stops_at_a_message_that_is_not_acknowledged_others_go_on(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        on.put(message_group="a")
        (first,) = await on.receive(max_count=1, fifo=True)
        on.put(message_group="a")
        on.put(message_group="b")
        on.put(message_group="a")
        assert bodies(await on.receive(fifo=True)) == [2]
        assert await on.receive(fifo=True) == []
        await on.service.ack("G", "T", first.handle)
        assert bodies(await on.receive(fifo=True)) == [1, 3]

    drive(tmp_path, test)


def test_a_message_of_a_group_that_failed_goes_out_before_those_behind_it(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(3, message_group="a")
        first = await on.receive(max_count=1, fifo=True)
        assert bodies(first) == [0]
        await on.service.change_invisible("G", "T", first[0].handle, 5_000)
        assert await on.receive(fifo=True) == []
        on.clock.advance(5_000)
        again = await on.receive(fifo=True)
        assert [(int(bytes(one.message.body)), one.delivery_attempt) for one in again] == [
            (0, 2),
            (1, 1),
            (2, 1),
        ]
        # The first one is not acknowledged, so later ones stay after it.
        await on.service.ack("G", "T", again[1].handle)
        on.clock.advance(30_000)
        assert bodies(await on.receive(fifo=True)) == [0, 2]

    drive(tmp_path, test)


def test_what_waits_goes_out_though_the_one_before_it_is_done_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(1, message_group="a")
        (first,) = await on.receive(fifo=True)
        on.put(5, message_group="a")
        get = on.store.get_async

        async def acknowledge_at_the_third(request: Any) -> Any:
            if request.offset == 3:
                assert await on.service.ack("G", "T", first.handle) is OK
            return await get(request)

        monkeypatch.setattr(on.store, "get_async", acknowledge_at_the_third)
        assert await on.receive(max_count=1, fifo=True) == []
        on.put(1, message_group="a")
        assert bodies(await on.receive(fifo=True)) == [1, 2, 3, 4, 5, 6]

    drive(tmp_path, test)


def test_a_poll_gets_what_the_one_before_it_is_done_of_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(1, message_group="a")
        (first,) = await on.receive(fifo=True)
        on.put(5, message_group="a")
        get = on.store.get_async

        async def acknowledge_at_the_third(request: Any) -> Any:
            if request.offset == 3:
                await on.service.ack("G", "T", first.handle)
            return await get(request)

        monkeypatch.setattr(on.store, "get_async", acknowledge_at_the_third)
        async with asyncio.timeout(20):
            assert bodies(await on.receive(max_count=1, fifo=True, poll_ms=60_000)) == [1]

    drive(tmp_path, test)


@pytest.mark.parametrize("says_range", [False, True])
def test_a_message_group_stops_at_a_message_that_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says_range: bool
) -> None:
    async def test(on: Receiving) -> None:
        on.put(3, message_group="a")
        on.put(1, message_group="b")
        await on.receive(fifo=True)
        on.put(1, message_group="a")
        on.clock.advance(30_000)
        get = on.store.get_async

        async def not_the_first(request: Any) -> Any:
            if request.offset == 0:
                found = (0, 5) if says_range else (0, 0)
                return GetMessageResult(GetMessageStatus.OFFSET_FOUND_NULL, 0, *found)
            return await get(request)

        monkeypatch.setattr(on.store, "get_async", not_the_first)
        assert bodies(await on.receive(fifo=True)) == [3]
        assert await on.receive(fifo=True) == []
        monkeypatch.undo()
        on.clock.advance(1_000)
        assert bodies(await on.receive(fifo=True)) == [0, 1, 2, 4]

    drive(tmp_path, test)


def test_what_is_behind_a_message_that_is_gone_goes_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(3, message_group="a")
        await on.receive(fifo=True)
        on.clock.advance(30_000)
        get = on.store.get_async

        async def begins_at_1(request: Any) -> Any:
            if request.offset == 0:
                return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, 1, 1, 3)
            return await get(request)

        monkeypatch.setattr(on.store, "get_async", begins_at_1)
        again = await on.receive(fifo=True)
        assert bodies(again) == [1, 2]
        assert [one.delivery_attempt for one in again] == [2, 2]
        assert on.offset() == 1

    drive(tmp_path, test)


def test_messages_without_a_group_are_in_order_within_their_queue(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(2, queue_id=0)
        on.put(2, queue_id=1)
        taken = [(await on.receive(max_count=1, fifo=True))[0] for _ in range(2)]
        assert sorted(bodies(taken)) == [0, 2]
        assert await on.receive(fifo=True) == []

    drive(tmp_path, test)


@pytest.mark.parametrize("fifo", [False, True])
def test_the_same_attempt_gets_the_same_messages(tmp_path: Path, fifo: bool) -> None:
    async def test(on: Receiving) -> None:
        on.put(4, message_group="a")
        first = await on.receive(max_count=2, fifo=fifo, attempt_id="one")
        on.clock.advance(20_000)
        again = await on.receive(max_count=2, fifo=fifo, attempt_id="one")
        assert bodies(again) == bodies(first) == [0, 1]
        assert [one.handle for one in again] == [one.handle for one in first]
        assert [one.delivery_attempt for one in again] == [1, 1]
        on.clock.advance(29_999)  # its time began again
        assert await on.service.ack("G", "T", first[0].handle) is OK
        assert bodies(await on.receive(fifo=fifo, attempt_id="one")) == [1]
        await on.service.ack("G", "T", first[1].handle)
        assert bodies(await on.receive(fifo=fifo, attempt_id="one")) == [2, 3]

    drive(tmp_path, test)


def test_an_attempt_is_known_after_a_restart(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(4, message_group="a")
        first = await on.receive(max_count=2, fifo=True, attempt_id="one")
        for _ in range(2):  # from the journal, and from a snapshot
            await on.kill()
            await on.start()
            again = await on.receive(max_count=2, fifo=True, attempt_id="one")
            assert [one.handle for one in again] == [one.handle for one in first]

    drive(tmp_path, test)


def test_only_messages_that_match_the_subscription_go_out(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(6)
        received = await on.receive(expression="Tag1")
        assert bodies(received) == [1, 4]
        await on.service.ack_all("G", "T", [one.handle for one in received])
        assert await on.receive(expression="Tag1") == []
        assert on.offset() == 6  # the others match no filter

    drive(tmp_path, test)


def test_a_new_group_begins_at_the_end_where_it_says_so(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(3)
        assert await on.receive() == []
        assert on.offset() == 3
        on.put(1)
        assert bodies(await on.receive()) == [3]

    drive(tmp_path, test, attributes={FROM_WHERE: FROM_LAST})


def test_a_new_group_gets_all_of_a_queue_whose_first_message_is_local(tmp_path: Path) -> None:
    """As in Java, a new group gets all messages of a queue whose first message is in the local
    log."""

    async def test(on: Receiving) -> None:
        on.put(3)
        assert bodies(await on.receive()) == [0, 1, 2]

    drive(tmp_path, test, attributes={})


def test_a_new_group_begins_at_the_last_message_if_the_first_one_is_not_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Java, a new group begins at the last message of a queue whose first message is not in
    the local log."""
    monkeypatch.setattr(LocalDispatchSource, "is_in_store", lambda *_: False)

    async def test(on: Receiving) -> None:
        on.put(3)
        assert bodies(await on.receive()) == [2]
        on.put(1)
        assert bodies(await on.receive()) == [3]

    drive(tmp_path, test, attributes={})


def test_what_came_to_a_queue_that_is_added_later_is_not_left_out(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        await on.receive()
        config = on.topics.find_topic("T")
        assert config is not None
        config.read_queue_nums = 3
        on.put(1, queue_id=2)
        assert bodies(await on.receive()) == [0]

    drive(tmp_path, test, attributes={})


def test_a_consumer_offset_that_is_set_back_is_followed(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(4)
        received = await on.receive()
        await on.service.ack_all("G", "T", [one.handle for one in received[:3]])
        on.offsets.commit_offset("G", "T", 0, 1)
        again = await on.receive()
        assert bodies(again) == [1, 2, 3]
        assert await on.service.ack("G", "T", received[3].handle) is INVALID
        assert {one.delivery_attempt for one in again} == {1}

    drive(tmp_path, test)


def test_a_consumer_offset_that_is_set_ahead_is_followed(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(6)
        received = await on.receive(max_count=3)
        on.offsets.commit_offset("G", "T", 0, 2)
        assert bodies(await on.receive()) == [3, 4, 5]
        assert await on.service.ack("G", "T", received[0].handle) is INVALID
        assert await on.service.ack("G", "T", received[2].handle) is OK
        on.offsets.commit_offset("G", "T", 0, 1_000)  # no further than the queue goes
        assert await on.receive() == []
        assert on.offset() == 6

    drive(tmp_path, test)


def test_a_poll_waits_for_a_message(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        poll = asyncio.create_task(on.receive(poll_ms=20_000))
        await asyncio.sleep(0.05)
        on.put(1)
        assert bodies(await asyncio.wait_for(poll, 10)) == [0]

    drive(tmp_path, test)


def test_a_poll_ends_without_messages_at_its_deadline(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        assert await asyncio.wait_for(on.receive(poll_ms=50), 10) == []

    drive(tmp_path, test)


def test_a_poll_sees_a_message_that_becomes_due_and_one_that_is_freed(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(2, message_group="a")
        (first,) = await on.receive(max_count=1, fifo=True)
        poll = asyncio.create_task(on.receive(poll_ms=20_000, fifo=True))
        await asyncio.sleep(0.05)
        await on.service.ack("G", "T", first.handle)
        (second,) = await asyncio.wait_for(poll, 10)
        assert bodies([second]) == [1]
        poll = asyncio.create_task(on.receive(poll_ms=20_000, fifo=True))
        await asyncio.sleep(0.05)
        on.clock.advance(30_000)
        assert bodies(await asyncio.wait_for(poll, 10)) == [1]

    drive(tmp_path, test)


def test_many_polls_share_what_comes(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        polls = [asyncio.create_task(on.receive(max_count=1, poll_ms=20_000)) for _ in range(8)]
        await asyncio.sleep(0.05)
        on.put(8)
        got = await asyncio.wait_for(asyncio.gather(*polls), 10)
        assert sorted(number for one in got for number in bodies(one)) == list(range(8))

    drive(tmp_path, test)


def test_polls_end_when_the_service_stops(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        poll = asyncio.create_task(on.receive(poll_ms=20_000))
        await asyncio.sleep(0.05)
        await on.service.stop()
        assert await asyncio.wait_for(poll, 10) == []

    drive(tmp_path, test)


def test_what_did_not_reach_its_consumer_goes_out_again_as_if_it_had_not(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(3, message_group="a")
        received = await on.receive(fifo=True)
        on.service.give_back("G", "T", received)
        assert await on.service.ack("G", "T", received[0].handle) is INVALID
        again = await on.receive(fifo=True)
        assert bodies(again) == [0, 1, 2]
        assert [one.delivery_attempt for one in again] == [1, 1, 1]

    drive(tmp_path, test)


def test_a_cancelled_receive_gives_back_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(2, queue_id=0)
        on.put(2, queue_id=1)
        reached = asyncio.Event()
        get = on.store.get_async

        async def slow(request: Any) -> Any:
            if request.queue_id == 1:
                reached.set()
                await asyncio.sleep(60)
            return await get(request)

        monkeypatch.setattr(on.store, "get_async", slow)
        call = asyncio.create_task(on.receive())
        await reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        monkeypatch.undo()
        again = await on.receive()
        assert sorted(bodies(again)) == [0, 1, 2, 3]
        assert {one.delivery_attempt for one in again} == {1}

    drive(tmp_path, test)


def test_receives_at_once_never_get_the_same_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(20, queue_id=0)
        on.put(20, queue_id=1)
        get = on.store.get_async

        async def slow(request: Any) -> Any:
            await asyncio.sleep(0.001)
            return await get(request)

        monkeypatch.setattr(on.store, "get_async", slow)
        calls = [on.receive(max_count=3, poll_ms=10_000) for _ in range(12)]
        got = [number for one in await asyncio.gather(*calls) for number in bodies(one)]
        assert len(got) == len(set(got)) >= 12

    drive(tmp_path, test)


def test_the_broker_renews_the_time_of_a_message_while_its_client_is_there(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(2)
        on.live.add(("G", "c1"))
        received = await on.receive(invisible_ms=60_000, auto_renew=True, client_id="c1")
        for _ in range(20):
            on.clock.advance(55_000)
            await on.service.renew()
        assert await on.receive() == []
        assert await on.service.ack("G", "T", received[0].handle) is OK
        on.live.clear()
        on.clock.advance(55_000)
        await on.service.renew()
        on.clock.advance(5_000)
        assert bodies(await on.receive()) == [1]

    drive(tmp_path, test)


def test_the_time_is_renewed_for_three_hours(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        on.live.add(("G", "c1"))
        await on.receive(invisible_ms=60_000, auto_renew=True, client_id="c1")
        looks = 0
        while not await on.receive():
            on.clock.advance(50_001)
            await on.service.renew()
            looks += 1
        assert 3 * 3_600_000 <= looks * 50_001 <= 3 * 3_600_000 + 120_000

    drive(tmp_path, test)


def test_the_time_is_not_renewed_after_a_change(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(2)
        on.live.add(("G", "c1"))
        received = await on.receive(invisible_ms=60_000, auto_renew=True, client_id="c1")
        await on.service.change_invisible("G", "T", received[1].handle, 55_000)
        on.clock.advance(54_000)
        await on.service.renew()
        on.clock.advance(54_000)
        assert bodies(await on.receive()) == [1]
        assert await on.service.ack("G", "T", received[0].handle) is OK

    drive(tmp_path, test)


def test_the_time_is_not_renewed_after_a_crash_that_may_have_cut_the_delivery_off(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        on.live.add(("G", "c1"))
        await on.receive(invisible_ms=60_000, auto_renew=True, client_id="c1")
        await on.kill()
        await on.start()
        on.clock.advance(54_000)
        await on.service.renew()
        on.clock.advance(6_000)
        assert bodies(await on.receive()) == [0]

    drive(tmp_path, test)


def test_messages_of_a_client_that_left_go_out_soon(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        await on.receive(invisible_ms=60_000, auto_renew=True, client_id="c1")
        on.put(1)
        await on.receive(invisible_ms=60_000)
        on.service.release_client("G", "c1")
        on.clock.advance(1_000)
        assert bodies(await on.receive()) == [0]

    drive(tmp_path, test)


def test_messages_that_the_store_has_no_more_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(3)
        await on.receive()
        on.clock.advance(30_000)
        on.store.delete_topics({"T"})
        on.put(1)
        on.store.wait_until_dispatched()
        assert bodies(await on.receive()) == [3]  # the recreated topic

    drive(tmp_path, test)


def test_nothing_new_goes_out_while_too_much_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.broker.receive.batch.MAX_IN_FLIGHT", 4)
    monkeypatch.setattr("tieredstore.broker.receive.service.MAX_IN_FLIGHT", 4)

    async def test(on: Receiving) -> None:
        on.put(10)
        received = await on.receive(max_count=4)
        assert bodies(received) == [0, 1, 2, 3]
        assert await on.receive() == []
        assert len(on.state.find_queues("G", "T")[0].entries) == 4
        await on.service.ack_all("G", "T", [one.handle for one in received[1:]])
        assert bodies(await on.receive(max_count=4)) == [4, 5, 6, 7]

    drive(tmp_path, test)


def test_an_unknown_topic_has_no_messages(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.topics.delete_topic("T")
        assert await on.receive() == []

    drive(tmp_path, test)
