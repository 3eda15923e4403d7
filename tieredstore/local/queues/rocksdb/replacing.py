"""Replaces a damaged database with a new one, which the dispatch fills from the commit log.

If the log has lost all messages of a queue, only the damaged database has the queue's end. The new
database is created beside the old one with these ends, and replaces it by two renames. If the
process stops between the renames, `finish_replacement` continues.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.sync import sync_folder
from tieredstore.disk.user_folders import make_temporary_folder
from tieredstore.local.queues.rocksdb import layout
from tieredstore.local.queues.rocksdb.database import import_rocksdict, link_files, open_database

NEW_SUFFIX: Final = ".new"
DAMAGED_SUFFIX: Final = ".damaged"
_QUEUES_A_WRITE: Final = 10_000
_log = logging.getLogger(__name__)


def replace_database(
    directory: Path, log_min_offset: int, unbuilt: frozenset[str] = frozenset()
) -> Path | None:
    """Replace a damaged database with a new one. No process may have it open. The damaged database
    is kept beside the new one. Queues that the dispatch does not fill keep their ends, if these can
    be read. They are the queues without messages in the log at or after `log_min_offset`, and those
    of the topics `unbuilt`. Returns the new location of the damaged database, or None without a
    database. Raises Unavailable, Exhausted, Invalid."""
    if not directory.is_dir() or not any(directory.iterdir()):
        return None
    ends = _find_ends(directory)
    expired = {
        key: last
        for key, last in ends.items()
        if last.physical_offset < log_min_offset or key.topic in unbuilt
    }
    new = _new_place(directory)
    with wrap_os_errors("delete", new):
        shutil.rmtree(new, ignore_errors=True)
    _make_database(new, expired)
    aside = _find_free_name(directory)
    _log.warning(
        "%s: a new database is created and filled from the commit log. The damaged one is kept as "
        "%s, and can be deleted. %d queues without messages in the log keep their ends",
        directory,
        aside,
        len(expired),
    )
    with wrap_os_errors("put aside", directory):
        directory.rename(aside)
        sync_folder(directory.parent)
    finish_replacement(directory)
    return aside


def finish_replacement(directory: Path) -> None:
    """Finish an interrupted replacement. Raises Unavailable, Invalid."""
    new = _new_place(directory)
    if not new.exists():
        return
    with wrap_os_errors("put in place", new):
        if directory.exists():  # it was not finished: the next replacement creates it again
            shutil.rmtree(new)
        else:
            new.rename(directory)
        sync_folder(directory.parent)


def _new_place(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}{NEW_SUFFIX}")


def _find_free_name(directory: Path) -> Path:
    number = 1
    while (place := directory.with_name(f"{directory.name}{DAMAGED_SUFFIX}-{number}")).exists():
        number += 1
    return place


def _make_database(directory: Path, lasts: dict[QueueKey, layout.Place]) -> None:
    database = open_database(directory)
    try:
        waiting = list(lasts.items())
        for start in range(0, len(waiting), _QUEUES_A_WRITE):
            batch = database.make_batch()
            for key, last in waiting[start : start + _QUEUES_A_WRITE]:
                batch.put_offset(
                    layout.pack_max_key(key), layout.pack_place(layout.Place(0, last.offset))
                )
                batch.put_offset(
                    layout.pack_min_key(key), layout.pack_place(layout.Place(0, last.offset + 1))
                )
            database.write(batch)
        database.sync()
    finally:
        database.close()
    with wrap_os_errors("sync the folder", directory):
        sync_folder(directory)


def _find_ends(directory: Path) -> dict[QueueKey, layout.Place]:
    """Find the last message of each queue in a damaged database, from its list of queues and its
    units. Both are read after the library has repaired a folder with links to the database's
    files."""
    library = import_rocksdict()
    ends: dict[QueueKey, layout.Place] = {}
    with make_temporary_folder("tieredstore-rocksdb-") as folder:
        link_files(directory, folder)
        try:
            library.Rdict.repair(str(folder), library.Options(raw_mode=True))
            found = library.Rdict.list_cf(str(folder), library.Options(raw_mode=True))
            families = {name: library.Options(raw_mode=True) for name in found}
            access = library.AccessType.read_only(False)
            database = library.Rdict(str(folder), families[layout.DEFAULT_FAMILY], families, access)
        except Exception as error:
            _log.warning("%s: where its queues ended cannot be read: %s", directory, error)
            return ends
        try:
            places = [_read_last_units(database.iter())]
            if layout.OFFSET_FAMILY in families:
                places.append(_read_lasts(database.get_column_family(layout.OFFSET_FAMILY).iter()))
            for read in places:
                try:
                    for key, place in read:
                        known = ends.get(key)
                        if known is None or known.offset < place.offset:
                            ends[key] = place
                except Exception as error:  # what the library raises, and Corrupt
                    _log.warning("%s: not all of it can be read: %s", directory, error)
        finally:
            database.close()
    return ends


def _read_lasts(cursor: Any) -> Iterator[tuple[QueueKey, layout.Place]]:
    cursor.seek_to_first()
    while cursor.valid():
        key = cursor.key()
        if layout.is_max_key(key) and key != layout.CHECKPOINT_KEY:
            queue = layout.unpack_offset_key(key).queue
            place = layout.unpack_place(cursor.value(), "last message of", queue)
            if place.offset >= 0:
                yield queue, place
        cursor.next()
    cursor.status()


def _read_last_units(cursor: Any) -> Iterator[tuple[QueueKey, layout.Place]]:
    """Yield the last message of each queue from its units, with a few seeks per queue."""
    cursor.seek_to_first()
    while cursor.valid():
        cursor.seek_for_prev(layout.pack_unit_end(layout.unpack_unit_key(cursor.key())[0]))
        if not cursor.valid():
            break
        queue, offset = layout.unpack_unit_key(cursor.key())
        yield (
            queue,
            layout.Place(
                layout.unpack_number(cursor.value()[: layout.NUMBER_SIZE], "unit"), offset
            ),
        )
        cursor.next()
    cursor.status()
