"""ScheduleMessageService: delivers messages with a delay level. Each level has a queue in
SCHEDULE_TOPIC_XXXX whose messages become due in order. `config/delayOffset.json` holds the progress
of each level and is written after the deliveries. A crash may therefore repeat messages but loses
none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.broker.delay.hook import TIMER_MAX_DELAY_MS, DelayHook
from tieredstore.broker.delay.service import BATCH, MAX_BATCH_BYTES, DeliveryService, read_own_queue
from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import (
    GetMessageStatus,
    GetRequest,
    HostedStore,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.errors import TieredStoreError
from tieredstore.message.names import SCHEDULE_TOPIC
from tieredstore.message.record import StoredMessage
from tieredstore.skipped_records import SkippedRecords

_MIN_TIME_MS: Final = 1 << 32
"""Smallest tags code that can be a delivery time. Smaller values are hashes of tags, or positions
in a consume queue extension file."""


class _Table(msgspec.Struct, kw_only=True, rename="camel"):
    offset_table: dict[int, int]
    data_version: DataVersion | None = None


class ScheduleOffsets(ConfigManager):
    """Queue offset of the next message to deliver on each level, in `config/delayOffset.json`."""

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "delayOffset.json", clock)
        self._offsets: dict[int, int] = {}

    def find_offset(self, level: int) -> int | None:
        """Return the offset of the next message to deliver on a level, or None if nothing was
        delivered yet."""
        return self._offsets.get(level)

    def list_offsets(self) -> list[tuple[int, int]]:
        """Return the levels with deliveries and their offsets."""
        return sorted(self._offsets.items())

    def set_offset(self, level: int, offset: int) -> None:
        """Record that all messages of a level before an offset were delivered."""
        if self._offsets.get(level) != offset:
            self._offsets[level] = offset
            self.mark_changed()

    def list_fields(self) -> dict[str, object]:
        return {"offsetTable": self._offsets, "dataVersion": self.data_version}

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        self._offsets = dict(table.offset_table)
        self.data_version = table.data_version or DataVersion()


class ScheduleMessageService(DeliveryService):
    """Delivers the messages of all levels. Before `start`, load `offsets` and register it with the
    persist service."""

    def __init__(
        self,
        store: HostedStore,
        hook: DelayHook,
        delays_ms: Sequence[int],
        config_folder: Path,
        clock: Clock = SYSTEM_CLOCK,
        skipped: SkippedRecords | None = None,
    ) -> None:
        super().__init__(store, hook, clock, skipped)
        self.offsets = ScheduleOffsets(config_folder, clock)
        self._delays_ms = {
            key.queue_id + 1: TIMER_MAX_DELAY_MS  # of levels that the broker had before
            for key in store.dispatch_source.queues()
            if key.topic == SCHEDULE_TOPIC
        } | dict(enumerate(delays_ms, start=1))
        self._due_ms: dict[int, int] = {}  # of the next message of a level, if known

    def forget_lost(self) -> None:
        for level in self._delays_ms:
            end = self._store.get_max_offset_in_queue(SCHEDULE_TOPIC, level - 1)
            if (self.offsets.find_offset(level) or 0) > end:
                self.offsets.set_offset(level, end)

    async def deliver_due(self) -> int:
        """Deliver due messages and return how many. If a level cannot be read or the store refuses
        a message, the other levels continue. Raises the first error at the end."""
        count = 0
        failure: TieredStoreError | None = None
        for level, delay_ms in self._delays_ms.items():
            due_ms = self._due_ms.get(level)
            if due_ms is not None and self._clock.now_ms() < due_ms <= (
                self._clock.now_ms() + delay_ms
            ):
                continue
            try:
                while delivered := await self._deliver_batch(level, delay_ms):
                    count += delivered
                    await asyncio.sleep(0)  # let others run
            except TieredStoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return count

    async def _deliver_batch(self, level: int, delay_ms: int) -> int:
        """Deliver the next batch of messages on a level. Returns how many offsets were processed,
        or 0 if nothing is due. Raises Unavailable if the store is refusing messages."""
        queue_id = level - 1
        maximum = self._store.get_max_offset_in_queue(SCHEDULE_TOPIC, queue_id)
        start = self.offsets.find_offset(level)
        if start is None:
            start = self._store.get_min_offset_in_queue(SCHEDULE_TOPIC, queue_id)
        if start == maximum:
            return 0
        request = GetRequest(SCHEDULE_TOPIC, queue_id, start, BATCH, MAX_BATCH_BYTES)
        result = await read_own_queue(self._store, request)
        if result.status is not GetMessageStatus.FOUND:
            # Before the first, after the last, in a deleted file, or damaged.
            return self._go_on(level, start, result.next_begin_offset)
        offset = start
        last: PutMessageResult | None = None
        try:
            for message in result.messages:
                due_ms = self._find_due_ms(message, delay_ms)
                if due_ms > self._clock.now_ms():
                    self._due_ms[level] = due_ms
                    break
                last = self._delivery.deliver(message) or last
                offset = message.queue_offset + 1
            else:
                self._due_ms.pop(level, None)
        finally:
            if last is not None:
                await wait_until_durable(last)
            self._go_on(level, start, offset)
        return offset - start

    def _go_on(self, level: int, start: int, offset: int) -> int:
        if offset != start:
            self.offsets.set_offset(level, offset)
        return abs(offset - start)

    def _find_due_ms(self, message: StoredMessage, delay_ms: int) -> int:
        due_ms = message.tags_code
        if due_ms < _MIN_TIME_MS:
            due_ms = message.store_timestamp_ms + delay_ms
        now_ms = self._clock.now_ms()
        # The levels were longer, or the clock was ahead: no message waits longer than its level.
        return now_ms if due_ms > now_ms + delay_ms else due_ms
