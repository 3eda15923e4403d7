"""Transactions are stored as in Java's broker. Committed messages are always delivered."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kit.client_sessions import NotingSession
from tests.kit.held_syncs import HeldSyncs
from tests.kit.local_stores import START_MS
from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tests.kit.waiting import wait_for
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.sender import SendResult
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.broker.transactions.messages import (
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    CommitOrRollback,
    identify,
    make_op,
)
from tieredstore.broker.transactions.service import GROUP
from tieredstore.clock import ManualClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.layout import FIXED_SIZE
from tieredstore.message.record import StoredMessage

COMMIT, ROLLBACK = CommitOrRollback.COMMIT, CommitOrRollback.ROLLBACK
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"


class Session(NotingSession):
    """A producer that records its requests."""

    def __init__(self) -> None:
        super().__init__("c")
        self.asked: list[tuple[StoredMessage, str, str]] = []

    def check_transaction(self, message: StoredMessage, transaction_id: str, group: str) -> None:
        self.asked.append((message, transaction_id, group))


async def _prepare(parts: Producing, body: bytes = b"body", **more: Any) -> SendResult:
    properties = {"TRAN_MSG": "true", "PGROUP": "g", **more.pop("properties", {})}
    message = Message.create("T", body, queue_id=2, properties=properties, sys_flag=4, **more)
    return await parts.prepare(message)


async def _end(parts: Producing, sent: SendResult, resolution: CommitOrRollback) -> None:
    await parts.transactions.end("g", sent.physical_offset, sent.queue_offset, resolution)


async def _check(parts: Producing, after_ms: int = 30_000) -> int:
    parts.clock.advance(after_ms)
    parts.store.wait_until_dispatched()
    return await parts.transactions.check()


def _bodies(parts: Producing, topic: str = "T", queue_id: int = 2) -> list[bytes]:
    return [bytes(message.body) for message in parts.read(topic, queue_id)]


@on_loop
async def test_a_half_message_and_its_commit_are_stored_as_java_s(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        sent = await _prepare(parts, uniq_key="U", tags="a", born_timestamp_ms=7)
        half = parts.read(HALF_TOPIC)[0]
        assert _bodies(parts) == []
        await _end(parts, sent, COMMIT)
        await parts.transactions.write_ops()
        found, op = parts.read("T", 2)[0], parts.read(OP_TOPIC)[0]
    assert (sent.queue_id, sent.queue_offset, sent.transaction_id) == (2, 0, "U")
    assert (half.sys_flag, half.queue_id) == (0, 0)
    properties = half.properties
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "2")
    assert (properties["__transactionId__"], properties["TRAN_MSG"]) == ("U", "true")
    assert (found.sys_flag, found.prepared_transaction_offset) == (8, half.physical_offset)
    assert (found.queue_offset, found.tags, found.born_timestamp_ms) == (0, "a", 7)
    assert found.get_property("TRAN_MSG") == "true"
    assert found.get_property("REAL_TOPIC") is found.get_property("REAL_QID") is None
    assert (bytes(op.body).hex(), op.tags) == ("302c", "d")


@on_loop
async def test_a_rollback_delivers_nothing_and_an_unknown_end_leaves_it_open(
    tmp_path: Path,
) -> None:
    with producing(tmp_path) as parts:
        first, second = await _prepare(parts, b"1"), await _prepare(parts, b"2")
        await _end(parts, first, ROLLBACK)
        await _end(parts, second, CommitOrRollback.UNKNOWN)
        await parts.transactions.write_ops()
        assert _bodies(parts) == []
        assert [bytes(op.body) for op in parts.read(OP_TOPIC)] == [b"0,"]
        await _end(parts, second, COMMIT)
        assert _bodies(parts) == [b"2"]


@on_loop
async def test_a_transaction_ends_once(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        committed, rolled_back = await _prepare(parts, b"1"), await _prepare(parts, b"2")
        await _end(parts, committed, COMMIT)
        await _end(parts, rolled_back, ROLLBACK)
        for sent in (committed, rolled_back):
            await _end(parts, sent, COMMIT)
        await parts.transactions.stop()
        assert _bodies(parts) == [b"1"]
    with producing(tmp_path, clock) as parts:
        await parts.transactions.load()
        await _end(parts, committed, COMMIT)
        assert _bodies(parts) == [b"1"]


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
@on_loop
async def test_one_that_ends_while_it_is_looked_at_for_a_question_is_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolution: CommitOrRollback
) -> None:
    with producing(tmp_path) as parts:
        session = Session()
        parts.producers.register("g", session)
        sent = await _prepare(parts, b"1")
        look = parts.store.look_message_by_offset_async

        async def look_slowly(physical_offset: int) -> StoredMessage | None:
            found = await look(physical_offset)
            monkeypatch.undo()
            await _end(parts, sent, resolution)
            return found

        monkeypatch.setattr(parts.store, "look_message_by_offset_async", look_slowly)
        assert await _check(parts) == 0
        assert await _check(parts) == 0
        assert session.asked == []
        assert len(parts.read(HALF_TOPIC)) == 1
        assert _bodies(parts) == ([b"1"] if resolution is COMMIT else [])
        assert parts.read(DISCARDED) == []


@on_loop
async def test_s80_a_half_message_in_the_body_of_a_message_ends_no_transaction(
    tmp_path: Path,
) -> None:
    """A message body that looks like a half message cannot be used to end a transaction."""
    with producing(tmp_path) as parts:
        sent = await _prepare(parts, b"1")
        for topic in (b"T", b"rmq_sys_wheel_timer"):
            at = parts.store.commit_log.max_offset + FIXED_SIZE
            properties = b"PGROUP\x01g\x02REAL_TOPIC\x01%b\x02REAL_QID\x010\x02" % topic
            forged = encode_record(Message(HALF_TOPIC, b"x", 0, properties), 0, at, 1)
            await parts.send("other", bytes(forged))
            for resolution in (ROLLBACK, COMMIT):
                with pytest.raises(Refused, match="none at"):
                    await parts.transactions.end("g", at, sent.queue_offset, resolution)
                with pytest.raises(Refused, match="none at"):
                    await parts.transactions.end_by_id(
                        topic.decode(), f"{sent.message_id[:16]}{at:016X}", resolution
                    )
        await _end(parts, sent, COMMIT)
        assert _bodies(parts) == [b"1"]
        assert parts.read("rmq_sys_wheel_timer") == []


@on_loop
async def test_by_the_id_of_the_half_message(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        sent = await _prepare(parts, b"1")
        await parts.transactions.end_by_id("T", sent.message_id, COMMIT)
        assert _bodies(parts) == [b"1"]
        other = await parts.send(queue_id=2)
        for message_id, reason in (
            (other.message_id, Reason.SYSTEM_ERROR),
            (other.message_id[:16] + "0000000000FFFFFF", Reason.SYSTEM_ERROR),
            ("?", Reason.INVALID_PARAMETER),
        ):
            with pytest.raises(Refused) as raised:
                await parts.transactions.end_by_id("T", message_id, COMMIT)
            assert raised.value.reason is reason


@on_loop
async def test_a_transaction_of_another_topic_is_not_ended(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        sent = await _prepare(parts, b"1")
        for resolution in (COMMIT, ROLLBACK):
            with pytest.raises(Refused, match="expected one of topic Other, found T"):
                await parts.transactions.end_by_id("Other", sent.message_id, resolution)
        assert _bodies(parts) == []
        await parts.transactions.end_by_id("T", sent.message_id, COMMIT)
        assert _bodies(parts) == [b"1"]


@pytest.mark.parametrize("change", [("other", 0, 0), ("g", 0, 1), ("g", 999_999, 0)])
@on_loop
async def test_ends_of_other_messages_are_refused(
    tmp_path: Path, change: tuple[str, int, int]
) -> None:
    group, physical, queue_offset = change
    with producing(tmp_path) as parts:
        sent = await _prepare(parts)
        with pytest.raises(Refused):
            await parts.transactions.end(
                group, sent.physical_offset + physical, sent.queue_offset + queue_offset, COMMIT
            )
        assert _bodies(parts) == []


@on_loop
async def test_a_producer_is_asked_and_what_it_answers_counts(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        session = Session()
        parts.producers.register("g", session)
        sent = await _prepare(parts, b"1", uniq_key="U")
        assert await _check(parts, 5999) == 0
        assert await _check(parts, 1) == 1
        message, transaction_id, group = session.asked[0]
        assert (message.topic, message.queue_id, bytes(message.body)) == ("T", 2, b"1")
        assert (transaction_id, group, message.get_property("REAL_TOPIC")) == ("U", "g", "T")
        assert message.get_property("TRANSACTION_CHECK_TIMES") == "1"
        renewed = parts.read(HALF_TOPIC)[1]
        assert (message.queue_offset, message.physical_offset) == (1, renewed.physical_offset)
        assert message.offset_message_id == renewed.offset_message_id
        await parts.transactions.end("g", message.physical_offset, message.queue_offset, COMMIT)
        await _end(parts, sent, ROLLBACK)  # by the first place: it is over
        assert _bodies(parts) == [b"1"]
        await parts.transactions.write_ops()
        assert await _check(parts) == 0
        assert len(parts.transactions._table) == 0
        ended = {word for op in parts.read(OP_TOPIC) for word in bytes(op.body).split(b",")}
        assert ended == {b"0", b"1", b""}


@on_loop
async def test_an_end_by_the_first_place_counts_for_the_renewed_message(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.producers.register("g", session := Session())
        sent = await _prepare(parts, b"1")
        await _check(parts)
        await _end(parts, sent, COMMIT)
        assert await _check(parts) == 0
        assert (len(session.asked), _bodies(parts)) == (1, [b"1"])


@pytest.mark.parametrize("place", [0, 1, 2])
@on_loop
async def test_p82_an_earlier_place_ends_a_renewed_transaction_after_a_restart(
    tmp_path: Path, place: int
) -> None:
    """A producer can end a transaction with an earlier location of its half message, even after a
    restart."""
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        sent = [await _prepare(parts, b"%d" % number) for number in range(3)]
        parts.producers.register("g", session := Session())
        await _check(parts)
        await _check(parts)
        await parts.transactions.stop()
        await parts.offsets.persist()
    places = [(one.physical_offset, one.queue_offset) for one in sent]
    places += [(asked.physical_offset, asked.queue_offset) for asked, _, _ in session.asked]
    with producing(tmp_path, clock) as parts:
        await parts.offsets.load()
        await parts.transactions.load()
        for resolution in (COMMIT, ROLLBACK, COMMIT):  # the first one counts
            await parts.transactions.end("g", *places[3 * place], resolution)
        await parts.transactions.end("g", *places[3 * place + 1], ROLLBACK)
        assert (_bodies(parts), len(parts.transactions._table)) == ([b"0"], 1)
        await _check(parts)
        await parts.transactions.end("g", *places[3 * place + 2], COMMIT)
        assert _bodies(parts) == [b"0", b"2"]
        assert await _check(parts) == 0


@on_loop
async def test_after_the_last_check_it_is_discarded(tmp_path: Path) -> None:
    with producing(tmp_path, transaction_check_max=3) as parts:
        parts.producers.register("g", session := Session())
        await _prepare(parts, b"1")
        for _ in range(5):
            await _check(parts)
        times = [asked[0].get_property("TRANSACTION_CHECK_TIMES") for asked in session.asked]
        assert times == ["1", "2", "3"]
        assert (_bodies(parts, DISCARDED, 0), _bodies(parts)) == ([b"1"], [])
        assert len(parts.transactions._table) == 0


@on_loop
async def test_p83_a_commit_after_the_last_check_delivers(tmp_path: Path) -> None:
    """As in Java, a commit after the last check delivers the message."""
    with producing(tmp_path, transaction_check_max=2) as parts:
        sent = [await _prepare(parts, b"%d" % number) for number in range(2)]
        for _ in range(4):
            await _check(parts)
        assert len(parts.read(DISCARDED_TOPIC)) == 2
        await _end(parts, sent[0], ROLLBACK)
        await _end(parts, sent[1], COMMIT)
        await _end(parts, sent[1], COMMIT)
        assert _bodies(parts) == [b"1"]


@on_loop
async def test_p84_late_commits_are_remembered_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker remembers a limited number of late commits. Beyond the limit it may deliver a
    message twice, but loses none."""
    monkeypatch.setattr("tieredstore.broker.transactions.service.MAX_LATE", 2)
    with producing(tmp_path, transaction_check_max=1) as parts:
        sent = [await _prepare(parts, b"%d" % number) for number in range(3)]
        for _ in range(3):
            await _check(parts)
        assert len(parts.read(DISCARDED_TOPIC)) == 3
        for one in (*sent, sent[2], sent[1], sent[0]):
            await _end(parts, one, COMMIT)
        assert _bodies(parts) == [b"0", b"1", b"2", b"0"]
        assert len(parts.transactions._late) == 2


@on_loop
async def test_p84_a_transaction_is_identified_by_few_bytes(tmp_path: Path) -> None:
    """The broker identifies a transaction by a few bytes, even if the client's key has 15 KB."""
    with producing(tmp_path) as parts:
        for name in ("U" * 15_000, "V"):
            await _prepare(parts, uniq_key=name, properties={"PGROUP": "g"})
        await _prepare(parts, uniq_key="V", properties={"PGROUP": "gV"})
        keys = {identify(half) for half in parts.read(HALF_TOPIC)}
    assert sorted(map(len, keys)) == [16, 16, 16]


@on_loop
async def test_p84_ended_transactions_are_not_kept_while_one_is_open(tmp_path: Path) -> None:
    """Ended transactions are released from memory while another one stays open."""
    with producing(tmp_path) as parts:
        table = parts.transactions._table
        immune = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"}
        first = await _prepare(parts, b"0", properties=immune)
        for number in range(1, 9):
            await _end(parts, await _prepare(parts, b"%d" % number), COMMIT)
            await parts.transactions.write_ops()
            await _check(parts, 0)
        assert table._ended == set()
        assert len(table) == 1
        await _end(parts, first, COMMIT)
        assert sorted(_bodies(parts)) == [b"%d" % number for number in range(9)]


@on_loop
async def test_one_that_was_discarded_is_asked_about_again(tmp_path: Path) -> None:
    with producing(tmp_path, transaction_check_max=1) as parts:
        session = Session()
        parts.producers.register("g", session)
        await _prepare(parts)
        for _ in range(3):
            await _check(parts)
        (discarded,) = parts.read(DISCARDED)
        asked = len(session.asked)
        await parts.transactions.resume(discarded.offset_message_id)
        assert await _check(parts) == 1
        assert len(session.asked) == asked + 1
        half = parts.read(HALF_TOPIC)[0]
        with pytest.raises(Refused, match=HALF_TOPIC):
            await parts.transactions.resume(half.offset_message_id)


@on_loop
async def test_immunity_is_the_producer_s_to_choose(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.producers.register("g", session := Session())
        await _prepare(parts, properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
        assert await _check(parts, 59_999) == 0
        assert await _check(parts, 1) == 1
        assert await _check(parts) == 1
        assert len(session.asked) == 2


@on_loop
async def test_without_a_producer_it_waits(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await _prepare(parts, b"1")
        assert await _check(parts) == 0
        parts.producers.register("g", session := Session())
        assert await _check(parts) == 1
        assert session.asked[0][0].get_property("TRANSACTION_CHECK_TIMES") == "2"


@on_loop
async def test_a_restart_knows_what_is_open(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        sent = [await _prepare(parts, b"%d" % number) for number in range(40)]
        for number in range(0, 40, 2):
            await _end(parts, sent[number], COMMIT)
        await parts.transactions.stop()
        await parts.offsets.persist()
    with producing(tmp_path, clock) as parts:
        await parts.offsets.load()
        await parts.transactions.load()
        parts.producers.register("g", session := Session())
        assert await _check(parts) == 20
        asked = sorted(int(bytes(message.body)) for message, _, _ in session.asked)
        assert asked == list(range(1, 40, 2))
        for message, _, _ in session.asked:
            await parts.transactions.end("g", message.physical_offset, message.queue_offset, COMMIT)
        await parts.transactions.stop()
        await parts.offsets.persist()
        assert sorted(map(int, _bodies(parts))) == list(range(40))
    with producing(tmp_path, clock) as parts:
        await parts.offsets.load()
        await parts.transactions.load()
        assert (await _check(parts), len(parts.transactions._table)) == (0, 0)
        # Both queues are done with, up to their ends.
        assert parts.offsets.query_offset(GROUP, HALF_TOPIC, 0) == 60
        assert parts.offsets.query_offset(GROUP, OP_TOPIC, 0) == len(parts.read(OP_TOPIC))


@on_loop
async def test_killed_between_commit_and_op_it_is_asked_about_and_never_lost(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        await _end(parts, await _prepare(parts, b"1"), COMMIT)
        assert parts.read(OP_TOPIC) == []
        await parts.offsets.persist()
    with producing(tmp_path, clock) as parts:
        await parts.offsets.load()
        await parts.transactions.load()
        parts.producers.register("g", session := Session())
        assert await _check(parts) == 1
        message = session.asked[0][0]
        await parts.transactions.end("g", message.physical_offset, message.queue_offset, COMMIT)
        assert _bodies(parts) == [b"1", b"1"]


@on_loop
async def test_killed_before_the_offsets_are_written_what_has_ended_stays_ended(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        sent = [await _prepare(parts, b"%d" % number) for number in range(3)]
        await _end(parts, sent[0], COMMIT)
        await _end(parts, sent[2], ROLLBACK)
        await parts.transactions.write_ops()
    with producing(tmp_path, clock) as parts:  # its consumerOffset.json was never written
        await parts.offsets.load()
        await parts.transactions.load()
        parts.producers.register("g", session := Session())
        assert await _check(parts) == 1
        assert bytes(session.asked[0][0].body) == b"1"


@on_loop
async def test_a_commit_that_the_store_does_not_take_leaves_it_open(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        sent = await _prepare(parts, b"1")
        is_busy = True
        busy = PutMessageResult(PutMessageStatus.OS_PAGE_CACHE_BUSY, -1, -1, 0, 0, 0, DURABLE)
        parts.store.add_put_message_hook(lambda _: busy if is_busy else None)
        with pytest.raises(Refused) as raised:
            await _end(parts, sent, COMMIT)
        assert raised.value.reason is Reason.SYSTEM_BUSY
        assert await _check(parts) == 0  # nor is the question possible now
        is_busy = False
        await _end(parts, sent, COMMIT)
        assert _bodies(parts) == [b"1"]


@on_loop
async def test_a_committed_message_with_a_delay_comes_later(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        sent = await _prepare(parts, b"1", properties={"DELAY": "1"})
        await _end(parts, sent, COMMIT)
        assert _bodies(parts) == []
        parts.clock.advance(1000)
        parts.store.wait_until_dispatched()
        assert await parts.schedule.deliver_due() == 1
        assert _bodies(parts) == [b"1"]


@on_loop
async def test_p30_a_committed_message_gets_a_queue_that_its_topic_still_has(
    tmp_path: Path,
) -> None:
    with producing(tmp_path) as parts:
        sent = await _prepare(parts)
        parts.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
        )
        await _end(parts, sent, COMMIT)
        assert _bodies(parts, queue_id=0) == [b"body"]


@on_loop
async def test_c02_a_jump_of_the_clock_discards_no_transaction_and_none_waits_for_years(
    tmp_path: Path,
) -> None:
    years_ms = 10 * 365 * 86_400_000
    with producing(tmp_path) as parts:
        session = Session()
        parts.producers.register("g", session)
        await _prepare(parts, b"1")
        parts.clock.set(START_MS + years_ms)
        await _prepare(parts, b"2")
        await _check(parts, 0)
        parts.clock.set(START_MS)
        await _check(parts)
        assert {bytes(message.body) for message, _, _ in session.asked} == {b"1", b"2"}
        assert _bodies(parts, DISCARDED, 0) == []


@on_loop
async def test_half_messages_can_be_refused(tmp_path: Path) -> None:
    with (
        producing(tmp_path, reject_transaction_message=True) as parts,
        pytest.raises(Refused) as raised,
    ):
        await _prepare(parts)
    assert raised.value.reason is Reason.NO_PERMISSION


def test_op_messages_are_split_at_their_limit() -> None:
    offsets = list(range(10_000, 11_000))
    message, count = make_op(offsets, START_MS)
    assert len(message.body) <= 4096 < len(message.body) + 6
    assert [int(word) for word in bytes(message.body).split(b",")[:-1]] == offsets[:count]


@on_loop
async def test_p81_a_producer_keeps_no_transaction_open_for_years(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await _prepare(parts, properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "999999999"})
        await _end(parts, await _prepare(parts), COMMIT)
        await parts.transactions.write_ops()
        retention_ms = 72 * 3_600_000
        await _check(parts, retention_ms - 1)
        assert len(parts.transactions._table) == 1
        await _check(parts, 2)
        assert len(parts.transactions._table) == 0
        assert _bodies(parts, DISCARDED, 0) == [b"body"]
        await parts.transactions.write_ops()
        assert parts.offsets.query_offset(GROUP, HALF_TOPIC, 0) == 2


def _has_end(parts: Producing, topic: str, end: int) -> bool:
    return parts.store.next_offset(topic, 0) == end


@on_loop
async def test_checks_of_many_transactions_share_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions that are checked together share one flush. Producers are asked only about
    messages on disk."""
    syncs = HeldSyncs(monkeypatch)
    store = {"flush_disk_type": "SYNC_FLUSH"}
    with producing(tmp_path, store=store, transaction_check_max=1) as parts:
        session = Session()
        parts.producers.register("g", session)
        await asyncio.gather(*(_prepare(parts, b"%d" % number) for number in range(60)))
        for topic, end, asked in ((HALF_TOPIC, 120, 60), (DISCARDED, 60, 0)):
            syncs.hold()
            check = asyncio.create_task(_check(parts))
            is_put = partial(_has_end, parts, topic, end)
            await asyncio.to_thread(wait_for, is_put)
            assert len(session.asked) == 60 - asked
            syncs.release()
            assert await check == asked
        assert len(parts.read(DISCARDED)) == 60
