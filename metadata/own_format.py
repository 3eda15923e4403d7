"""Reads a metadata file that this program has written: what `json_format` reads, several times as
fast, since nothing in it can be other than it should be.

Whether it has is known from the journal, which names the hash of the file that it extends.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.metadata.parts import Row
from tieredstore.metadata.tables import Tables


class _Fields(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """Of Java's names; others are for `json_format`."""


class _Segment(_Fields, gc=False):
    path: str
    type: int
    base_offset: int
    status: int
    size: int
    create_timestamp: int
    begin_timestamp: int
    end_timestamp: int
    seal_timestamp: int


class _QueueName(_Fields, gc=False):
    broker_name: str
    queue_id: int
    topic: str


class _Queue(_Fields, gc=False):
    queue: _QueueName
    min_offset: int
    max_offset: int
    update_timestamp: int


class _Topic(_Fields, gc=False):
    topic_id: int
    topic: str
    status: int
    reserve_time: int
    update_timestamp: int


class _File(_Fields, gc=False):
    commit_log_file_segment_table: dict[str, dict[str, _Segment]]
    consume_queue_file_segment_table: dict[str, dict[str, _Segment]]
    index_file_segment_table: dict[str, dict[str, _Segment]]
    queue_metadata_table: dict[str, dict[str, _Queue]]
    topic_metadata_table: dict[str, _Topic]
    topic_serial_number: int


_DECODER = msgspec.json.Decoder(_File)


def parse_own(data: bytes, max_segments: int) -> Tables | None:
    """Parse a file; None when it has what only `json_format` understands: fields that Java's later
    versions may have, backslashes (of paths, on Windows), or more segments than are allowed."""
    if b"\\" in data:
        return None
    with _without_collection():
        try:
            file = _DECODER.decode(data)
        except msgspec.MsgspecError:
            return None
        tables = _make_tables(file)
    return tables if tables.segment_count <= max_segments else None


@contextmanager
def _without_collection() -> Iterator[None]:
    """A million objects are made, and all are kept: to look for garbage among them again and again
    takes as long as making them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _make_tables(file: _File) -> Tables:
    tables = Tables(file.topic_serial_number)
    segment_tables = {
        FileSegmentType.COMMIT_LOG: file.commit_log_file_segment_table,
        FileSegmentType.CONSUME_QUEUE: file.consume_queue_file_segment_table,
        FileSegmentType.INDEX: file.index_file_segment_table,
    }
    for kind, paths in segment_tables.items():
        for path, segments in paths.items():
            for one in segments.values():
                tables.add_segment(
                    FileSegmentMetadata(
                        path,
                        kind,
                        one.base_offset,
                        one.status,
                        one.size,
                        one.create_timestamp,
                        one.begin_timestamp,
                        one.end_timestamp,
                        one.seal_timestamp,
                    )
                )
    for topic, queues in file.queue_metadata_table.items():
        tables.add_queue_group(topic)
        for found in queues.values():
            name = found.queue
            tables.add_queue(
                QueueMetadata(
                    topic,
                    name.queue_id,
                    name.broker_name,
                    found.min_offset,
                    found.max_offset,
                    found.update_timestamp,
                )
            )
    for topic, entry in file.topic_metadata_table.items():
        tables.topics.add(
            topic,
            Row(
                TopicMetadata(
                    entry.topic_id, topic, entry.status, entry.reserve_time, entry.update_timestamp
                )
            ),
        )
    return tables
