"""Consume queue in files: the positions of a queue's messages, in order.

Unit q (20 bytes, `docs/formats/consume-queue.md`) is at byte 20·q of the queue's address space,
which is divided into files of one size. If a queue begins at a higher offset, its first file is
filled up to this offset with blank units, which are not messages.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tieredstore.disk.file_operations import Stamp, make_stamp
from tieredstore.disk.notes import find_note, keep_note
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.local.log.file_names import FileRun, file_name, list_files
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.interface import LogSpan, Units
from tieredstore.local.queues.unit_search import find_cut, find_minimum, find_tail, is_held
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD, BLANK_UNIT, UNIT_DTYPE, UNIT_SIZE

KEPT_FILE: Final = "tieredstore.queues.json"
_FORMAT: Final = 1
_log = logging.getLogger(__name__)


class KeptQueue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Saved state of one queue. `start`, `end`: start of its first file and end of its last file
    (bytes). The offsets are those of `ConsumeQueue`. `stamps`: stamps of the queue's folder and of
    each file."""

    topic: str
    queue_id: int
    start: int
    end: int
    min_offset: int
    max_offset: int
    max_physical_offset: int
    stamps: list[Stamp]


class KeptEnds(msgspec.Struct, frozen=True):
    """State of all queues, saved in a file at a stop. `file_size`: size of the queues' files
    (bytes). `folders`: stamp of each topic's folder by topic, and of the top folder by ""."""

    log: LogSpan
    file_size: int
    folders: dict[str, Stamp]
    queues: list[KeptQueue]
    format: int = _FORMAT


def find_stamp(path: str) -> Stamp:
    """Return the stamp (identity, size and time) of a file or folder. Raises OSError."""
    return make_stamp(os.stat(path))  # noqa: PTH116 - asked often for each of very many queues


def keep_ends(root: Path, ends: KeptEnds) -> None:
    """Write the state of the queues to the file, after the last write to the queues. If the disk is
    full, nothing is written, and the next start reads the queues."""
    keep_note(root / KEPT_FILE, ends)


def find_kept_ends(root: Path) -> KeptEnds | None:
    """Read the state of the queues, or return None if the file is missing or unreadable."""
    found = find_note(root / KEPT_FILE, KeptEnds)
    return found if found is not None and found.format == _FORMAT else None


PAGE_BYTES: Final = 4096
_FILL_BYTES = 1 << 20


def round_up_to_units(size_bytes: int) -> int:
    """Round a file size up to whole units, as Java does."""
    return -(-size_bytes // UNIT_SIZE) * UNIT_SIZE


class ConsumeQueue:
    """`ConsumeQueueInterface` in files. Offsets are queue offsets (messages) unless their name
    contains another unit. One writer and any number of readers, which see only whole units.
    `max_physical_offset`: end of the last message in the queue (bytes of the commit log), or 0 if
    unknown."""

    __slots__ = (
        "_directory",
        "_end",
        "_file_size",
        "_files",
        "_first",
        "_has_new_files",
        "_is_owner",
        "_lock",
        "_note_dirty",
        "_start",
        "dirty_from",
        "max_offset",
        "max_physical_offset",
        "min_offset",
        "queue_id",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        files: PositionalFiles,
        file_size: int | None,
        note_dirty: Callable[[ConsumeQueue], object] = lambda _: None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self.max_physical_offset = 0
        self.dirty_from = -1  # bytes: end of the synced units, -1 if all are
        self._has_new_files = False  # their names are not synced
        self._directory = directory
        self._files = files
        self._note_dirty = note_dirty
        self._file_size = file_size or 0
        self._start = 0  # bytes: begin of the first file, end of the last one
        self._end = 0
        # Of the first unit, read with the tail: its offset, then physical offset and size of its
        # message. Until the minimum is searched.
        self._first: tuple[int, tuple[int, int]] | None = None
        self._is_owner = True
        self._lock = threading.Lock()

    def load(self, *, owner: bool) -> None:
        """Find the files and the tail, which is the first position without a unit (size 0).
        `truncate` corrects the tail afterwards. Raises Corrupt, Invalid or Unavailable."""
        self._is_owner = owner
        run = list_files(
            self._directory,
            file_size=self._file_size or None,
            unit_size=UNIT_SIZE,
            delete_empty_last=owner,
        )
        self.load_run(run)

    def load_kept(self, kept: KeptQueue) -> None:
        """Load the queue from the state that was saved at a stop. The files must have the saved
        size."""
        self._start, self._end = kept.start, kept.end
        self.min_offset, self.max_offset = kept.min_offset, kept.max_offset
        self.max_physical_offset = kept.max_physical_offset

    def find_kept(self) -> KeptQueue:
        """Return the state to save at a stop, after the last write to the queue. Raises OSError."""
        return KeptQueue(
            self.topic,
            self.queue_id,
            self._start,
            self._end,
            self.min_offset,
            self.max_offset,
            self.max_physical_offset,
            self.find_stamps(),
        )

    @property
    def has_files(self) -> bool:
        return self._end > self._start

    def find_stamps(self) -> list[Stamp]:
        """Return the stamps of the queue's folder and of each of its files. Raises OSError."""
        begins = range(self._start, self._end, self._file_size)
        return [
            find_stamp(str(self._directory)),
            *(find_stamp(self._path(begin)) for begin in begins),
        ]

    def load_run(self, run: FileRun) -> None:
        """Set the files of the queue, and find the tail. Raises Corrupt."""
        self._file_size = run.file_size or self._file_size
        self._start, self._end = run.start, run.end
        self.min_offset = run.start // UNIT_SIZE
        self.max_offset = self.min_offset
        self._find_tail()

    def _find_tail(self) -> None:
        self._first = last = None
        if self._end > self._start:
            start, end = self._start // UNIT_SIZE, self._end // UNIT_SIZE
            self.max_offset, first, last = find_tail(
                self._read_file, start, end, self.units_per_file, self._find_hole
            )
            if first is not None:
                begin, size, _ = first.item()
                self._first = start, (begin, size)
        self._set_max_physical(last)

    def _find_hole(self, offset: int) -> int:
        return self._files.skip_data(self.path_of(offset), 0)

    def _set_max_physical(self, last: np.void | None = None) -> None:
        """Set `max_physical_offset`. `last`: the last unit, if it is already known."""
        self.max_physical_offset = 0
        if self.max_offset > self.min_offset:
            begin, size, _ = (
                last if last is not None else self._read_file(self.max_offset - 1, 1)[0]
            ).item()
            if size != BLANK_SIZE_FIELD:
                self.max_physical_offset = begin + size

    def _path(self, begin: int) -> str:
        return f"{self._directory}/{file_name(begin)}"

    def path_of(self, offset: int) -> str:
        position = offset * UNIT_SIZE
        return self._path(position - position % self._file_size if self._file_size else 0)

    @property
    def units_per_file(self) -> int:
        return self._file_size // UNIT_SIZE

    def roll_next_file(self, offset: int) -> int:
        per_file = self.units_per_file
        return offset + per_file - offset % per_file if per_file else offset

    def _read_file(self, offset: int, count: int) -> Units:
        position = offset * UNIT_SIZE
        begin = position - position % self._file_size
        data = self._files.read(self._path(begin), count * UNIT_SIZE, position - begin)
        return np.frombuffer(data, dtype=UNIT_DTYPE)

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units, starting at `offset`. Returns fewer units at the end of a file
        or of the queue, and none outside [min_offset, max_offset)."""
        maximum = self.max_offset
        if count <= 0 or not self.min_offset <= offset < maximum:
            return np.empty(0, dtype=UNIT_DTYPE)
        per_file = self.units_per_file
        count = min(count, maximum - offset, per_file - offset % per_file)
        try:
            units = self._read_file(offset, count)
        except TieredStoreError:
            if not self._was_deleted(offset):
                raise
        else:
            if self._has(offset):
                return units
        # Deleted since: the bytes may be of another queue's files of the same names.
        return np.empty(0, dtype=UNIT_DTYPE)

    def _has(self, offset: int) -> bool:
        return self.min_offset <= offset < self.max_offset

    def _was_deleted(self, offset: int) -> bool:
        """Return whether a read failed because the file with `offset`, or the queue, was
        deleted."""
        if not self._is_owner and not Path(self.path_of(offset)).exists():
            self.min_offset = max(self.min_offset, self.roll_next_file(offset))
        return not self._has(offset)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        units = self.read_units(offset, 1)
        return None if not len(units) else units[0].item()

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:
        unit = self.unit(offset)
        return -1 if unit is None else record_time(unit[0])

    # The rest is only for the owner.

    def append(self, offset: int, units: bytes, max_physical_offset: int) -> None:
        """Append consecutive units. Existing units are skipped, so records may be dispatched again.
        A new queue may begin at any offset.

        `offset`: queue offset of the first unit.
        `max_physical_offset`: end of the last message (bytes of the commit log).

        Raises Corrupt for units that leave a hole after the tail, and for another message at an
        existing offset.
        """
        with self._lock:
            has_place = offset == self.max_offset and self._end > self._start
            if not self.max_physical_offset and offset >= self.max_offset and not has_place:
                # Blank units at the beginning that did not completely reach the disk are rewritten.
                self._remove_files()
                self._begin_at(offset)
            skip = self.max_offset - offset
            if skip > 0 and offset >= self.min_offset:
                self._check_same(offset, units)
            if skip * UNIT_SIZE >= len(units):
                return
            if skip > 0:
                units, offset = units[skip * UNIT_SIZE :], self.max_offset
            elif skip < 0:
                raise self._make_hole_error(offset)
            position = offset * UNIT_SIZE
            self._make_files(position + len(units))
            if self.dirty_from < 0:
                self.dirty_from = position
                self._note_dirty(self)
            begin = position - position % self._file_size
            if position + len(units) <= begin + self._file_size:
                self._files.write(self._path(begin), units, position - begin)
            else:
                self._write_across(units, position)
            self.max_physical_offset = max_physical_offset
            self.max_offset = offset + len(units) // UNIT_SIZE

    def _check_same(self, offset: int, units: bytes) -> None:
        """Compare units with the existing units at their offsets. Raises Corrupt if an existing
        unit belongs to an earlier message, because the new message would be lost. A later message
        in an existing unit is accepted, because the new unit is then from before a deletion of the
        queue."""
        new = np.frombuffer(units, UNIT_DTYPE)[: self.max_offset - offset]
        while len(new):
            old = self.read_units(offset, len(new))
            wanted, found = (
                taken["physical_offset"].astype(np.int64) for taken in (new[: len(old)], old)
            )
            is_lost = found < wanted
            if is_lost.any():
                row = int(is_lost.argmax())
                raise Corrupt(
                    f"{self._directory}: offset {offset + row} belongs to the message at "
                    f"{int(found[row])}, and the one at {int(wanted[row])} has it too",
                    topic=self.topic,
                    queue_id=self.queue_id,
                    offset=offset + row,
                    path=str(self._directory),
                )
            offset, new = offset + len(old), new[len(old) :]

    def _write_across(self, units: bytes, position: int) -> None:
        done = 0
        while done < len(units):
            inside = (position + done) % self._file_size
            part = units[done : done + self._file_size - inside]
            self._files.write(self._path(position + done - inside), part, inside)
            done += len(part)

    def _make_files(self, end: int) -> None:
        while self._end < end:
            self._files.create(self._path(self._end), self._file_size)
            self._has_new_files = True
            self._end += self._file_size

    def _make_hole_error(self, offset: int) -> Corrupt:
        return Corrupt(
            f"{self._directory}: the queue ends at offset {self.max_offset}, but the next "
            f"message has {offset}",
            topic=self.topic,
            queue_id=self.queue_id,
            offset=offset,
            path=str(self._directory),
        )

    def _begin_at(self, offset: int) -> None:
        if not offset:
            return
        inside = offset * UNIT_SIZE % self._file_size
        begin = offset * UNIT_SIZE - inside
        self._files.create(self._path(begin), self._file_size)
        try:
            self._fill_blanks(begin, inside)
        except BaseException:
            self._files.delete(self._path(begin))  # it is retried
            raise
        self._start, self._end = begin, begin + self._file_size
        self.min_offset = self.max_offset = offset

    def _fill_blanks(self, begin: int, length: int) -> None:
        """Fill the first bytes of a file with blank units, durably. Zeros would look like the end
        of the queue."""
        if not length:
            return
        self._files.write(self._path(begin), BLANK_UNIT * (length // UNIT_SIZE), 0)
        self._files.sync(self._path(begin))
        for folder in (self._directory, *self._directory.parents[:2]):
            self._files.sync_folder(folder)

    def truncate(self, physical_offset: int) -> None:
        """Drop the units at the tail whose messages end after `physical_offset`."""
        with self._lock:
            offset = self.find_cut(physical_offset)
            if offset < self.max_offset:
                self._cut_units(offset)

    def find_cut(self, physical_offset: int) -> int:
        """Return the first offset whose message ends after `physical_offset`, or `max_offset`. A
        missing unit (zeros of a lost write) counts as such a message."""
        first = self._start // UNIT_SIZE
        return find_cut(self._read_file, first, self.max_offset, physical_offset)

    def _cut_units(self, offset: int) -> None:
        self._first = None
        position, end = offset * UNIT_SIZE, self.max_offset * UNIT_SIZE
        while position < end:  # zero the dropped units, so that they are not found again
            inside = position % self._file_size
            length = min(end - position, self._file_size - inside, _FILL_BYTES)
            self._files.write(self._path(position - inside), bytes(length), inside)
            position += length
        self.max_offset = offset
        self.min_offset = min(self.min_offset, offset)
        self._set_max_physical()

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set min_offset to the first message that is in the commit log, or to max_offset. Blank
        units are not messages."""
        with self._lock:
            self._correct_min_offset(min_physical_offset)

    def _correct_min_offset(self, min_physical_offset: int) -> None:
        known, self._first = self._first, None
        start = self._start // UNIT_SIZE
        first = known[1] if known is not None and known[0] == start else None
        self.min_offset = find_minimum(
            self._read_file, start, self.max_offset, min_physical_offset, first
        )

    def delete_expired(self, min_physical_offset: int) -> int:
        """Correct the minimum, then delete the files before it, except the last file. Returns the
        number of deleted files. Raises Unavailable if a file cannot be deleted. The next call then
        continues."""
        with self._lock:
            self._correct_min_offset(min_physical_offset)
            count = 0
            # The oldest first, each durably before the next, so that no crash leaves a gap.
            while (
                self._start + self._file_size <= self.min_offset * UNIT_SIZE
                and self._start + self._file_size < self._end
                and self._has_expired(self._start, min_physical_offset)
            ):
                self._files.delete(self._path(self._start))
                self._start += self._file_size
                self._files.sync_folder(self._directory)
                count += 1
            return count

    def _has_expired(self, begin: int, min_physical_offset: int) -> bool:
        """Return whether no unit of a file has a message in the log. Only the first and last unit
        are checked, because a damaged unit between them could mislead a search for the minimum."""
        ends = begin // UNIT_SIZE, (begin + self._file_size) // UNIT_SIZE - 1
        return not any(is_held(self._read_file, offset, min_physical_offset) for offset in ends)

    def has_dirty_pages(self, least_pages: int) -> bool:
        """Return whether at least `least_pages` pages (4,096 bytes) were written since the last
        sync, or a file is full. If `least_pages` is 0, return whether anything was written."""
        begin, end = self.dirty_from, self.max_offset * UNIT_SIZE
        if begin < 0 or not self._file_size:
            return False
        pages = end // PAGE_BYTES - begin // PAGE_BYTES
        return pages >= least_pages or begin // self._file_size < end // self._file_size

    def sync(self) -> set[Path]:
        """Sync the files and return their folders. The units are on disk once these folders are
        synced too."""
        with self._lock:
            begin = max(self.dirty_from, self._start) if self.dirty_from >= 0 else -1
            has_new_files = self._has_new_files
            self.dirty_from, self._has_new_files = -1, False
        folders = {self._directory, *self._directory.parents[:2]} if has_new_files else set()
        if begin < 0 or not self._file_size:
            return folders
        try:
            self._sync_from(max(begin - begin % self._file_size, self._start))
        except BaseException:
            with self._lock:
                if self._start <= begin < self._end:  # otherwise it was deleted since
                    later = self.dirty_from
                    self.dirty_from = begin if later < 0 else min(begin, later)
                    self._has_new_files |= has_new_files
            raise
        return folders

    def _sync_from(self, begin: int) -> None:
        # Includes the first file of an empty queue, without which the offset would be lost.
        end = max(self.max_offset * UNIT_SIZE, begin + 1)
        for start in range(begin, end, self._file_size):
            try:
                self._files.sync(self._path(start), self._file_size)
            except (Unavailable, Corrupt) as error:
                is_gone = isinstance(error, Corrupt) or isinstance(
                    error.__cause__, FileNotFoundError
                )
                if not is_gone:
                    raise
                with self._lock:  # the deletion of the queue has done it
                    if self._start <= start < self._end:
                        self._files.sync(self._path(start), self._file_size)

    def initialize_with_offset(self, offset: int) -> None:
        self.destroy()
        with self._lock:
            if offset > 0:
                self._begin_at(offset)
                self.dirty_from = self._start
                self._note_dirty(self)

    def drop_units_before(self, offset: int) -> None:
        """Drop the units before the queue offset `offset`."""
        with self._lock:
            if not self.min_offset < offset < self.max_offset:
                return
            self.min_offset = offset
            inside = offset * UNIT_SIZE % self._file_size
            begin = offset * UNIT_SIZE - inside
            for start in range(self._start, begin, self._file_size):
                self._files.delete(self._path(start))
            self._start = begin
            self._fill_blanks(begin, inside)

    def destroy(self) -> None:
        """Delete the queue's files durably. After a crash, all of them exist or none."""
        with self._lock:
            self._remove_files()

    def _remove_files(self) -> None:
        # Readers first: they must not meet later files of the same names.
        self.min_offset = self.max_offset = 0
        self.max_physical_offset = 0
        self.dirty_from = -1
        try:
            if self._end > self._start:
                self._files.delete_folder(self._directory)
        finally:
            if not self._directory.is_dir():  # also if the work after the removal failed
                self._start = self._end = 0
        self._start = self._end = 0
