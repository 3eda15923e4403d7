"""One file-based consume queue: where the messages of a queue are, in order.

Unit q (20 bytes, `docs/formats/consume-queue.md`) is at byte 20·q of the queue's address space,
which is cut into files of one size. A queue that began at a higher offset is filled with blank
units before it; they are never a message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from tieredstore.disk.file_operations import Stamp
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.local.log.file_names import FileRun, file_name, list_files
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.interface import Units
from tieredstore.local.queues.kept_ends import KeptQueue, find_stamp
from tieredstore.local.queues.tail_search import find_cut, find_minimum, find_tail, is_held
from tieredstore.message.consume_queue import (
    BLANK_SIZE_FIELD,
    BLANK_UNIT,
    UNIT_DTYPE,
    UNIT_SIZE,
)

PAGE_BYTES: Final = 4096
_FILL_BYTES = 1 << 20


def round_up_to_units(size_bytes: int) -> int:
    """Round the size of a file up to whole units, as Java does."""
    return -(-size_bytes // UNIT_SIZE) * UNIT_SIZE


class ConsumeQueue:
    """A `ConsumeQueueInterface` in files. Offsets are queue offsets (messages) unless a name says
    otherwise.

    One writer; any number of readers, which see whole units only. `max_physical_offset` is the end
    of the last message that was put in the queue (bytes of the commit log, 0 when unknown).
    """

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
        self.dirty_from = -1  # bytes: what is synced ends here; -1: all is
        self._has_new_files = False  # their names are not synced
        self._directory = directory
        self._files = files
        self._note_dirty = note_dirty
        self._file_size = file_size or 0
        self._start = 0  # bytes: first byte of the first file, first byte behind the last one
        self._end = 0
        # Of the first unit, read with the tail: its offset, then what it leads to (physical offset,
        # size). Until the minimum is looked for.
        self._first: tuple[int, tuple[int, int]] | None = None
        self._is_owner = True
        self._lock = threading.Lock()

    def load(self, *, owner: bool) -> None:
        """Find the files and the tail. Raises Corrupt, Invalid or Unavailable.

        The tail is the first unit that is no unit (size 0); `truncate` corrects it afterwards.
        """
        self._is_owner = owner
        run = list_files(
            self._directory,
            file_size=self._file_size or None,
            unit_size=UNIT_SIZE,
            delete_empty_last=owner,
        )
        self.load_run(run)

    def load_kept(self, kept: KeptQueue) -> None:
        """Take the queue as a stop has kept it, with files of the size that it has now."""
        self._start, self._end = kept.start, kept.end
        self.min_offset, self.max_offset = kept.min_offset, kept.max_offset
        self.max_physical_offset = kept.max_physical_offset

    def find_kept(self) -> KeptQueue:
        """Find what a stop keeps of a queue that nobody writes any more. Raises OSError."""
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
        """Find the stamps of the folder and of each file. Raises OSError."""
        begins = range(self._start, self._end, self._file_size)
        return [
            find_stamp(str(self._directory)),
            *(find_stamp(self._path(begin)) for begin in begins),
        ]

    def load_run(self, run: FileRun) -> None:
        """Take these files, of those that the folder has, and find the tail. Raises Corrupt."""
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
        """last: the last unit, where it was read already."""
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
        """Return the path of the file that holds (or would hold) the unit of an offset."""
        position = offset * UNIT_SIZE
        return self._path(position - position % self._file_size if self._file_size else 0)

    @property
    def units_per_file(self) -> int:
        return self._file_size // UNIT_SIZE

    def roll_next_file(self, offset: int) -> int:
        """Return the first offset of the file behind the one that holds an offset."""
        per_file = self.units_per_file
        return offset + per_file - offset % per_file if per_file else offset

    def _read_file(self, offset: int, count: int) -> Units:
        position = offset * UNIT_SIZE
        begin = position - position % self._file_size
        data = self._files.read(self._path(begin), count * UNIT_SIZE, position - begin)
        return np.frombuffer(data, dtype=UNIT_DTYPE)

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units from an offset on: fewer where a file or the queue ends, none
        outside [min_offset, max_offset)."""
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
        # Deleted meanwhile: what was read may be of another queue's files of the same names.
        return np.empty(0, dtype=UNIT_DTYPE)

    def _has(self, offset: int) -> bool:
        return self.min_offset <= offset < self.max_offset

    def _was_deleted(self, offset: int) -> bool:
        """Whether the file of an offset was expired, or the queue deleted, while it was read."""
        if not self._is_owner and not Path(self.path_of(offset)).exists():
            self.min_offset = max(self.min_offset, self.roll_next_file(offset))
        return not self._has(offset)

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Read (physical offset, size, tags code) of one message; None outside the queue."""
        units = self.read_units(offset, 1)
        return None if not len(units) else units[0].item()

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:
        """Read the store time of one message from its record; -1 outside the queue."""
        unit = self.unit(offset)
        return -1 if unit is None else record_time(unit[0])

    # Everything below is for the owner only.

    def append(self, offset: int, units: bytes, max_physical_offset: int) -> None:
        """Put consecutive units, the first of which belongs to an offset.

        Units that the queue already has are skipped, so records may be dispatched again. A new
        queue may begin anywhere; units that leave a hole behind the tail raise Corrupt, and so
        does another message for an offset that is taken.
        max_physical_offset: end of the last message (bytes of the commit log).
        """
        with self._lock:
            has_place = offset == self.max_offset and self._end > self._start
            if not self.max_physical_offset and offset >= self.max_offset and not has_place:
                # Blank units of a beginning that did not reach the disk whole are made again.
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
        """Compare units with those that the queue has at their offsets. Raises Corrupt where it has
        another, earlier message: that one would be lost. A later message stays: what is put again
        is of a life of the queue that is over."""
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
        """Let a queue without files begin at an offset, with blank units before it."""
        if not offset:
            return
        inside = offset * UNIT_SIZE % self._file_size
        begin = offset * UNIT_SIZE - inside
        self._files.create(self._path(begin), self._file_size)
        try:
            self._fill_blanks(begin, inside)
        except BaseException:
            self._files.delete(self._path(begin))  # it is tried again
            raise
        self._start, self._end = begin, begin + self._file_size
        self.min_offset = self.max_offset = offset

    def _fill_blanks(self, begin: int, length: int) -> None:
        """Fill the first bytes of a file with blank units, on disk when this returns: zeros left of
        them would be taken for the queue's end."""
        if not length:
            return
        self._files.write(self._path(begin), BLANK_UNIT * (length // UNIT_SIZE), 0)
        self._files.sync(self._path(begin))
        for folder in (self._directory, *self._directory.parents[:2]):
            self._files.sync_folder(folder)

    def truncate(self, physical_offset: int) -> None:
        """Drop the units at the tail whose messages are not wholly before a commit log offset."""
        with self._lock:
            offset = self.find_cut(physical_offset)
            if offset < self.max_offset:
                self._cut_units(offset)

    def find_cut(self, physical_offset: int) -> int:
        """Find the offset from which on no message is wholly before a commit log offset; a unit
        that is none (zeros of a lost write) counts as behind it."""
        first = self._start // UNIT_SIZE
        return find_cut(self._read_file, first, self.max_offset, physical_offset)

    def _cut_units(self, offset: int) -> None:
        self._first = None
        position, end = offset * UNIT_SIZE, self.max_offset * UNIT_SIZE
        while position < end:  # zero what is dropped, so that it is not found again
            inside = position % self._file_size
            length = min(end - position, self._file_size - inside, _FILL_BYTES)
            self._files.write(self._path(position - inside), bytes(length), inside)
            position += length
        self.max_offset = offset
        self.min_offset = min(self.min_offset, offset)
        self._set_max_physical()

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set min_offset to the first message that the commit log still holds (max_offset when
        there is none); blank units never count."""
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
        """Correct the minimum, then delete the files in front of it, the last one never; returns
        how many. Raises Unavailable; then the next call goes on."""
        with self._lock:
            self._correct_min_offset(min_physical_offset)
            count = 0
            # The oldest first, each for good before the next: whatever is lost, no gap is left.
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
        """Whether a file leads to nothing the log holds, by its first and its last unit: a damaged
        one between them can lead a search for the minimum astray."""
        ends = begin // UNIT_SIZE, (begin + self._file_size) // UNIT_SIZE - 1
        return not any(is_held(self._read_file, offset, min_physical_offset) for offset in ends)

    def has_dirty_pages(self, least_pages: int) -> bool:
        """Tell whether so many pages (4,096 bytes) were written since the last sync, or a file is
        full; 0: whether anything was."""
        begin, end = self.dirty_from, self.max_offset * UNIT_SIZE
        if begin < 0 or not self._file_size:
            return False
        pages = end // PAGE_BYTES - begin // PAGE_BYTES
        return pages >= least_pages or begin // self._file_size < end // self._file_size

    def sync(self) -> set[Path]:
        """Sync the files: the units are on disk when this returns, once the folders that it
        returns are synced too."""
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
                if self._start <= begin < self._end:  # else it was deleted meanwhile
                    later = self.dirty_from
                    self.dirty_from = begin if later < 0 else min(begin, later)
                    self._has_new_files |= has_new_files
            raise
        return folders

    def _sync_from(self, begin: int) -> None:
        # The file that an empty queue begins with as well: without it the offset would be lost.
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
                with self._lock:  # whoever deletes the queue has done it then
                    if self._start <= start < self._end:
                        self._files.sync(self._path(start), self._file_size)

    def initialize_with_offset(self, offset: int) -> None:
        """Delete what is there and let the queue begin, empty, at an offset."""
        self.destroy()
        with self._lock:
            if offset > 0:
                self._begin_at(offset)
                self.dirty_from = self._start
                self._note_dirty(self)

    def drop_units_before(self, offset: int) -> None:
        """Drop the units before an offset of the queue; those from there on stay."""
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
        """Delete the queue's files, on disk when this returns: after a crash all are there, or
        none."""
        with self._lock:
            self._remove_files()

    def _remove_files(self) -> None:
        # Readers first: they must not meet files of the same names that are made later.
        self.min_offset = self.max_offset = 0
        self.max_physical_offset = 0
        self.dirty_from = -1
        try:
            if self._end > self._start:
                self._files.delete_folder(self._directory)
        finally:
            if not self._directory.is_dir():  # also when what came behind the removal failed
                self._start = self._end = 0
        self._start = self._end = 0
