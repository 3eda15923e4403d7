"""Fast path for puts of plain messages to known queues. Checks, offsets, encoding and append are
one short critical section of the calling thread.

`put` and `put_batch` inline the calls of `GeneralPut`, because each call and each attribute access
costs time here. Both paths make the same records, results and rows, and a property test compares
them (`tests/property/local/put`). All other messages take the general path.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.errors import TieredStoreError
from tieredstore.local.put.general import GeneralPut, refuse, refuse_by_error
from tieredstore.local.put.queues import FORGOTTEN, Plain
from tieredstore.local.put.rows import MAX_ROW_PROPERTIES_BYTES, Rows, waits_for_nothing
from tieredstore.message.buffers import Buffer
from tieredstore.message.crc import CRC_MASK, RELEASING_BYTES, large_crc32, raw_crc32
from tieredstore.message.encoding import Message, find_unfit_number
from tieredstore.message.sysflag import BORN_HOST_V6, INNER_BATCH, STORE_HOST_V6, TRANSACTION_MASK

_OK: Final = PutMessageStatus.PUT_OK
_ILLEGAL: Final = PutMessageStatus.MESSAGE_ILLEGAL
_NOT_PLAIN: Final = TRANSACTION_MASK | INNER_BATCH | BORN_HOST_V6 | STORE_HOST_V6
_V4_SIZE: Final = 8
_NEXT_OFFSET: Final = ("next_offset",)
_LENGTHS: Final = tuple(length.to_bytes(2, "big") for length in range(MAX_ROW_PROPERTIES_BYTES + 1))


class MessageAppender(GeneralPut):
    """The only writer of a commit log. Thread-safe. Store times never decrease, even if the clock
    is set back, so that searches by time stay correct."""

    def put(self, message: Message) -> PutMessageResult:
        """Append one message and return RocketMQ's status. An invalid message is not stored and
        raises no error."""
        try:
            state, pack, magic, fixed_bytes, topic_field, store_host, _ = self._plain[
                message.topic, message.queue_id
            ]
        except KeyError:
            return self._put_general(message)
        body = message.body
        properties = message.properties
        born_host = message.born_host
        sys_flag = message.sys_flag
        properties_length = len(properties)
        if (
            sys_flag & _NOT_PLAIN
            or properties_length > MAX_ROW_PROPERTIES_BYTES
            or body is None
            or len(body) > self._max_plain_body_bytes
            or len(born_host) != _V4_SIZE
            or properties.find(b"INNER_") >= 0  # `in` takes twice as long
        ):
            return self._put_general(message)
        body_length = len(body)
        size = fixed_bytes + body_length + properties_length
        crc = raw_crc32(body) if body_length <= RELEASING_BYTES else large_crc32(body)
        crc &= CRC_MASK
        with self._lock:
            try:
                timestamp = self._now_ms()
                if timestamp < self.last_timestamp_ms:  # noqa: PLR1730 - max() takes longer
                    timestamp = self.last_timestamp_ms
                log = self._log
                position = log.max_offset
                end = position + size
                if end > log.limit:
                    position = self._make_room(size)
                    end = position + size
                queue_offset = state.next_offset
                head = pack(
                    size,
                    magic,
                    crc,
                    message.queue_id,
                    message.flag,
                    queue_offset,
                    position,
                    sys_flag,
                    message.born_timestamp_ms,
                    born_host,
                    timestamp,
                    store_host,
                    message.reconsume_times,
                    message.prepared_transaction_offset,
                    body_length,
                )
                inside = position - log.view_from
                log.view[inside : inside + size] = b"".join(
                    (head, body, topic_field, _LENGTHS[properties_length], properties)
                )
                if end > log.limit:  # the file was truncated since
                    log.refuse_written(end)
            except (TieredStoreError, MemoryError) as error:
                return self.statistics.observe_refusal(refuse_by_error(error))
            except struct.error:
                if state.next_offset == FORGOTTEN:  # its topic was deleted while this put waited
                    return self._put_general(message)
                return self._refuse_unfit(message)
            # `_publish` in line
            next_offset = queue_offset + 1
            rows = self._rows
            rows += (state.number, head, properties)
            log.max_offset = end
            state.next_offset = next_offset
            self.last_timestamp_ms = timestamp
            durable = self.durability
            if self._is_idle:
                self._is_idle = False
                _ = 0 in self._wakes
        if len(rows) > self._help_values:
            self._help_after(size)
        if durable is not DURABLE and waits_for_nothing(properties):
            durable = DURABLE
        return PutMessageResult(_OK, position, queue_offset, size, 1, timestamp, durable, "", True)

    def put_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        """Append messages of one queue with consecutive offsets in one file. Stores all of them or
        none."""
        if not messages:
            return self._put_general_batch(messages)
        plain = self._plain.get((messages[0].topic, messages[0].queue_id))
        if plain is None:
            return self._put_general_batch(messages)
        state = plain[0]
        with self._lock:
            try:
                timestamp = max(self._now_ms(), self.last_timestamp_ms)
                queue_offset = state.next_offset
                log = self._log
                start = log.max_offset
                encoded = self._encode_plain(plain, messages, queue_offset, start, timestamp)
                if encoded is not None:
                    data, rows = encoded
                    size = len(data)
                    if start + size > log.limit:
                        here, start = start, self._make_room(size)
                        if start != here:
                            encoded = self._encode_plain(
                                plain, messages, queue_offset, start, timestamp
                            )
                            assert encoded is not None
                            data, rows = encoded
                    inside = start - log.view_from
                    log.view[inside : inside + size] = data
                    log.refuse_written(start + size)
            except (TieredStoreError, MemoryError) as error:
                return self.statistics.observe_refusal(refuse_by_error(error))
            except struct.error:
                if state.next_offset == FORGOTTEN:  # its topic was deleted while this put waited
                    return self._put_general_batch(messages)
                return self._refuse_unfit(*messages)
            if encoded is not None:
                moves = map(setattr, (state,), _NEXT_OFFSET, (queue_offset + len(messages),))
                durable = self._durability_of(messages)
                waiting = self._publish(rows, start + size, timestamp, moves)
        if encoded is None:
            return self._put_general_batch(messages)
        if waiting > self._help_values:
            self._help_after(size)
        return PutMessageResult(
            _OK, start, queue_offset, size, len(messages), timestamp, durable, "", True
        )

    def _refuse_unfit(self, *messages: Message) -> PutMessageResult:
        refused = refuse(_ILLEGAL, find_unfit_number(*messages))
        return self.statistics.observe_refusal(refused)

    def _encode_plain(
        self,
        plain: Plain,
        messages: Sequence[Message],
        queue_offset: int,
        position: int,
        timestamp: int,
    ) -> tuple[bytes, Rows] | None:
        state, pack, magic, fixed_bytes, topic_field, store_host, _ = plain
        topic, queue_id, number = state.topic, state.queue_id, state.number
        max_body_bytes = self._max_plain_body_bytes
        parts: list[Buffer] = []
        rows: Rows = []
        for message in messages:
            body = message.body
            properties = message.properties
            born_host = message.born_host
            sys_flag = message.sys_flag
            properties_length = len(properties)
            if (
                message.queue_id != queue_id
                or message.topic != topic
                or sys_flag & _NOT_PLAIN
                or properties_length > MAX_ROW_PROPERTIES_BYTES
                or body is None
                or len(body) > max_body_bytes
                or len(born_host) != _V4_SIZE
                or properties.find(b"INNER_") >= 0
                or properties.find(b"DELAY\x01") >= 0
            ):
                return None
            body_length = len(body)
            size = fixed_bytes + body_length + properties_length
            head = pack(
                size,
                magic,
                raw_crc32(body) & CRC_MASK,
                queue_id,
                message.flag,
                queue_offset,
                position,
                sys_flag,
                message.born_timestamp_ms,
                born_host,
                timestamp,
                store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_length,
            )
            parts += (head, body, topic_field, _LENGTHS[properties_length], properties)
            rows += (number, head, properties)
            position += size
            queue_offset += 1
        return b"".join(parts), rows
