"""Check that an offload always copies from the same store. A Java broker's store has no identity,
so the state directory records the first record of its log."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.notes import find_note
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.log.record_check import check_stored_record
from tieredstore.local.read_only import ReadOnlyMessageStore
from tieredstore.message.layout import size_and_magic

KNOWN_STORE_FILE: Final = "tieredstore.offloadedStore.json"
_HEAD_BYTES: Final = 8


class _FirstRecord(msgspec.Struct, frozen=True):
    """Record of a log: its physical offset and digest."""

    position: int
    digest: str


def check_known_store(store: ReadOnlyMessageStore, state: Path) -> _FirstRecord | None:
    """Return the first record of the store's log, for `remember_store`. Raises Invalid if the log
    has a different record at the position that the state directory remembers. The check is skipped
    if that record has expired or is damaged."""
    path = state / KNOWN_STORE_FILE
    known = find_note(path, _FirstRecord)
    if known is not None and known.position >= store.commit_log.min_offset:
        found = _find_record(store, known.position)
        if found not in (None, known):
            raise Invalid(
                f"state {state}: it has messages of another store than {store.root}: the records "
                f"at byte {known.position} of their commit logs differ. Give the store and the "
                "state that belong together. If the broker lost its store and began a new one, "
                f"delete {path}",
                path=str(path),
            )
        return known
    return _find_record(store, store.commit_log.min_offset)


def remember_store(first: _FirstRecord | None, state: Path) -> None:
    """Write the position and digest of the store's first record into the state directory. Raises
    Unavailable, Exhausted, Invalid."""
    path = state / KNOWN_STORE_FILE
    if first is not None and first != find_note(path, _FirstRecord):
        with wrap_os_errors("write", path):
            FILES.replace_file(path, msgspec.json.encode(first))


def _find_record(store: ReadOnlyMessageStore, position: int) -> _FirstRecord | None:
    log = store.commit_log
    head = log.get(position, _HEAD_BYTES)
    record = None if head is None else log.get(position, size_and_magic(head, 0, _HEAD_BYTES)[0])
    if record is None:
        return None
    try:
        check_stored_record(record, position, log=log)
    except Corrupt:
        return None
    return _FirstRecord(position, hashlib.sha256(record).hexdigest())
