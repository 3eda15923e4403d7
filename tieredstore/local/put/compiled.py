"""Puts plain messages by the compiled core, which checks, encodes and copies them in one call; what
it declines goes the way in Python (`docs/adr/0007-compiled-core.md`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tieredstore.contracts.message_store import DURABLE, PutMessageResult, PutMessageStatus
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.rows import waits_for_nothing
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.encoding import Message

if IS_COMPILED:
    from tieredstore.message import _core

_OK: Final = PutMessageStatus.PUT_OK
_NEXT_OFFSET: Final = ("next_offset",)


class CompiledAppender(MessageAppender):
    """A `MessageAppender` whose plain messages are written by the compiled core. Lock, clock and
    state stay here."""

    def put(self, message: Message) -> PutMessageResult:
        try:
            plain = self._plain[message.topic, message.queue_id]
        except KeyError:
            return self._put_general(message)
        state = plain[0]
        with self._lock:
            timestamp = self._now_ms()
            if timestamp < self.last_timestamp_ms:  # noqa: PLR1730 - max() takes longer
                timestamp = self.last_timestamp_ms
            log = self._log
            position = log.max_offset
            queue_offset = state.next_offset
            start = log.view_from
            try:
                appended = _core.append_record(
                    log.view,
                    position - start,
                    log.limit - start,
                    plain[6],
                    self._max_plain_body_bytes,
                    message,
                    queue_offset,
                    position,
                    timestamp,
                    state.number,
                )
            except MemoryError:
                appended = None  # the way in Python answers it
            if appended is not None and appended[0] > log.limit:
                appended = None  # the file was cut off meanwhile, as the way in Python says
            if appended is not None:
                end, row = appended
                # What `_publish` does, without the call.
                next_offset = queue_offset + 1
                rows = self._rows
                rows += row
                log.max_offset = end
                state.next_offset = next_offset
                self.last_timestamp_ms = timestamp
                durable = self.durability
                if self._is_idle:
                    self._is_idle = False
                    _ = 0 in self._wakes
        if appended is None:
            return super().put(message)
        if len(rows) > self._help_values:
            self._help_after(end - position)
        if durable is not DURABLE and waits_for_nothing(row[2]):
            durable = DURABLE
        return PutMessageResult(
            _OK, position, queue_offset, end - position, 1, timestamp, durable, "", True
        )

    def put_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        plain = self._plain.get((messages[0].topic, messages[0].queue_id)) if messages else None
        if plain is None:
            return super().put_batch(messages)
        state = plain[0]
        with self._lock:
            timestamp = max(self._now_ms(), self.last_timestamp_ms)
            log = self._log
            position = log.max_offset
            queue_offset = state.next_offset
            start = log.view_from
            try:
                appended = _core.append_records(
                    log.view,
                    position - start,
                    log.limit - start,
                    plain[6],
                    self._max_plain_body_bytes,
                    messages,
                    queue_offset,
                    position,
                    timestamp,
                    state.number,
                    state.topic,
                )
            except MemoryError:
                appended = None  # the way in Python answers it
            if appended is not None and appended[0] > log.limit:
                appended = None
            if appended is not None:
                end, rows = appended
                moves = map(setattr, (state,), _NEXT_OFFSET, (queue_offset + len(messages),))
                durable = self._durability_of(messages)
                waiting = self._publish(rows, end, timestamp, moves)
        if appended is None:
            return super().put_batch(messages)
        if waiting > self._help_values:
            self._help_after(end - position)
        return PutMessageResult(
            _OK,
            position,
            queue_offset,
            end - position,
            len(messages),
            timestamp,
            durable,
            "",
            True,
        )


def find_appender_class() -> type[MessageAppender]:
    """Return the class of the appenders of this process."""
    return CompiledAppender if IS_COMPILED else MessageAppender
