"""Puts of plain messages by the compiled core, which checks, encodes and copies a message in one
call. Other messages use the Python version (`docs/adr/0007-compiled-core.md`)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from tieredstore.clock import SystemClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.queues import QueueState
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.encoding import Message

if IS_COMPILED:
    from tieredstore.message import _core

_OK: Final = PutMessageStatus.PUT_OK
_NEXT_OFFSET: Final = ("next_offset",)


class CompiledAppender(MessageAppender):
    """`MessageAppender` that puts plain messages with the compiled core. Lock, clock and state stay
    in Python."""

    if IS_COMPILED:
        # `put_in_python` handles the messages that the core declines.
        put = _core.put_message  # type: ignore[assignment]

    put_in_python = MessageAppender.put

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
                appended = None  # the Python version handles it
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
            _OK, position, queue_offset, end - position, len(messages), timestamp, durable, "", True
        )


if IS_COMPILED:
    # The core puts nothing until it has addresses that it can read. Python does all the work until
    # then.
    with contextlib.suppress(TypeError):
        _core.configure_puts(
            MessageAppender,
            CommitLog,
            QueueState,
            PutMessageResult,
            _OK,
            DURABLE,
            SystemClock.now_ms,
        )


def find_appender_class() -> type[MessageAppender]:
    """Return the appender class for this process: compiled or Python."""
    return CompiledAppender if IS_COMPILED else MessageAppender
