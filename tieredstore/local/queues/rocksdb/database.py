"""The database of consume queues: both column families, for their owner or for reading only."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Exhausted, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.local.queues.rocksdb.errors import translate_rocksdb_error
from tieredstore.local.queues.rocksdb.layout import DEFAULT_FAMILY, OFFSET_FAMILY, VALUE_SIZE
from tieredstore.local.queues.rocksdb.options import family_options, import_rocksdict

CURRENT_FILE: Final = "CURRENT"
_NOT_OF_THE_DATA: Final = ("LOCK", "LOG", "rocksdict-config.json")
_EVERY_FILE: Final = -1
_STUCK: Final = "Writer has previous error"
_OPEN_BYTES: Final = 8 << 20
"""What opening a database writes at most, beside what is in its write-ahead log."""
_log = logging.getLogger(__name__)

T = TypeVar("T")

_first_user: int | None = None
"""The process that opened a database first: this one, or one that it was forked from."""


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
    """Changes of both families that are written together or not at all."""

    def __init__(self, units: Any, offsets: Any) -> None:
        self._changes = import_rocksdict().WriteBatch(raw_mode=True)
        self._units = units
        self._offsets = offsets

    def release(self) -> None:
        """Let go of the database, which is open as long as something of it is held: also by the
        traceback of an error."""
        self._units = self._offsets = self._changes = None

    @property
    def changes(self) -> Any:
        """What the library writes, once."""
        return self._changes

    def __len__(self) -> int:
        return len(self._changes)

    def put_units(self, prefix: bytes, numbers: bytes, values: bytes) -> None:
        """Add units of one queue. prefix: of their keys; numbers: the 8 bytes behind it for each;
        values: VALUE_SIZE bytes each."""
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
    """Reads and writes of one open database, with errors of ours. Thread-safe; close it once.

    After a write that failed for want of space or descriptors the library takes no more writes,
    whatever there is later: the next one opens the database again once there is room, and has all
    that was written before. Until then it is read as it is.
    """

    def __init__(self, directory: Path, open_it: Callable[[], Any]) -> None:
        self.directory = directory
        self._open_it = open_it
        self._is_stuck = False
        self._is_open = False
        self._lock = threading.RLock()  # of a sync, and of opening again
        self._open()

    def _open(self) -> None:
        global _first_user  # noqa: PLW0603 - as the library's threads are: one set a process
        _first_user = _first_user or os.getpid()
        self._database = self._call(f"open {CURRENT_FILE}", self._open_it)
        # One that was created a moment ago is not open yet for families that did not exist.
        self._offsets = self._database.get_column_family(OFFSET_FAMILY)
        self._units_handle = self._database.get_column_family_handle(DEFAULT_FAMILY)
        self._offsets_handle = self._database.get_column_family_handle(OFFSET_FAMILY)
        self._is_open = True

    def _call(self, action: str, call: Callable[..., T], *arguments: Any) -> T:
        try:
            return call(*arguments)
        except TieredStoreError:
            raise
        except Exception as error:  # the library has no other kind
            raise translate_rocksdb_error(error, action, self.directory) from error

    def get_unit(self, key: bytes) -> bytes | None:
        """Read the value of a unit, None without one."""
        try:
            value: bytes | None = self._database.get(key)
        except Exception as error:
            raise translate_rocksdb_error(error, "read a unit", self.directory) from error
        return value

    def get_offset(self, key: bytes) -> bytes | None:
        """Read a value of the offset family, None without one."""
        value: bytes | None = self._call("read an offset", self._offsets.get, key)
        return value

    def read_values(self, first: bytes, end: bytes) -> list[bytes]:
        """Read the values of the units with keys in [first, end), in their order."""
        return self._call("read units", lambda: list(_range(self._database.values, first, end)))

    def read_items(self, first: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Read the keys and values of the units with keys in [first, end), in their order."""
        return self._call("read units", lambda: list(_range(self._database.items, first, end)))

    def scan_offsets(
        self, first: bytes | None = None, end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Read the offset family as it is now, or its keys in [first, end), in their order."""
        action, offsets = "read the offsets", self._offsets
        last: bytes | None = None
        for item in self._call(action, _items, offsets, first, end):
            yield item
            last = item[0]
        # A damaged block ends the walk as the last key does.
        self._call(action, _check_end, offsets, first if last is None else last, end)

    def make_batch(self) -> Batch:
        """Make an empty batch. Raises what opening the database again raises."""
        with self._lock:
            if self._is_stuck:
                self._open_again()
        return Batch(self._units_handle, self._offsets_handle)

    def write(self, batch: Batch) -> None:
        """Write a batch: all of it or nothing; durable after the next `sync`. Raises Exhausted
        where there is no space, Unavailable for other errors."""
        try:
            self._call("write", self._database.write, batch.changes)
        except Exhausted:
            self._is_stuck = True
            raise
        finally:
            batch.release()

    def sync(self) -> None:
        """Sync the write-ahead log: what was written is on disk when this returns. Raises
        Unavailable; Exhausted after a write that failed so, of which nothing was synced."""
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
        except Fenced as error:  # a reader still walks over what was closed
            raise Exhausted(str(error), path=str(self.directory)) from error
        _log.warning("%s: opened again after a write that failed", self.directory)
        self._is_stuck = False

    def _check_room(self) -> None:
        """Raise Exhausted while there is no room to open it: what is in the write-ahead log is
        written once more then."""
        try:
            needed = _OPEN_BYTES + sum(path.stat().st_size for path in self.directory.glob("*.log"))
            free = shutil.disk_usage(self.directory).free
        except OSError as error:
            raise translate_os_error(error, "look for room", self.directory) from error
        if free < needed:
            raise Exhausted(
                f"{self.directory}: cannot open it again: expected {needed} free bytes, found "
                f"{free}",
                path=str(self.directory),
            )

    def close(self) -> None:
        """Close the database. Idempotent. What cannot be written then is in the write-ahead
        log."""
        if not self._is_open:
            return
        self._is_open = False
        self._units_handle = self._offsets_handle = None
        for family in (self._offsets, self._database):
            try:
                family.close()
            except Exception as error:
                _log.warning("%s: %s", self.directory, error)


def _read_options(end: bytes | None) -> Any:
    options = import_rocksdict().ReadOptions()
    if end is not None:
        options.set_iterate_upper_bound(end)
    return options


def _range(read: Any, first: bytes, end: bytes) -> Any:
    return read(from_key=first, read_opt=_read_options(end))


def _items(family: Any, first: bytes | None, end: bytes | None) -> Any:
    return family.items(from_key=first, read_opt=_read_options(end))


def _check_end(family: Any, last: bytes | None, end: bytes | None) -> None:
    """Raise what keeps a walk from going on behind a key."""
    cursor = family.iter(_read_options(end))
    if last is None:
        cursor.seek_to_first()
    else:
        cursor.seek(last)
        if cursor.valid():
            cursor.next()
    cursor.status()


def open_database(directory: Path) -> QueueDatabase:
    """Open the database of a store that this process owns; a new one is made.

    Raises Fenced when another process has it open, Invalid for a database with other column
    families (a fork's, which maps topics to numbers), in a process that was forked from one which
    uses RocksDB, and without rocksdict.
    """
    library = import_rocksdict()
    _refuse_in_forked_child(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise translate_os_error(error, "make the folder", directory) from error
    if (directory / CURRENT_FILE).exists():
        _refuse_other_families(library, directory, directory)

    def open_it() -> Any:
        families = family_options(may_create=True)
        return library.Rdict(str(directory), families[DEFAULT_FAMILY], families)

    return QueueDatabase(directory, open_it)


class ReadOnlyDatabase(QueueDatabase):
    """The database of a store that nobody owns, as it is when it is opened; nothing is written in
    its folder.

    The library writes a file of its own wherever it opens a database, so it is given a temporary
    folder with links to the database's files. All are opened at once, so that the folder is not
    needed any more, and what a later owner deletes stays readable.
    """

    def __init__(self, directory: Path) -> None:
        library = import_rocksdict()
        with tempfile.TemporaryDirectory(prefix="tieredstore-rocksdb-") as view:
            _link_files(directory, Path(view))
            _refuse_other_families(library, Path(view), directory)
            families = family_options(may_create=False, max_open_files=_EVERY_FILE)
            access = library.AccessType.read_only(False)
            super().__init__(
                directory,
                lambda: library.Rdict(view, families[DEFAULT_FAMILY], families, access),
            )


def read_family(directory: Path, family: str) -> list[tuple[bytes, bytes]]:
    """Read one column family of any database as it is on disk now, without writing in its folder;
    nothing for a family that is not there. Another process may have it open: raises Unavailable
    when it deletes a file meanwhile, and else what `ReadOnlyDatabase` raises."""
    library = import_rocksdict()
    with tempfile.TemporaryDirectory(prefix="tieredstore-rocksdb-") as view:
        _link_files(directory, Path(view))
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


def _link_files(directory: Path, view: Path) -> None:
    try:
        for path in directory.iterdir():
            if path.is_file() and not path.name.startswith(_NOT_OF_THE_DATA):
                (view / path.name).symlink_to(path.resolve())
    except OSError as error:
        raise translate_os_error(error, "read", directory) from error


def _refuse_other_families(library: Any, place: Path, directory: Path) -> None:
    try:
        families = set(library.Rdict.list_cf(str(place), library.Options(raw_mode=True)))
    except Exception as error:
        raise translate_rocksdb_error(error, "open", directory) from error
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
