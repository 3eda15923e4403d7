"""Database of consume queues with both column families, for its owner or read-only."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.user_folders import make_temporary_folder
from tieredstore.errors import (
    Corrupt,
    Exhausted,
    Fenced,
    Invalid,
    TieredStoreError,
    Unavailable,
    make_missing_error,
)
from tieredstore.local.queues.rocksdb.layout import DEFAULT_FAMILY, OFFSET_FAMILY, VALUE_SIZE

if TYPE_CHECKING:
    from rocksdict import Options


_EXHAUSTED: Final = (
    "No space left on device",
    "Disk quota exceeded",
    "Too many open files",
    "Cannot allocate memory",
    "NoSpace",
)
_GONE: Final = "No such file or directory"
_NOT_ALLOWED: Final = ("Permission denied", "Read-only file system", "Not a directory")


def translate_rocksdb_error(
    error: Exception,
    action: str,
    path: str | Path,
    *,
    is_sync: bool = False,
    is_closed: bool = False,
) -> TieredStoreError:
    """Convert an error of the library to Exhausted, Fenced, Corrupt, Invalid or else Unavailable.

    `action`: the failed action, as in "cannot <action>".
    `is_sync`: whether a sync failed, which is never Exhausted (`tieredstore.disk.errors`).
    `is_closed`: whether no other process has the database open, so that a missing file is lost.
    """
    text = str(error)
    kind: type[TieredStoreError] = Unavailable
    if any(reason in text for reason in _EXHAUSTED) and not is_sync:
        kind = Exhausted
    elif "lock hold by current process" in text or "While lock file" in text:
        kind = Fenced
    elif text.startswith("Corruption") or (is_closed and _GONE in text):
        kind = Corrupt
    elif any(reason in text for reason in _NOT_ALLOWED) or text.startswith("Invalid argument"):
        kind = Invalid
    return kind(f"{path}: cannot {action}: {text}", path=str(path))


FORMAT_VERSION: Final = 5
"""Format version of the tables: the version that RocketMQ 5.5.0 writes with RocksDB 8.4, because
RocksDB 8.4 cannot read newer versions."""
CACHE_BYTES: Final = 64 << 20
_BLOCK_BYTES: Final = 32 << 10
_BLOOM_BITS: Final = 16
_UNITS_BUFFER_BYTES: Final = 64 << 20
_OFFSETS_BUFFER_BYTES: Final = 32 << 20
_MAX_OPEN_FILES: Final = 512
_LOG_BYTES: Final = 16 << 20


def import_rocksdict() -> Any:
    """Import the library. Raises Invalid, naming the extra to install, if it is not installed."""
    try:
        import rocksdict
    except ImportError as error:
        raise make_missing_error("storeType=defaultRocksDB", error, "rocksdb") from error
    return rocksdict


def family_options(*, may_create: bool, max_open_files: int = _MAX_OPEN_FILES) -> dict[str, object]:
    """Return the options of both column families. Those of `default` also apply to the database."""
    library = import_rocksdict()
    cache = library.Cache(CACHE_BYTES)
    units, offsets = (_common_options(library, cache, may_create=may_create) for _ in range(2))
    units.set_max_open_files(max_open_files)
    # Java's database has no write-ahead log, so it requires that memtables of both families go to
    # disk together. We keep the log, so that a sync does not write a table each time.
    units.set_atomic_flush(True)
    units.set_max_background_jobs(2)
    units.set_keep_log_file_num(5)
    units.set_max_log_file_size(_LOG_BYTES)
    units.set_stats_dump_period_sec(0)
    units.set_write_buffer_size(_UNITS_BUFFER_BYTES)
    units.set_compression_type(library.DBCompressionType.lz4())
    units.set_bottommost_compression_type(library.DBCompressionType.zstd())
    units.set_compaction_style(library.DBCompactionStyle.universal())
    units.set_optimize_filters_for_hits(True)
    universal = library.UniversalCompactOptions()
    universal.size_ratio = 100
    universal.max_size_amplification_percent = 25
    units.set_universal_compaction_options(universal)
    offsets.set_write_buffer_size(_OFFSETS_BUFFER_BYTES)
    offsets.set_compression_type(library.DBCompressionType.none())
    return {DEFAULT_FAMILY: units, OFFSET_FAMILY: offsets}


def _common_options(library: Any, cache: Any, *, may_create: bool) -> Options:
    options: Options = library.Options(raw_mode=True)
    options.create_if_missing(may_create)
    options.create_missing_column_families(may_create)
    table = library.BlockBasedOptions()
    table.set_format_version(FORMAT_VERSION)
    table.set_checksum_type(library.ChecksumType.crc32c())
    table.set_block_size(_BLOCK_BYTES)
    table.set_bloom_filter(_BLOOM_BITS, False)
    # The index and the filters of our tables are partitioned, so the cache bounds their memory,
    # whatever the number of units. Those of Java's tables are whole and exceed the cache, so they
    # stay in memory, as in Java.
    table.set_block_cache(cache)
    table.set_index_type(library.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    options.set_block_based_table_factory(table)
    return options


CURRENT_FILE: Final = "CURRENT"
_NOT_OF_THE_DATA: Final = ("LOCK", "LOG", "rocksdict-config.json")
_EVERY_FILE: Final = -1
_STUCK: Final = "Writer has previous error"
_OPEN_BYTES: Final = 8 << 20
"""Maximum number of bytes to write when a database is opened, in addition to the content of its
write-ahead log."""
_log = logging.getLogger(__name__)

T = TypeVar("T")

_first_user: int | None = None
"""Process that first opened a database: this process, or the process that it was forked from."""


def _refuse_in_forked_child(directory: Path) -> None:
    if _first_user not in (None, os.getpid()):
        raise Invalid(
            f"{directory}: this process was forked from process {_first_user}, which uses RocksDB: "
            "the library's threads are not here, and a database that is open for writing would "
            "wait for them for ever. Begin a process of its own instead (multiprocessing: the "
            "start method spawn)",
            path=str(directory),
        )


class Batch:
    """Changes of both families that are written atomically."""

    def __init__(self, units: object, offsets: object) -> None:
        self._changes = import_rocksdict().WriteBatch(raw_mode=True)
        self._units = units
        self._offsets = offsets

    def release(self) -> None:
        """Release the batch's reference to the database. Otherwise any reference to the batch, for
        example from a traceback, would keep the database open."""
        self._units = self._offsets = self._changes = None

    @property
    def changes(self) -> object:
        """The library's batch object, which can be written once."""
        return self._changes

    def __len__(self) -> int:
        return len(self._changes)

    def put_units(self, prefix: bytes, numbers: bytes, values: bytes) -> None:
        """Add units of one queue. `prefix`: prefix of their keys. `numbers`: next 8 bytes of each
        key. `values`: VALUE_SIZE bytes per unit."""
        put, family = self._changes.put, self._units
        value_from = 0
        for number_from in range(0, len(numbers), 8):
            value_end = value_from + VALUE_SIZE
            key = prefix + numbers[number_from : number_from + 8]
            put(key, values[value_from:value_end], family)
            value_from = value_end

    def delete_units(self, first: bytes, end: bytes) -> None:
        """Delete the units with keys in [first, end)."""
        self._changes.delete_range(first, end, self._units)

    def put_offset(self, key: bytes, value: bytes) -> None:
        self._changes.put(key, value, self._offsets)

    def delete_offset(self, key: bytes) -> None:
        self._changes.delete(key, self._offsets)


class QueueDatabase:
    """One open database, whose errors are those of `tieredstore.errors`. Thread-safe. Close it
    once. If a write fails for lack of space or descriptors, the library rejects all further writes,
    but reads continue. Once space is free, the next write reopens the database, with everything
    that was written before."""

    def __init__(self, directory: Path, open_it: Callable[[], Any]) -> None:
        self.directory = directory
        self._open_it = open_it
        self._is_stuck = False
        self._is_open = False
        self._lock = threading.RLock()  # for syncs and for reopening
        self._open()

    def _open(self) -> None:
        global _first_user  # noqa: PLW0603 - as the library's threads are: one set a process
        _first_user = _first_user or os.getpid()
        try:
            self._database = self._open_it()
        except TieredStoreError:
            raise
        except Exception as error:  # the library has no other kind
            action = f"open {CURRENT_FILE}"
            raise translate_rocksdb_error(error, action, self.directory, is_closed=True) from error
        # Families of a database that was just created are not open yet.
        self._offsets = self._database.get_column_family(OFFSET_FAMILY)
        self._units_handle = self._database.get_column_family_handle(DEFAULT_FAMILY)
        self._offsets_handle = self._database.get_column_family_handle(OFFSET_FAMILY)
        self._is_open = True

    def _call(self, action: str, call: Callable[..., T], *arguments: object) -> T:
        try:
            return call(*arguments)
        except TieredStoreError:
            raise
        except Exception as error:  # the library has no other kind
            raise translate_rocksdb_error(error, action, self.directory) from error

    def get_unit(self, key: bytes) -> bytes | None:
        """Return the value of a unit, or None if the unit does not exist."""
        try:
            value: bytes | None = self._database.get(key)
        except Exception as error:
            raise translate_rocksdb_error(error, "read a unit", self.directory) from error
        return value

    def get_offset(self, key: bytes) -> bytes | None:
        """Return a value of the offset family, or None if the key does not exist."""
        value: bytes | None = self._call("read an offset", self._offsets.get, key)
        return value

    def read_values(self, first: bytes, end: bytes) -> list[bytes]:
        """Return the values of the units with keys in [first, end), in key order."""
        return self._call("read units", lambda: list(_range(self._database.values, first, end)))

    def read_items(self, first: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the units with keys in [first, end), in key order."""
        return self._call("read units", lambda: list(_range(self._database.items, first, end)))

    def scan_offsets(
        self, first: bytes | None = None, end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items of the offset family with keys in [first, end), in key order. Default:
        all items."""
        action, offsets = "read the offsets", self._offsets
        last: bytes | None = None
        for item in self._call(action, _items, offsets, first, end):
            yield item
            last = item[0]
        # A damaged block ends the iteration like the last key.
        self._call(action, _check_end, offsets, first if last is None else last, end)

    def make_batch(self) -> Batch:
        """Return an empty batch. Reopens the database if needed, and may raise the errors of
        `open_database`."""
        with self._lock:
            if self._is_stuck:
                self._open_again()
        return Batch(self._units_handle, self._offsets_handle)

    def write(self, batch: Batch) -> None:
        """Write a batch atomically. It is durable after the next `sync`. Raises Exhausted if the
        disk is full, and Unavailable for other errors."""
        try:
            self._call("write", self._database.write, batch.changes)
        except Exhausted:
            self._is_stuck = True
            raise
        finally:
            batch.release()

    def sync(self) -> None:
        """Sync the write-ahead log. Everything written is then on disk. Raises Unavailable. Raises
        Exhausted, and syncs nothing, if an earlier write failed for lack of space."""
        with self._lock:
            if self._is_stuck:
                self._open_again()
            try:
                self._database.flush_wal(sync=True)
            except Exception as error:
                is_stuck = self._is_stuck or _STUCK in str(error)
                found = translate_rocksdb_error(error, "sync", self.directory, is_sync=True)
                if is_stuck:
                    raise Exhausted(str(found), path=str(self.directory)) from error
                raise found from error

    def _open_again(self) -> None:
        self._check_room()
        self.close()
        try:
            self._open()
        except Fenced as error:  # a reader still iterates over the closed database
            raise Exhausted(str(error), path=str(self.directory)) from error
        _log.warning("%s: opened again after a write that failed", self.directory)
        self._is_stuck = False

    def _check_room(self) -> None:
        """Raise Exhausted if the disk has no space to open the database, which writes the content
        of the write-ahead log once more."""
        with wrap_os_errors("look for room", self.directory):
            needed = _OPEN_BYTES + sum(path.stat().st_size for path in self.directory.glob("*.log"))
            usage = shutil.disk_usage(self.directory)
        free = usage.free
        if usage.total and free < needed:  # some file systems report no sizes
            raise Exhausted(
                f"{self.directory}: cannot open it again: expected {needed} free bytes, found "
                f"{free}",
                path=str(self.directory),
            )

    def close(self) -> None:
        """Close the database. Unwritten data stays in the write-ahead log. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._units_handle = self._offsets_handle = None
        for family in (self._offsets, self._database):
            try:
                family.close()
            except Exception as error:
                _log.warning("%s: %s", self.directory, error)


def _read_options(end: bytes | None) -> object:
    options = import_rocksdict().ReadOptions()
    if end is not None:
        options.set_iterate_upper_bound(end)
    return options


def _range(read: Any, first: bytes, end: bytes) -> Any:
    return read(from_key=first, read_opt=_read_options(end))


def _items(family: Any, first: bytes | None, end: bytes | None) -> Any:
    return family.items(from_key=first, read_opt=_read_options(end))


def _check_end(family: Any, last: bytes | None, end: bytes | None) -> None:
    cursor = family.iter(_read_options(end))
    if last is None:
        cursor.seek_to_first()
    else:
        cursor.seek(last)
        if cursor.valid():
            cursor.next()
    cursor.status()


def open_database(directory: Path) -> QueueDatabase:
    """Open or create the database of a store that this process owns. Raises Fenced if another
    process has it open, and Corrupt for missing or damaged files. Raises Invalid for other column
    families (a fork that maps topics to numbers), without rocksdict, or in a process that was
    forked from a user of RocksDB."""
    library = import_rocksdict()
    _refuse_in_forked_child(directory)
    with wrap_os_errors("make the folder", directory):
        directory.mkdir(parents=True, exist_ok=True)
    if (directory / CURRENT_FILE).exists():
        _refuse_other_families(library, directory, directory)
    elif any(directory.glob("*.sst")):  # a new one would delete them
        raise Corrupt(
            f"{directory}: there are tables of a database, but no {CURRENT_FILE}",
            path=str(directory),
        )

    def open_it() -> object:
        families = family_options(may_create=True)
        return library.Rdict(str(directory), families[DEFAULT_FAMILY], families)

    return QueueDatabase(directory, open_it)


class ReadOnlyDatabase(QueueDatabase):
    """Database of a store without an owner, in its state at opening. Nothing is written to its
    folder. Because the library writes a file beside each database that it opens, the database is
    opened in a temporary folder with links to its files. All files are opened at once, so they stay
    readable after the folder, or a file that a later owner deletes, is gone."""

    def __init__(self, directory: Path) -> None:
        library = import_rocksdict()
        with make_temporary_folder("tieredstore-rocksdb-") as folder:
            view = str(folder)
            link_files(directory, folder)
            _refuse_other_families(library, folder, directory)
            families = family_options(may_create=False, max_open_files=_EVERY_FILE)
            access = library.AccessType.read_only(False)
            super().__init__(
                directory, lambda: library.Rdict(view, families[DEFAULT_FAMILY], families, access)
            )


def read_family(directory: Path, family: str) -> list[tuple[bytes, bytes]]:
    """Read one column family of any database from disk, without writing to its folder. Another
    process may have the database open. A missing family has no items. Raises Unavailable if that
    process deletes a file during the read, and the errors of `ReadOnlyDatabase`."""
    library = import_rocksdict()
    with make_temporary_folder("tieredstore-rocksdb-") as folder:
        view = str(folder)
        link_files(directory, folder)
        try:
            families = library.Rdict.list_cf(view, library.Options(raw_mode=True))
            if family not in families:
                return []
            options = {name: library.Options(raw_mode=True) for name in families}
            access = library.AccessType.read_only(False)
            database = library.Rdict(view, options[DEFAULT_FAMILY], options, access)
            try:
                return list(database.get_column_family(family).items())
            finally:
                database.close()
        except Exception as error:
            raise translate_rocksdb_error(error, f"read {family}", directory) from error


def link_files(directory: Path, view: Path) -> None:
    """Link all data files of a database into a folder."""
    with wrap_os_errors("read", directory):
        for path in directory.iterdir():
            if path.is_file() and not path.name.startswith(_NOT_OF_THE_DATA):
                (view / path.name).symlink_to(path.resolve())


def _refuse_other_families(library: Any, place: Path, directory: Path) -> None:
    try:
        families = set(library.Rdict.list_cf(str(place), library.Options(raw_mode=True)))
    except Exception as error:
        raise translate_rocksdb_error(error, "open", directory, is_closed=True) from error
    expected = {DEFAULT_FAMILY, OFFSET_FAMILY}
    if families - expected:
        raise Invalid(
            f"{directory}: expected the column families {DEFAULT_FAMILY} and {OFFSET_FAMILY}, "
            f"found also {', '.join(sorted(families - expected))}: topics that are mapped to "
            "numbers, as a fork of RocketMQ does, are not supported",
            path=str(directory),
        )
    if OFFSET_FAMILY not in families and place != directory:
        raise Unavailable(
            f"{directory}: expected a column family {OFFSET_FAMILY}: the database is not made yet",
            path=str(directory),
        )
