"""Metadata JSON files: the main file, its `.bak`, and how the main file is replaced. At least one
of the two files is complete at any time, in whatever order the system writes to the disk."""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from tieredstore.clock import Clock
from tieredstore.contracts.metadata_store import FileSegmentMetadata, QueueMetadata, TopicMetadata
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import SECRET_FOLDER_MODE, FileOperations, cut_zeros
from tieredstore.errors import Corrupt
from tieredstore.metadata.json_format import Limits, parse
from tieredstore.metadata.parts import Row, Tables


class _Fields(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """Field names in Java's files. A file with other fields must be parsed by `json_format`."""


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
    """Parse a file in the form this program writes. Returns None if only `json_format` can parse
    it: fields of later Java versions, backslashes (in Windows paths), or too many segments."""
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
    """Disable garbage collection in the block. Scanning a million new permanent objects for garbage
    would take as long as creating them."""
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


_LOG = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """Loaded snapshot. `digest`: SHA-256 of the file in hex, or "" without a file. `is_backup`:
    True if it was read from `.bak` because the main file was lost."""

    tables: Tables
    digest: str
    is_backup: bool = False


class SnapshotFiles:
    """Loads and replaces the metadata file. Not thread-safe."""

    def __init__(
        self, path: Path, operations: FileOperations, limits: Limits, clock: Clock
    ) -> None:
        self._main = path
        self._backup = path.with_name(f"{path.name}.bak")
        self._operations = operations
        self._limits = limits
        self._clock = clock
        self._main_is_good = False
        self._main_is_bad = False

    @property
    def paths(self) -> tuple[Path, Path]:
        """Paths of the main file and its backup."""
        return self._main, self._backup

    def load(self, own_digest: str = "") -> Snapshot:
        """Read the main file, or `.bak` if the main file is missing, empty or damaged. Returns
        empty tables if neither exists. Changes nothing on disk. `own_digest`: SHA-256, in hex, of
        the file that this program wrote last. Raises Corrupt if no file is intact, Unavailable if a
        file cannot be read."""
        self._main_is_good = self._main_is_bad = False
        try:
            snapshot = self._load(self._main, own_digest)
        except Corrupt as error:
            return self._load_backup(error)
        if snapshot is None:
            return self._load_backup(None)
        self._main_is_good = True
        return snapshot

    def find_main(self) -> str:
        """Return the SHA-256 of the main file in hex, or "" if it does not exist. Raises
        Unavailable."""
        return self._find_digest(self._main)

    def find_former(self) -> str:
        """Return the SHA-256 of `.bak` in hex, or "" if it does not exist."""
        return self._find_digest(self._backup)

    def _find_digest(self, path: Path) -> str:
        try:
            if self._operations.size(path) is None:
                return ""
            return hashlib.sha256(cut_zeros(self._operations.read(path))).hexdigest()
        except OSError as error:
            raise translate_os_error(error, "read", path, invalid=RETRY_LATER) from error

    def replace(self, data: bytes, *, is_extended: bool = False) -> str:
        """Durably write `data` as the main file, and return its SHA-256. The previous file becomes
        `.bak`, or `.corrupt-<ms>` if it is damaged. The first version is also written to `.bak`.
        `is_extended`: True if a journal extends the previous file with creations and deletions.
        That file must then stay complete until a new journal exists. Raises Unavailable. After an
        error the main file is the previous or the new one."""
        temporary: Path | None = None
        try:
            self._operations.make_directory(self._main.parent, SECRET_FOLDER_MODE)
            temporary = self._operations.write_temporary(self._main, data)
            if self._main_is_bad:
                self._set_aside()
            elif self._main_is_good or not self._operations.size(self._main):
                self._operations.back_up(self._main, self._backup, data)
                if is_extended:
                    self._operations.sync_directory(self._main.parent)
            self._operations.rename(temporary, self._main)
            self._main_is_good = True
            self._operations.sync_directory(self._main.parent)
        except OSError as error:
            if temporary is not None:
                self._operations.discard(temporary)
            raise translate_os_error(error, "replace", self._main, invalid=RETRY_LATER) from error
        return hashlib.sha256(data).hexdigest()

    def _load(self, path: Path, own_digest: str = "") -> Snapshot | None:
        try:
            size = self._operations.size(path)
            if not size:
                return None
            if size > self._limits.max_file_bytes:
                raise Corrupt(
                    f"{path}: {size} bytes, more than the limit of {self._limits.max_file_bytes}",
                    path=str(path),
                )
            data = cut_zeros(self._operations.read(path))
        except OSError as error:
            raise translate_os_error(error, "read", path, invalid=RETRY_LATER) from error
        digest = hashlib.sha256(data).hexdigest()
        tables = parse_own(data, self._limits.max_segments) if digest == own_digest else None
        return Snapshot(tables or parse(data, str(path), self._limits), digest)

    def _load_backup(self, main_error: Corrupt | None) -> Snapshot:
        advice = (
            "Nothing was changed. Put a good copy in place, or rebuild the metadata from the tier "
            "(`tieredstore rebuild metadata --force`)"
        )
        try:
            snapshot = self._load(self._backup)
        except Corrupt as error:
            first = f"{main_error}" if main_error else f"{self._main} is missing or empty"
            raise Corrupt(f"{first}. {error}. {advice}", path=str(self._main)) from error
        if snapshot is None:
            if main_error is not None:
                raise Corrupt(
                    f"{main_error}. {self._backup} is missing or empty. {advice}",
                    path=str(self._main),
                )
            return Snapshot(Tables(), "")
        if main_error is None:
            _LOG.warning("%s is missing or empty: %s is used", self._main, self._backup)
        else:
            self._main_is_bad = True
            _LOG.warning("%s. %s is used", main_error, self._backup)
        return snapshot._replace(is_backup=True)

    def _set_aside(self) -> None:
        now_ms = self._clock.now_ms()
        kept = self._main.with_name(f"{self._main.name}.corrupt-{now_ms}")
        while self._operations.size(kept) is not None:
            now_ms += 1
            kept = self._main.with_name(f"{self._main.name}.corrupt-{now_ms}")
        self._operations.rename(self._main, kept)
        self._operations.sync_directory(kept.parent)
        self._main_is_bad = False
        _LOG.warning("%s: the bad file is kept as %s", self._main, kept)
