"""TimerMessageService: messages with a time of their own are delivered at it.

They lie in the timer topic, each with its time (TIMER_OUT_MS) and its real topic. Which are due
when is kept in memory and read again from the topic at the start; `config/tieredstoreTimers.json`
says from where on, and up to when all was delivered. It is written after what was delivered: after
a crash some messages come again, none is left out. A Java broker ignores that file and keeps
`timerwheel`, `timerlog/` and `config/timercheck` of its own; of these the last one is read, where
there is no file of ours yet.

A message that is due more than two days after it was stored is put into the topic again then, so
that retention does not take it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiofiles
import msgspec

from tieredstore.broker.delay.hook import TIMER_PRECISION_MS
from tieredstore.broker.delay.service import BATCH, MAX_BATCH_BYTES, DeliveryService
from tieredstore.broker.delay.timer_slots import TimerSlots
from tieredstore.broker.own_queues import read_own_queue
from tieredstore.broker.send.recall_handles import make_recall_key
from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import (
    GetMessageStatus,
    GetRequest,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.message.names import TIMER_TOPIC

if TYPE_CHECKING:
    from tieredstore.broker.delay.hook import DelayHook
    from tieredstore.contracts.message_store import HostedStore
    from tieredstore.message.record import StoredMessage

ROLL_WINDOW_MS: Final = 172_800_000
"""Java's timerRollWindowSlot, two days."""
_CHECKPOINT: Final = struct.Struct(">qqq")
"""Head of Java's timercheck: last read time in ms, position in its timer log, offset in the timer
topic."""
_log = logging.getLogger(__name__)


class _State(msgspec.Struct, kw_only=True, rename="camel"):
    first_offset: int
    next_offset: int
    delivered_until_ms: int
    data_version: DataVersion | None = None


class TimerProgress(ConfigManager):
    """How far the timer topic was read and delivered, in `config/tieredstoreTimers.json`.

    Of the messages below next_offset all with slots up to delivered_until_ms are delivered, and all
    below first_offset whatever their slots.
    """

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "tieredstoreTimers.json", clock)
        self.next_offset = 0
        self.delivered_until_ms = 0
        self.first_offset = 0
        self.slots = TimerSlots()

    async def load(self) -> None:
        """Read the file; where there is none, what a Java broker says of its own timers."""
        await super().load()
        if self.first_offset or self.next_offset:
            return
        with suppress(FileNotFoundError):
            async with aiofiles.open(self.path.with_name("timercheck"), "rb") as file:
                data = await file.read(_CHECKPOINT.size)
            if len(data) == _CHECKPOINT.size:
                read_ms, _, offset = _CHECKPOINT.unpack(data)
                self.next_offset, self.delivered_until_ms = offset, read_ms - TIMER_PRECISION_MS

    def encode(self) -> bytes:
        lowest = self.slots.find_lowest_offset()
        # Messages that came late for their slot are not delivered yet, though their slot is.
        late = self.slots.find_lowest_offset(self.delivered_until_ms)
        state = _State(
            first_offset=self.next_offset if lowest is None else lowest,
            next_offset=self.next_offset if late is None else min(late, self.next_offset),
            delivered_until_ms=self.delivered_until_ms,
            data_version=self.data_version,
        )
        return msgspec.json.format(msgspec.json.encode(state), indent=1)

    def decode(self, data: bytes) -> None:
        state = msgspec.json.decode(data, type=_State)
        self.first_offset = state.first_offset
        self.next_offset = state.next_offset
        self.delivered_until_ms = state.delivered_until_ms
        self.data_version = state.data_version or DataVersion()


class TimerMessageService(DeliveryService):
    """Delivers timer messages. `progress` is to be loaded before `start`, and registered with the
    persist service."""

    def __init__(
        self,
        store: HostedStore,
        hook: DelayHook,
        config_folder: Path,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(store, hook, clock)
        self.progress = TimerProgress(config_folder, clock)
        self._position: int | None = None  # up to where the topic was read in this process

    async def deliver_due(self) -> int:
        """Read what is new in the timer topic and deliver what is due now; returns how many
        messages were delivered. Raises Unavailable when the store takes none now."""
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
        return count

    async def _read_topic(self) -> None:
        """Read the messages that are new in the topic."""
        if self._position is None:
            self._position = self.progress.first_offset
        while self._position != self._store.get_max_offset_in_queue(TIMER_TOPIC, 0):
            if not await self._read_batch(self._position):
                return
            await asyncio.sleep(0)  # others have their turn

    async def _read_batch(self, position: int) -> bool:
        """Read some messages from an offset on; tells whether there was anything."""
        progress = self.progress
        result = await read_own_queue(
            self._store, GetRequest(TIMER_TOPIC, 0, position, BATCH, MAX_BATCH_BYTES)
        )
        if result.status is GetMessageStatus.FOUND:
            for message in result.messages:
                self._add(message)
        elif result.next_begin_offset == position:
            return False
        self._position = result.next_begin_offset
        # What lies behind the end was lost with the log; its offsets are given anew.
        is_lost = self._position < position
        progress.next_offset = (
            self._position if is_lost else max(progress.next_offset, self._position)
        )
        progress.mark_changed(is_new_version=False)
        return True

    def _add(self, message: StoredMessage) -> None:
        offset = message.queue_offset
        slot_ms = _find_slot_ms(message)
        if slot_ms is None:
            _log.error("%s/0 at %d: dropped: it has no time", TIMER_TOPIC, offset)
            return
        progress = self.progress
        if offset < progress.next_offset and slot_ms <= progress.delivered_until_ms:
            return  # delivered by an earlier process
        progress.slots.add(slot_ms, offset)
        recalled = message.get_property("TIMER_DEL_UNIQKEY")
        if recalled is not None:
            progress.slots.add_recall(slot_ms, recalled)

    async def _deliver_slot(self, slot_ms: int, offsets: array[int]) -> int:
        """Deliver the messages of one slot, but for those that were recalled. Raises Unavailable
        when the store takes nothing now; what was delivered then does not come again."""
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
        if self.progress.slots.is_recalled(slot_ms, _make_recall_key(message)):
            return None
        return self._delivery.deliver(message)

    async def _read(self, offset: int) -> StoredMessage | None:
        """A message of the topic; None when it is gone, which is told."""
        result = await read_own_queue(self._store, GetRequest(TIMER_TOPIC, 0, offset, 1))
        if result.messages and result.messages[0].queue_offset == offset:
            return result.messages[0]
        _log.error("%s/0 at %d: lost: %s", TIMER_TOPIC, offset, result.status.name)
        return None


def _make_recall_key(message: StoredMessage) -> str:
    return make_recall_key(message.get_property("REAL_TOPIC") or "", message.uniq_key or "")


def _find_out_ms(message: StoredMessage) -> int | None:
    """The time of delivery."""
    text = message.get_property("TIMER_OUT_MS")
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return int(text)


def _find_slot_ms(message: StoredMessage) -> int | None:
    """When to look at a message: at its time of delivery, or to put it into the topic again."""
    out_ms = _find_out_ms(message)
    if out_ms is None:
        return None
    roll_ms = message.store_timestamp_ms + ROLL_WINDOW_MS
    return min(out_ms, roll_ms // TIMER_PRECISION_MS * TIMER_PRECISION_MS)
