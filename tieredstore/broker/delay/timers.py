"""TimerMessageService: delivers messages with a delivery time of their own.

The timer topic holds the messages, with their delivery time (TIMER_OUT_MS) and real topic. Delivery
times are kept in memory and read from the topic again at each start.
`config/tieredstoreTimers.json` holds the queue offset at which that read begins, and the time
before which all messages were delivered. It is written after the deliveries. A crash may therefore
repeat messages but loses none.

A Java broker ignores `tieredstoreTimers.json` and uses `timerwheel`, `timerlog/` and
`config/timercheck`. If `tieredstoreTimers.json` does not exist, `timercheck` is read. A message due
more than two days after it was stored is put into the topic again, so that it does not expire."""

from __future__ import annotations

import asyncio
import heapq
import logging
import struct
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiofiles
import msgspec

from tieredstore.broker.delay.hook import TIMER_PRECISION_MS, DelayHook
from tieredstore.broker.delay.service import BATCH, MAX_BATCH_BYTES, DeliveryService, read_own_queue
from tieredstore.broker.send.door import was_sent_by_client
from tieredstore.broker.send.fitting import make_recall_key
from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import (
    GetMessageStatus,
    GetRequest,
    HostedStore,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.message.names import TIMER_TOPIC
from tieredstore.message.record import StoredMessage
from tieredstore.skipped_records import SkippedRecords


class TimerSlots:
    """Queue offsets of waiting messages by delivery time (the slot, epoch ms). Takes 8 bytes of
    memory per message, plus the slots."""

    def __init__(self) -> None:
        self._slots: dict[int, array[int]] = {}
        self._times: list[int] = []
        self._recalled: dict[int, set[tuple[str, str]]] = {}

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._slots.values())

    def add(self, slot_ms: int, offset: int) -> None:
        """Add a message. Within a slot, offsets must be added in ascending order."""
        offsets = self._slots.get(slot_ms)
        if offsets is None:
            offsets = self._slots[slot_ms] = array("q")
            heapq.heappush(self._times, slot_ms)
        offsets.append(offset)

    def add_recall(self, slot_ms: int, topic: str, key: str) -> None:
        """Mark a message of a slot as recalled. `topic`: its real topic. `key`: its unique key in
        that topic."""
        self._recalled.setdefault(slot_ms, set()).add((topic, key))

    def is_recalled(self, slot_ms: int, topic: str, key: str) -> bool:
        return (topic, key) in self._recalled.get(slot_ms, ())

    def find_first(self) -> tuple[int, array[int]] | None:
        """Return the earliest slot and its offsets, or None."""
        return (self._times[0], self._slots[self._times[0]]) if self._times else None

    def remove(self, slot_ms: int) -> None:
        """Remove the earliest slot."""
        earliest_ms = heapq.heappop(self._times)
        assert earliest_ms == slot_ms, (earliest_ms, slot_ms)
        del self._slots[slot_ms]
        self._recalled.pop(slot_ms, None)

    def find_lowest_offset(self, until_ms: int | None = None) -> int | None:
        """Return the lowest queue offset in all slots, or only in the slots up to a time. Returns
        None if there are no messages."""
        if until_ms is not None and not (self._times and self._times[0] <= until_ms):
            return None
        return min(
            (
                offsets[0]
                for slot_ms, offsets in self._slots.items()
                if until_ms is None or slot_ms <= until_ms
            ),
            default=None,
        )


ROLL_WINDOW_MS: Final = 172_800_000
"""Java's timerRollWindowSlot in ms: two days."""
_CHECKPOINT: Final = struct.Struct(">qqq")
"""Header of Java's timercheck file: last read time in ms, position in Java's timer log, queue
offset in the timer topic."""
_log = logging.getLogger(__name__)


class _State(msgspec.Struct, kw_only=True, rename="camel"):
    first_offset: int
    next_offset: int
    delivered_until_ms: int
    data_version: DataVersion | None = None


class TimerProgress(ConfigManager):
    """Progress in the timer topic, in `config/tieredstoreTimers.json`. All messages below
    `first_offset` were delivered. Messages below `next_offset` were delivered if their slot is at
    most `delivered_until_ms`."""

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "tieredstoreTimers.json", clock)
        self.next_offset = 0
        self.delivered_until_ms = 0
        self.first_offset = 0
        self.position: int | None = None
        """Queue offset up to which this process has read the timer topic."""
        self.slots = TimerSlots()

    async def load(self) -> None:
        """Read the file. If it does not exist, read the progress of a Java broker."""
        await super().load()
        if self.first_offset or self.next_offset:
            return
        with suppress(FileNotFoundError):
            async with aiofiles.open(self.path.with_name("timercheck"), "rb") as file:
                data = await file.read(_CHECKPOINT.size)
            if len(data) == _CHECKPOINT.size:
                read_ms, _, offset = _CHECKPOINT.unpack(data)
                self.next_offset, self.delivered_until_ms = offset, read_ms - TIMER_PRECISION_MS

    def list_fields(self) -> dict[str, object]:
        lowest = self.slots.find_lowest_offset()
        # Messages that came late for their slot are not delivered yet, though their slot is.
        late = self.slots.find_lowest_offset(self.delivered_until_ms)
        return {
            "firstOffset": self.find_position() if lowest is None else lowest,
            "nextOffset": self.next_offset if late is None else min(late, self.next_offset),
            "deliveredUntilMs": self.delivered_until_ms,
            "dataVersion": self.data_version,
        }

    def find_position(self) -> int:
        """Return the offset of the next message to read in the timer topic."""
        return self.first_offset if self.position is None else self.position

    def decode(self, data: bytes) -> None:
        state = msgspec.json.decode(data, type=_State)
        self.first_offset = state.first_offset
        self.next_offset = state.next_offset
        self.delivered_until_ms = state.delivered_until_ms
        self.data_version = state.data_version or DataVersion()


class TimerMessageService(DeliveryService):
    """Delivers timer messages. Before `start`, load `progress` and register it with the persist
    service."""

    def __init__(
        self,
        store: HostedStore,
        hook: DelayHook,
        config_folder: Path,
        clock: Clock = SYSTEM_CLOCK,
        skipped: SkippedRecords | None = None,
    ) -> None:
        super().__init__(store, hook, clock, skipped)
        self.progress = TimerProgress(config_folder, clock)
        self.delivered = 0  # since the start

    @property
    def unread(self) -> int:
        """Number of messages in the timer topic that were not read yet."""
        end = self._store.get_max_offset_in_queue(TIMER_TOPIC, 0)
        return max(end - self.progress.find_position(), 0)

    @property
    def late_ms(self) -> int:
        """Time by which the earliest message is overdue, in ms."""
        first = self.progress.slots.find_first()
        return 0 if first is None else max(self._clock.now_ms() - first[0], 0)

    def forget_lost(self) -> None:
        end = self._store.get_max_offset_in_queue(TIMER_TOPIC, 0)
        progress = self.progress
        if progress.next_offset > end:
            progress.next_offset = end
            progress.first_offset = min(progress.first_offset, end)
            progress.mark_changed(is_new_version=False)

    async def deliver_due(self) -> int:
        """Read new messages from the timer topic and deliver due ones. Returns the number of
        deliveries. Raises Unavailable if the store is refusing messages."""
        await self._read_topic()
        count = 0
        slots = self.progress.slots
        while (first := slots.find_first()) is not None and first[0] <= self._clock.now_ms():
            slot_ms, offsets = first
            count += await self._deliver_slot(slot_ms, offsets)
            slots.remove(slot_ms)
            progress = self.progress
            progress.delivered_until_ms = max(progress.delivered_until_ms, slot_ms)
            progress.mark_changed(is_new_version=False)
        self.delivered += count
        return count

    async def _read_topic(self) -> None:
        progress = self.progress
        while (position := progress.find_position()) != self._store.get_max_offset_in_queue(
            TIMER_TOPIC, 0
        ):
            if not await self._read_batch(position):
                return
            await asyncio.sleep(0)  # let others run

    async def _read_batch(self, position: int) -> bool:
        """Read a batch of messages, starting at an offset of the timer topic. Returns whether there
        were any."""
        progress = self.progress
        result = await read_own_queue(
            self._store, GetRequest(TIMER_TOPIC, 0, position, BATCH, MAX_BATCH_BYTES)
        )
        if result.status is GetMessageStatus.FOUND:
            for message in result.messages:
                self._add(message)
        elif result.next_begin_offset == position:
            return False
        progress.position = next_offset = result.next_begin_offset
        # Messages beyond the end were lost with the log, and their offsets are reused.
        is_lost = next_offset < position
        progress.next_offset = next_offset if is_lost else max(progress.next_offset, next_offset)
        progress.mark_changed(is_new_version=False)
        return True

    def _add(self, message: StoredMessage) -> None:
        offset = message.queue_offset
        if was_sent_by_client(message.properties_bytes):  # its recall does not count either
            self._delivery.skip(message, "a client sent it to this topic")
            return
        slot_ms = _find_slot_ms(message)
        if slot_ms is None:
            self._delivery.skip(message, "it has no time")
            return
        progress = self.progress
        if offset < progress.next_offset and slot_ms <= progress.delivered_until_ms:
            return  # delivered by an earlier process
        progress.slots.add(slot_ms, offset)
        recalled = message.get_property("TIMER_DEL_UNIQKEY")
        if recalled is not None:
            progress.slots.add_recall(slot_ms, _find_real_topic(message), recalled)

    async def _deliver_slot(self, slot_ms: int, offsets: array[int]) -> int:
        """Deliver the messages of a slot, except recalled ones. Raises Unavailable if the store is
        refusing messages. The next call then continues with the refused message."""
        count = done = 0
        last: PutMessageResult | None = None
        try:
            for offset in list(offsets):
                message = await self._read(offset)
                if message is not None:
                    result = self._deliver(slot_ms, message)
                    count += result is not None
                    last = result or last
                done += 1
                if not done % BATCH:
                    await asyncio.sleep(0)
        finally:
            if last is not None:
                await wait_until_durable(last)
            del offsets[: min(done, len(offsets) - 1)]
        return count

    def _deliver(self, slot_ms: int, message: StoredMessage) -> PutMessageResult | None:
        if _find_out_ms(message) != slot_ms:
            self._delivery.put(message, TIMER_TOPIC, 0)
            return None
        if message.get_property("TIMER_DEL_UNIQKEY") is not None:
            return None
        topic = _find_real_topic(message)
        key = make_recall_key(topic, message.uniq_key or "")
        if self.progress.slots.is_recalled(slot_ms, topic, key):
            return None
        return self._delivery.deliver(message)

    async def _read(self, offset: int) -> StoredMessage | None:
        """Return a message of the timer topic. If it was deleted, log an error and return None."""
        result = await read_own_queue(self._store, GetRequest(TIMER_TOPIC, 0, offset, 1))
        if result.messages and result.messages[0].queue_offset == offset:
            return result.messages[0]
        _log.error("%s/0 at %d: lost: %s", TIMER_TOPIC, offset, result.status.name)
        return None


def _find_real_topic(message: StoredMessage) -> str:
    return message.get_property("REAL_TOPIC") or ""


def _find_out_ms(message: StoredMessage) -> int | None:
    text = message.get_property("TIMER_OUT_MS")
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return int(text)


def _find_slot_ms(message: StoredMessage) -> int | None:
    """Return the time (epoch ms) at which a message leaves the timer topic: its delivery time, or
    at most ROLL_WINDOW_MS after its store time. After that window, the message is put into the
    timer topic again. Returns None if the message has no delivery time."""
    out_ms = _find_out_ms(message)
    if out_ms is None:
        return None
    roll_ms = message.store_timestamp_ms + ROLL_WINDOW_MS
    return min(out_ms, roll_ms // TIMER_PRECISION_MS * TIMER_PRECISION_MS)
