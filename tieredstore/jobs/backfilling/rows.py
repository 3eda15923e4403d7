"""Conversion of table rows to messages: types, defaults, queues. Errors name the row."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.table_files import Place, Rows
from tieredstore.message.encoding import DEFAULT_MAX_BODY_BYTES
from tieredstore.message.hashes import java_string_hashes
from tieredstore.message.names import LMQ_PREFIX, is_system_topic
from tieredstore.scan.arrow.buffers import Int64s
from tieredstore.scan.arrow.schema import TYPES

_TIMES = ("store_timestamp", "born_timestamp")
_NUMBERS = {"queue_id": pa.int32(), "queue_offset": pa.int64(), "body_length": pa.int32()}
_NUMBERS |= {name: pa.int32() for name in ("sys_flag", "flag", "reconsume_times")}
_REQUIRED = ("topic", "queue_id", "body", "body_length")
_NAMES_OF_PROPERTIES = ("keys", "msg_id", "tags")
_MADE_ID_LENGTH = 32
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


@dataclass(frozen=True, slots=True)
class RowRules:
    """Rules for the conversion of rows to messages. `topic`: topic if the table has none. `queues`:
    number of queues for messages without queue ids. `now_ms`: store time of messages without a
    time. `cluster`, `broker`: names in the tier, which no topic may have."""

    topic: str | None
    queues: int
    now_ms: int
    broker: str
    cluster: str
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES


def columns_of(names: Sequence[str], *, lengths_only: bool) -> list[str]:
    """Return the columns of a file to read. `lengths_only`: omit the bodies if the file has their
    lengths."""
    wanted = ["topic", "queue_id", "queue_offset", "broker", "body_length", *_TIMES]
    wanted += ["sys_flag", "flag", "reconsume_times", "born_host", "store_host"]
    wanted += ["properties"] if "properties" in names else _NAMES_OF_PROPERTIES
    if not lengths_only or "body_length" not in names:
        wanted.append("body")
    return [name for name in wanted if name in names]


def messages_of(rows: Rows, rules: RowRules) -> pa.RecordBatch:
    """Return the rows with the columns and types for `encode_batch`, and with topic, queue_id,
    queue_offset (null if it must be assigned) and body_length. Times become epoch ms. A missing
    store time or birth time is replaced by the other. If both are missing, the time of the job is
    used. Raises Invalid, with file, row group, row and column."""
    batch, place = rows.batch, rows.place
    if "body" not in batch.schema.names and "body_length" not in batch.schema.names:
        raise Invalid(f"{place.file}: expected a column body, found none")
    found = {name: _column(name, batch.column(name), place) for name in batch.schema.names}
    count = batch.num_rows
    if "topic" not in found:
        topic = rows.topic or rules.topic
        if topic is None:
            raise Invalid(f"{place.file}: expected a column topic (or --topic NAME), found none")
        found["topic"] = pa.repeat(pa.scalar(topic, pa.string()), count)
    if "body" in found:
        lengths = pc.binary_length(found["body"]).cast(pa.int32())
        _check_lengths(found.get("body_length", lengths), lengths, place)
        found["body_length"] = lengths
    born = found.get("born_timestamp", pa.nulls(count, pa.int64()))
    store = found.get("store_timestamp", pa.nulls(count, pa.int64()))
    store = pc.fill_null(pc.coalesce(store, born), rules.now_ms)
    found |= {"store_timestamp": store, "born_timestamp": pc.coalesce(born, store)}
    if "queue_id" not in found:
        found["queue_id"] = _queue_ids(found, rows.first_row, count, rules.queues)
    if "queue_offset" not in found:
        found["queue_offset"] = pa.nulls(count, pa.int64())
    if "properties" not in found:
        ids = found.get("msg_id", pa.nulls(count, pa.string()))
        found["msg_id"] = pc.if_else(pc.equal(pc.fill_null(ids, ""), ""), None, ids)
    return pa.RecordBatch.from_pydict(found)


def add_message_ids(
    batch: pa.RecordBatch, topic: str, queue_id: int, queue_offset: int | None
) -> pa.RecordBatch:
    """Add missing message ids to consecutive messages of a queue. An id depends on topic, queue and
    queue offset. If the offset is unknown, a placeholder of the same length is added."""
    if "properties" in batch.schema.names:
        return batch
    ids = batch.column("msg_id")
    if not ids.null_count:
        return batch
    if queue_offset is None:
        made = pa.repeat(pa.scalar("0" * _MADE_ID_LENGTH, pa.string()), len(ids))
    else:
        head = f"{zlib.crc32(topic.encode()):08X}{queue_id:08X}"
        made = pa.array([f"{head}{queue_offset + row:016X}" for row in range(len(ids))])
    place = batch.schema.get_field_index("msg_id")
    return batch.set_column(place, "msg_id", pc.coalesce(ids, made))


def topic_fault(topic: str, rules: RowRules) -> str | None:
    """Return the reason why a tier cannot store messages of a topic, or None."""
    if _TOPIC.fullmatch(topic) is None:
        return (
            "expected 1 to 255 letters, digits, '%', '|', '_' and '-', found "
            f"{len(topic.encode())} bytes"
        )
    if topic in {rules.broker, rules.cluster}:
        return "expected another name than those of broker and cluster"
    if is_system_topic(topic) or topic.startswith(LMQ_PREFIX):
        return "system topics and light queues are not kept in a tier"
    return None


def first_failing(
    place: Place, batch: pa.RecordBatch, action: Callable[[object], object]
) -> Invalid:
    """Apply `action` to the rows of a batch one by one, and return the error of the first row that
    fails."""
    low, high = 0, batch.num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if _refusal(batch.slice(low, middle - low), action) is None:
            low = middle
        else:
            high = middle
    error = _refusal(batch.slice(low, 1), action)
    where = Place(place.file, place.group, place.row + low)
    return Invalid(f"{where}: {error}", path=place.file)


def _refusal(batch: pa.RecordBatch, action: Callable[[object], object]) -> Invalid | None:
    try:
        action(batch)
    except Invalid as error:
        return error
    return None


def _column(name: str, column: pa.Array, place: Place) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    wanted = _NUMBERS.get(name) or (pa.int64() if name in _TIMES else TYPES[name])
    if not (_fits(name, column.type) or pa.types.is_null(column.type)):
        expected = "a timestamp or epoch ms" if name in _TIMES else wanted
        raise Invalid(f"{place.file}: column {name}: expected {expected}, found {column.type}")
    if name == "properties":
        column = map_of(column, place)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    try:
        column = column if column.type == wanted else column.cast(wanted)
    except pa.ArrowNotImplementedError:
        raise Invalid(
            f"{place.file}: column {name}: expected {wanted}, found {column.type}"
        ) from None
    except pa.ArrowInvalid:
        raise _bad_value(name, column, wanted, place) from None
    if name in _REQUIRED and column.null_count:
        row = int(pc.index(column.is_null(), True).as_py())
        raise _error(place, row, name, str(wanted), "null")
    if pa.types.is_integer(wanted) and name not in {"sys_flag", "flag", "reconsume_times"}:
        negative = pc.fill_null(pc.less(column, 0), False)
        if pc.any(negative).as_py():
            row = int(pc.index(negative, True).as_py())
            raise _error(place, row, name, "0 or more", str(column[row]))
    return column


def _fits(name: str, type: pa.DataType) -> bool:
    kinds = pa.types
    if name in _TIMES:
        return bool(kinds.is_timestamp(type) or kinds.is_integer(type))
    if name in _NUMBERS:
        return bool(kinds.is_integer(type))
    if name == "keys":
        return bool(kinds.is_list(type) or kinds.is_large_list(type)) and is_text(type.value_type)
    if name == "properties":
        return is_map_like(type)
    if name == "body":
        return is_text(type) or _is_binary(type)
    return is_text(type)


def _is_binary(type: pa.DataType) -> bool:
    kinds = pa.types
    views = kinds.is_binary_view(type) or kinds.is_fixed_size_binary(type)
    return bool(kinds.is_binary(type) or kinds.is_large_binary(type) or views)


def _bad_value(name: str, column: pa.Array, wanted: pa.DataType, place: Place) -> Invalid:
    for row in range(len(column)):
        try:
            column.slice(row, 1).cast(wanted)
        except pa.ArrowInvalid:
            return _error(place, row, name, str(wanted), str(column[row]))
    return Invalid(f"{place}: column {name}: expected {wanted}, found {column.type}")


def _check_lengths(said: pa.Array, lengths: pa.Array, place: Place) -> None:
    differs = pc.not_equal(said, lengths)
    if pc.any(differs).as_py():
        row = int(pc.index(differs, True).as_py())
        raise _error(place, row, "body_length", f"{lengths[row]}, as body has", str(said[row]))


def _queue_ids(found: dict[str, pa.Array], first_row: int, count: int, queues: int) -> pa.Array:
    """Return queue ids by the hash of the first key, like Java's SelectMessageQueueByHash. Messages
    without keys are distributed round robin."""
    ids: Int64s = (first_row + np.arange(count)) % queues
    texts = _first_keys(found)
    if texts is not None:
        there = pc.fill_null(pc.not_equal(texts, ""), False)
        hashes = java_string_hashes(texts.filter(there).to_pylist()).astype(np.int64)
        ids[there.to_numpy(zero_copy_only=False)] = np.abs(hashes) % queues
    return pa.array(ids, pa.int32())


def _first_keys(found: dict[str, pa.Array]) -> pa.Array | None:
    """Return the first key of each message (null without keys), or None if the table has no column
    of keys."""
    if "properties" in found:
        joined = pc.map_lookup(found["properties"], pa.scalar("KEYS"), "first")
        keys = pc.split_pattern(joined, " ")
    elif "keys" in found:
        keys = found["keys"]
    else:
        return None
    lengths = pc.fill_null(pc.list_value_length(keys), 0).to_numpy(zero_copy_only=False)
    starts = keys.offsets.to_numpy()[:-1].astype(np.int64)
    places = pa.array(starts, mask=lengths == 0)
    return keys.values.take(places)


def _error(place: Place, row: int, column: str, expected: str, found: str) -> Invalid:
    where = Place(place.file, place.group, place.row + row)
    return Invalid(f"{where}, column {column}: expected {expected}, found {found}", path=place.file)


_MAP = pa.map_(pa.string(), pa.string())


def is_text(type: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's text types."""
    kinds = pa.types
    return bool(kinds.is_string(type) or kinds.is_large_string(type) or kinds.is_string_view(type))


def is_map_like(type: pa.DataType) -> bool:
    """Return whether values of this Arrow type are convertible to message properties: pairs of a
    name and a text."""
    kinds = pa.types
    if kinds.is_map(type):
        return is_text(type.key_type) and is_text(type.item_type)
    if kinds.is_list(type) or kinds.is_large_list(type):
        pair = type.value_type
        return (
            bool(kinds.is_struct(pair))
            and pair.num_fields == 2
            and all(is_text(pair.field(index).type) for index in range(2))
        )
    return bool(kinds.is_struct(type)) and all(
        is_text(field.type) or kinds.is_null(field.type) for field in type
    )


def map_of(column: pa.Array, place: Place) -> pa.Array:
    """Convert a column for which `is_map_like` is true to a map. Null members of a struct are
    omitted. Raises Invalid for a pair without a name."""
    if pa.types.is_struct(column.type):
        rows = [
            None if row is None else [pair for pair in row.items() if pair[1] is not None]
            for row in column.to_pylist()
        ]
        return pa.array(rows, _MAP)
    if pa.types.is_map(column.type) or pa.types.is_null(column.type):
        return column
    names, values = column.values.flatten()
    if names.null_count and pc.list_flatten(column).flatten()[0].null_count:
        raise Invalid(f"{place}, column properties: expected a name of each, found null")
    names = pc.fill_null(names.cast(pa.string()), "")
    offsets = pa.array(column.offsets.to_numpy().astype("int32"), pa.int32())
    return pa.MapArray.from_arrays(offsets, names, values.cast(pa.string()), mask=column.is_null())
