"""Responses to POP_MESSAGE: records, and the fields from which clients build receipt handles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tieredstore.broker.receive.requests import Received, Source
from tieredstore.message.buffers import Buffer
from tieredstore.message.record import copy_with_reconsume_times

ORDER_QUEUE: Final = 999
"""Number of the revive queue in receipt handles of ordered pops, as in Java. Other handles have 0.
This broker ignores it."""
MAX_SPREAD: Final = 1 << 20
"""Maximum distance between the first and last offset of a queue in a response. Clients acknowledge
with a bit set that covers this range."""
MAX_EXTRA_INFO: Final = 1_024
_EXTRA_INFO: Final = re.compile(
    r"-?\d{1,19} (-?\d{1,19}) -?\d{1,19} (-?\d{1,19}) [^ ]* [^ ]", re.ASCII
)


class PopAnswer(NamedTuple):
    """Response to a pop. `left_out`: messages that did not fit."""

    fields: dict[str, str]
    records: list[Buffer]
    left_out: list[Received]


def make_fields(pop_ms: int = 0, invisible_ms: int = 0, revive_queue: int = 0) -> dict[str, str]:
    """Return the fields of every response to a pop or a change of an invisible time."""
    return {
        "popTime": str(pop_ms),
        "invisibleTime": str(invisible_ms),
        "reviveQid": str(revive_queue),
    }


def encode_popped(received: Sequence[Received], *, is_ordered: bool) -> PopAnswer:
    """Encode one or more delivered messages. All of them have the same delivery time. Records of a
    queue are in offset order, because clients find the handle of a record by its position."""
    pop_ms = received[0].receipt.pop_ms
    queues: dict[tuple[Source, int], list[Received]] = {}
    left_out: list[Received] = []
    for one in received:
        receipt = one.receipt
        if receipt.pop_ms == pop_ms:
            queues.setdefault((receipt.source, receipt.queue_id), []).append(one)
        else:
            left_out.append(one)
    starts: list[str] = []
    offsets: list[str] = []
    counts: list[str] = []
    records: list[Buffer] = []
    ends: list[int] = []
    for (source, queue_id), members in queues.items():
        members.sort(key=lambda one: one.receipt.offset)
        start = members[0].receipt.offset
        kept = [one for one in members if one.receipt.offset - start < MAX_SPREAD]
        left_out += members[len(kept) :]
        name = f"{source.value} {queue_id}"
        starts.append(f"{name} {start}")
        offsets.append(f"{name} {','.join(str(one.receipt.offset) for one in kept)}")
        if is_ordered:
            counts += _encode_counts(source, queue_id, kept)
        records += (_encode_record(one, one.receipt.offset, queue_id) for one in kept)
        ends += (one.invisible_until_ms for one in kept)
    fields = make_fields(pop_ms, min(ends) - pop_ms, ORDER_QUEUE if is_ordered else 0)
    fields["startOffsetInfo"] = ";".join(starts)
    fields["msgOffsetInfo"] = ";".join(offsets)
    if counts:
        fields["orderCountInfo"] = ";".join(counts)
    return PopAnswer(fields, records, left_out)


def encode_lite(received: Sequence[Received]) -> PopAnswer:
    """Encode one or more delivered messages of lite topics. Clients find the offset of a message in
    its record."""
    pop_ms = received[0].receipt.pop_ms
    kept = [one for one in received if one.receipt.pop_ms == pop_ms]
    end_ms = min(one.invisible_until_ms for one in kept)
    fields = make_fields(pop_ms, end_ms - pop_ms, ORDER_QUEUE)
    fields["orderCountInfo"] = ";".join(map(_encode_lite_count, kept))
    left_out = [one for one in received if one.receipt.pop_ms != pop_ms]
    records = [_encode_record(one, one.message.queue_offset, one.message.queue_id) for one in kept]
    return PopAnswer(fields, records, left_out)


def _encode_lite_count(one: Received) -> str:
    earlier = one.delivery_attempt - 1
    return f"0 qo0%{one.receipt.offset} {earlier}" if earlier > 0 else "0"


def _encode_counts(source: Source, queue_id: int, members: Sequence[Received]) -> Iterable[str]:
    earlier = [one.delivery_attempt - 1 for one in members]
    for one, count in zip(members, earlier, strict=True):
        if count > 0:
            yield f"{source.value} qo{queue_id}%{one.receipt.offset} {count}"
    yield f"{source.value} {queue_id} {min(earlier)}"


def _encode_record(one: Received, offset: int, queue_id: int) -> Buffer:
    """Return the record of a message with its number of redeliveries. For a redelivery, the record
    also gets this queue and offset, from which a client finds the receipt handle. For a first
    delivery from a light queue, clients read the offset from the properties instead."""
    earlier = max(one.delivery_attempt - 1, 0)
    if one.message.reconsume_times == earlier:
        return one.message.raw
    return copy_with_reconsume_times(one.message, earlier, queue_id, offset)


class ExtraInfo(NamedTuple):
    """Fields that the broker reads from a receipt handle (POP_CK). The other fields are also in the
    request's header."""

    pop_ms: int
    revive_queue: int


def parse_extra_info(text: str) -> ExtraInfo | None:
    """Parse a receipt handle: `startOffset popTime invisibleTime reviveQid source broker queueId
    offset`. The last two fields are optional, and more may follow. Returns None for any other
    text."""
    found = _EXTRA_INFO.match(text) if len(text) <= MAX_EXTRA_INFO else None
    return None if found is None else ExtraInfo(int(found[1]), int(found[2]))
