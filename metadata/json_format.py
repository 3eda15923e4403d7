"""Strict parser for Java's metadata JSON, with size limits. Java's writers (fastjson 1 and 2) write
integer keys without quotes and, on Windows, paths with backslashes. Both are accepted. Any other
deviation from `docs/formats/metadata.md` raises Corrupt."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import orjson

from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt
from tieredstore.metadata.parts import (
    QUEUE_TABLE,
    SEGMENT_TABLES,
    TOPIC_SERIAL,
    TOPIC_TABLE,
    Extra,
    Row,
    Tables,
)

_STRING_OR_BARE_KEY = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(?<=[{,\s])(-?\d+)(?=\s*:)', re.DOTALL)
_INT32_MAX = 2**31 - 1
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_SERIAL_OF_JAVA_WHEN_MISSING = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a metadata file. By default, a million segments are allowed."""

    max_file_bytes: int = 1 << 30
    max_segments: int = 2_000_000
    max_depth: int = 32
    max_journal_bytes: int = 8 << 20


def parse(data: bytes, file_name: str, limits: Limits) -> Tables:
    """Parse a metadata file into tables. `file_name`: name for error messages. Raises Corrupt."""
    return _Parser(file_name, limits).parse(data)


class _Duplicate(ValueError):
    pass


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Duplicate(f"key {key!r} is there twice in one object")
            seen.add(key)
    return result


def _quote_bare_keys(text: str) -> str:
    return _STRING_OR_BARE_KEY.sub(
        lambda match: f'"{match[1]}"' if match[1] is not None else match[0], text
    )


def _decode(text: str) -> object:
    return json.loads(text, object_pairs_hook=_object)


class _Parser:
    def __init__(self, file_name: str, limits: Limits) -> None:
        self._file_name = file_name
        self._limits = limits

    def parse(self, data: bytes) -> Tables:
        root = self._load(data)
        if not isinstance(root, dict):
            raise self._corrupt("the file", f"expected an object, found {type(root).__name__}")
        tables = Tables(topic_serial=_SERIAL_OF_JAVA_WHEN_MISSING)
        for kind, name in SEGMENT_TABLES.items():
            self._segments(tables, kind, name, self._table(root, name))
        self._queues(tables, self._table(root, QUEUE_TABLE))
        self._topics(tables, self._table(root, TOPIC_TABLE))
        if TOPIC_SERIAL in root:
            tables.topic_serial = self._int(root, TOPIC_SERIAL, "the file", minimum=-1)
        highest = max((row.value.topic_id for _, row in tables.topics.items()), default=-1)
        tables.topic_serial = max(tables.topic_serial, highest)
        tables.extra = (
            self._extra(
                root,
                frozenset({*SEGMENT_TABLES.values(), QUEUE_TABLE, TOPIC_TABLE, TOPIC_SERIAL}),
                "the file",
            )
            or {}
        )
        return tables

    def _load(self, data: bytes) -> object:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(f"byte {error.start}", "not UTF-8") from None
        try:
            try:
                return _decode(text)
            except json.JSONDecodeError:
                return _decode(_quote_bare_keys(text))
        except json.JSONDecodeError as error:
            raise self._corrupt(f"line {error.lineno}, column {error.colno}", error.msg) from None
        except RecursionError:
            raise self._corrupt("the file", "objects are nested too deep") from None
        except ValueError as error:
            raise self._corrupt("the file", str(error)) from None

    def _segments(
        self, tables: Tables, kind: FileSegmentType, name: str, table: dict[str, object]
    ) -> None:
        for key, rows in table.items():
            path = self._path(key, name)
            if path in tables.segments[kind]:
                raise self._corrupt(f"{name}.{path}", "is there with both path separators")
            for base_text, fields in self._rows(rows, f"{name}.{path}"):
                where = f"{name}.{path}.{base_text}"
                segment = self._segment(path, kind, self._key(base_text, where), fields, where)
                tables.add_segment(segment, self._extra(fields, _SEGMENT_FIELDS, where))
                if tables.segment_count > self._limits.max_segments:
                    raise self._corrupt(
                        where, f"more than {self._limits.max_segments} segments in one file"
                    )

    def _segment(
        self,
        path: str,
        kind: FileSegmentType,
        base_offset: int,
        fields: dict[str, object],
        where: str,
    ) -> FileSegmentMetadata:
        stored_path = self._path(fields.get("path", path), where)
        stored_base = self._int(fields, "baseOffset", where, base_offset)
        stored_type = self._int(fields, "type", where, kind)
        if (stored_path, stored_base, stored_type) != (path, base_offset, kind):
            raise self._corrupt(
                where, f"its own fields say {stored_path!r}, type {stored_type}, base {stored_base}"
            )
        return FileSegmentMetadata(
            path=path,
            type=kind,
            base_offset=base_offset,
            status=self._int(fields, "status", where, 0, minimum=_INT64_MIN),
            size=self._int(fields, "size", where, 0),
            create_timestamp_ms=self._time(fields, "createTimestamp", where, 0),
            begin_timestamp_ms=self._time(fields, "beginTimestamp", where, NEVER_WRITTEN_MS),
            end_timestamp_ms=self._time(fields, "endTimestamp", where, NEVER_WRITTEN_MS),
            seal_timestamp_ms=self._time(fields, "sealTimestamp", where, 0),
        )

    def _queues(self, tables: Tables, table: dict[str, object]) -> None:
        for topic, rows in table.items():
            tables.add_queue_group(self._text(topic, QUEUE_TABLE))
            for id_text, fields in self._rows(rows, f"{QUEUE_TABLE}.{topic}"):
                where = f"{QUEUE_TABLE}.{topic}.{id_text}"
                queue_id = self._key(id_text, where, _INT32_MAX)
                queue = fields.get("queue", {})
                if not isinstance(queue, dict):
                    raise self._corrupt(f"{where}.queue", "expected an object")
                value = QueueMetadata(
                    topic=topic,
                    queue_id=queue_id,
                    broker_name=self._text(queue.get("brokerName", ""), where),
                    min_offset=self._int(fields, "minOffset", where, -1, minimum=-1),
                    max_offset=self._int(fields, "maxOffset", where, -1, minimum=-1),
                    update_timestamp_ms=self._time(fields, "updateTimestamp", where, 0),
                )
                stored_id = self._int(queue, "queueId", where, queue_id)
                if (queue.get("topic", topic), stored_id) != (topic, queue_id):
                    raise self._corrupt(where, "its own fields name another queue")
                tables.add_queue(value, self._extra(fields, _QUEUE_FIELDS, where))

    def _topics(self, tables: Tables, table: dict[str, object]) -> None:
        for topic, fields in self._rows(table, TOPIC_TABLE):
            where = f"{TOPIC_TABLE}.{topic}"
            if fields.get("topic", topic) != topic:
                raise self._corrupt(where, "its own fields name another topic")
            value = TopicMetadata(
                topic_id=self._int(fields, "topicId", where, 0),
                topic=self._text(topic, where),
                status=self._int(fields, "status", where, 0, minimum=_INT64_MIN),
                reserve_time_hours=self._int(fields, "reserveTime", where, -1, minimum=_INT64_MIN),
                update_timestamp_ms=self._time(fields, "updateTimestamp", where, 0),
            )
            tables.topics.add(topic, Row(value, self._extra(fields, _TOPIC_FIELDS, where)))

    def _table(self, root: dict[str, object], name: str) -> dict[str, object]:
        table = root.get(name)
        if table is None:
            return {}
        if not isinstance(table, dict):
            raise self._corrupt(name, f"expected an object, found {type(table).__name__}")
        return table

    def _rows(self, rows: object, where: str) -> list[tuple[str, dict[str, object]]]:
        if not isinstance(rows, dict):
            raise self._corrupt(where, f"expected an object, found {type(rows).__name__}")
        for key, fields in rows.items():
            if not isinstance(fields, dict):
                raise self._corrupt(
                    f"{where}.{key}", f"expected an object, found {type(fields).__name__}"
                )
        return list(rows.items())

    def _key(self, text: str, where: str, maximum: int = _INT64_MAX) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 19 and str(int(text)) == text):
            raise self._corrupt(where, f"key {text!r} is not an integer")
        if int(text) > maximum:
            raise self._corrupt(where, f"key {text} is above {maximum}")
        return int(text)

    def _time(self, fields: dict[str, object], name: str, where: str, default: int) -> int:
        return self._int(fields, name, where, default, minimum=_INT64_MIN)

    def _int(
        self,
        fields: dict[str, object],
        name: str,
        where: str,
        default: int | None = None,
        *,
        minimum: int = 0,
    ) -> int:
        value = fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._corrupt(f"{where}.{name}", f"expected an integer, found {value!r:.40}")
        if not minimum <= value <= _INT64_MAX:
            raise self._corrupt(f"{where}.{name}", f"{value} is not from {minimum} to {_INT64_MAX}")
        return value

    def _path(self, value: object, where: str) -> str:
        return self._text(value, where).replace("\\", "/")

    def _text(self, value: object, where: str) -> str:
        if not isinstance(value, str):
            raise self._corrupt(where, f"expected a string, found {value!r:.40}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._corrupt(where, f"{value!r} is not valid Unicode text") from None
        return value

    def _extra(self, fields: dict[str, object], known: frozenset[str], where: str) -> Extra | None:
        names = fields.keys() - known
        if not names:
            return None
        for name in names:
            self._text(name, where)
            self._check_depth(fields[name], f"{where}.{name}")
        try:
            return {
                name: orjson.Fragment(json.dumps(fields[name], allow_nan=False))
                for name in fields
                if name in names
            }
        except ValueError as error:
            raise self._corrupt(where, f"{', '.join(sorted(names))}: {error}") from None

    def _check_depth(self, value: object, where: str) -> None:
        level = [value]
        for _ in range(self._limits.max_depth):
            level = [
                inner
                for outer in level
                if isinstance(outer, (dict, list))
                for inner in (outer.values() if isinstance(outer, dict) else outer)
            ]
            if not level:
                return
        raise self._corrupt(where, f"nested deeper than {self._limits.max_depth}")

    def _corrupt(self, where: str, found: str) -> Corrupt:
        return Corrupt(f"{self._file_name}: {where}: {found}", path=self._file_name)


_SEGMENT_FIELDS = frozenset(
    {
        "path",
        "type",
        "baseOffset",
        "status",
        "size",
        "createTimestamp",
        "beginTimestamp",
        "endTimestamp",
        "sealTimestamp",
    }
)
_QUEUE_FIELDS = frozenset({"queue", "minOffset", "maxOffset", "updateTimestamp"})
_TOPIC_FIELDS = frozenset({"topicId", "topic", "status", "reserveTime", "updateTimestamp"})
