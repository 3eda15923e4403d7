"""Extension of one consume queue: `consumequeue_ext/<topic>/<queueId>/<20 digits>`.

The consume queue unit of a message has the address of its extended unit instead of a tags code
(`docs/formats/consume-queue-extension.md`). The records have the same data, so messages can be
found without the extension.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.local.log.file_names import FileRun, file_name, list_files
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.consume_queue_store import ConsumeQueueStore
from tieredstore.local.queues.interface import Int64s, LogSpan, QueueUnits, Units
from tieredstore.local.queues.names import check_queue_name
from tieredstore.message.buffers import view_unaligned
from tieredstore.message.consume_queue import (
    BLANK_SIZE_FIELD,
    EXTENDED_ADDRESS_SIGN,
    EXTENDED_UNIT_DTYPE,
    EXTENDED_UNIT_SIZE,
    MIN_EXTENDED_ADDRESS,
)
from tieredstore.message.names import LMQ_PREFIX

EXTENSION_DIRECTORY: Final = "consumequeue_ext"
END_BYTES: Final = 4
"""Minimum number of free bytes after the last unit of a file."""
_END_MARK: Final = struct.pack(">h", -1)
_PLACE_MASK: Final = 2**63 - 1
_READ_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)


class ConsumeQueueExt:
    """Extended units of one queue. One writer, any number of readers. `file_size`: bytes, or 0 to
    use the size of existing files (`find_file_size`). `end`: position of the next unit. A position
    is not reused as long as a unit of the queue or a reader may refer to it."""

    __slots__ = (
        "_dirty_from",
        "_file_size",
        "_files",
        "_files_end",
        "_has_new_files",
        "_lock",
        "_start",
        "directory",
        "end",
    )

    def __init__(self, directory: Path, files: PositionalFiles, file_size: int) -> None:
        self.directory = directory
        self.end = 0
        self._files = files
        self._file_size = file_size
        self._start = 0  # begin of the first file
        self._files_end = 0  # end of the last file
        self._dirty_from = -1  # end of the synced units, -1 if all are
        self._has_new_files = False
        self._lock = threading.Lock()

    def _path(self, begin: int) -> str:
        return f"{self.directory}/{file_name(begin)}"

    def _list_files(self) -> list[tuple[int, int]]:
        try:
            with os.scandir(self.directory) as entries:
                return sorted(
                    (int(entry.name), entry.stat().st_size)
                    for entry in entries
                    if entry.name.isascii() and entry.name.isdigit()
                )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise translate_os_error(error, "list", self.directory) from error

    def find_file_size(self) -> None:
        """Use the size of the existing files, for a store of another process. Raises
        Unavailable."""
        self._file_size = next((length for _, length in self._list_files() if length), 0)

    def find_tags_codes(self, addresses: Int64s) -> Int64s:
        """Return the tags codes of the extended units at `addresses`. If an extended unit is
        missing or unreadable, its address is returned. The caller then takes the code from the
        record."""
        codes = addresses.copy()
        if not self._file_size:
            return codes
        places = addresses & _PLACE_MASK
        begins = places - places % self._file_size
        windows = (places - begins) // _READ_BYTES
        for begin, window in set(zip(begins.tolist(), windows.tolist(), strict=True)):
            rows = np.flatnonzero((begins == begin) & (windows == window))
            inside = places[rows] - begin
            low = int(inside.min())
            try:
                data = self._files.read_up_to(
                    self._path(begin), int(inside.max()) + EXTENDED_UNIT_SIZE - low, low
                )
            except TieredStoreError:
                continue
            units = view_unaligned(data, EXTENDED_UNIT_DTYPE)
            is_there = inside - low < len(units)
            rows, found = rows[is_there], units[inside[is_there] - low]
            is_unit = (
                found["size"] == EXTENDED_UNIT_SIZE + np.maximum(found["bitmap_size"], 0)
            ) & (found["tags_code"] > MIN_EXTENDED_ADDRESS)
            codes[rows[is_unit]] = found["tags_code"][is_unit]
        return codes

    # The rest is only for the owner.

    def load(self, last_tags_code: int | None) -> None:
        """Continue after the extended unit of the queue's last unit, and drop later ones.
        `last_tags_code`: tags code of the last unit, or None for a queue without units, whose
        extension is emptied. Raises Unavailable, and Corrupt for a gap between the files or a wrong
        size."""
        if last_tags_code is None:
            self.destroy()
            return
        with self._lock:
            is_address = last_tags_code <= MIN_EXTENDED_ADDRESS
            last = last_tags_code & _PLACE_MASK if is_address else -1
            found = self._list_files()
            # Later bytes were never synced. Without an address, this may apply to an incomplete
            # file.
            while found and (found[-1][0] > last if is_address else found[-1][1] < self._file_size):
                self._files.delete(self._path(found.pop()[0]))
            run = list_files(self.directory, file_size=self._file_size)
            self._start, self._files_end = run.start, run.end
            # If the content of the last file is unknown, the next unit begins another file.
            self.end = run.end
            if not is_address:
                return
            if not run.start <= last < run.end:
                _log.warning("%s: the extended unit at %d is not there", self.directory, last)
                self._files.delete_folder(self.directory)
                self._start = self._files_end = self.end = self._end_of_file(last)
                return
            size = self._read_size(last)
            if size and last + size + END_BYTES <= run.end:
                self.end = last + size
                self._wipe(self.end)

    def _end_of_file(self, place: int) -> int:
        return place - place % self._file_size + self._file_size

    def _read_size(self, place: int) -> int:
        """Return the size of the extended unit at `place`, or 0 if none begins there."""
        inside = place % self._file_size
        data = self._files.read_up_to(self._path(place - inside), EXTENDED_UNIT_SIZE, inside)
        if len(data) < EXTENDED_UNIT_SIZE:
            return 0
        size, _, _, bitmap_size = np.frombuffer(data, EXTENDED_UNIT_DTYPE)[0].item()
        return size if size == EXTENDED_UNIT_SIZE + max(bitmap_size, 0) else 0

    def _wipe(self, place: int) -> None:
        position = place % self._file_size
        path = self._path(place - position)
        while (position := self._files.skip_hole(path, position)) < self._file_size:
            length = min(_READ_BYTES, self._file_size - position)
            data = self._files.read(path, length, position)
            if any(data):
                self._files.write(path, bytes(length), position)
                self._dirty_from = place
            position += length

    def append(self, tags_codes: Int64s, store_timestamps_ms: Int64s) -> Int64s:
        """Append an extended unit for each tags code, without a bitmap. Returns their addresses.
        Raises Exhausted or Unavailable, and then leaves `end` unchanged."""
        count = len(tags_codes)
        units = np.zeros(count, dtype=EXTENDED_UNIT_DTYPE)
        units["size"] = EXTENDED_UNIT_SIZE
        units["tags_code"] = tags_codes
        units["store_timestamp"] = store_timestamps_ms
        places = np.empty(count, dtype=np.int64)
        with self._lock:
            place, done = self.end, 0
            if self._dirty_from < 0:
                self._dirty_from = place
            while done < count:
                inside = place % self._file_size
                path = self._make_file(place - inside)
                room = (self._file_size - inside - END_BYTES) // EXTENDED_UNIT_SIZE
                stop = min(done + room, count)
                if stop == done:
                    self._files.write(path, _END_MARK, inside)
                    place += self._file_size - inside
                    continue
                self._files.write(path, units[done:stop].tobytes(), inside)
                places[done:stop] = place + np.arange(stop - done) * EXTENDED_UNIT_SIZE
                place += (stop - done) * EXTENDED_UNIT_SIZE
                done = stop
            self.end = place
        return places | np.int64(EXTENDED_ADDRESS_SIGN)

    def _make_file(self, begin: int) -> str:
        path = self._path(begin)
        if begin >= self._files_end:
            if not Path(path).exists():  # otherwise an interrupted call has created it
                self._files.create(path, self._file_size)
            if self._start == self._files_end:
                self._start = begin
            self._has_new_files = True
            self._files_end = begin + self._file_size
        return path

    def sync(self) -> set[Path]:
        """Sync the files and return their folders. The units are on disk once these folders are
        synced too. Raises Exhausted or Unavailable. The next call then continues."""
        with self._lock:
            begin, end = self._dirty_from, self._files_end
            has_new_files = self._has_new_files
            self._dirty_from, self._has_new_files = -1, False
        try:
            if begin >= 0:
                for start in range(begin - begin % self._file_size, end, self._file_size):
                    self._sync_file(start)
        except BaseException:
            with self._lock:
                later = self._dirty_from
                self._dirty_from = begin if later < 0 else min(begin, later)
                self._has_new_files |= has_new_files
            raise
        return {self.directory, *self.directory.parents[:3]} if has_new_files else set()

    def _sync_file(self, start: int) -> None:
        try:
            self._files.sync(self._path(start))
        except Unavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            with self._lock:  # its deletion has done so
                if self._start <= start < self._files_end:
                    self._files.sync(self._path(start))

    def delete_before(self, address: int) -> None:
        """Delete the files that end before `address`, except the last file. Raises Unavailable. The
        next call then continues."""
        place = address & _PLACE_MASK
        with self._lock:
            # The oldest first, each durably before the next, so that no crash leaves a gap.
            while (
                self._start + self._file_size <= place
                and self._start + self._file_size < self._files_end
            ):
                self._files.delete(self._path(self._start))
                self._start += self._file_size
                self._files.sync_folder(self.directory)

    def destroy(self) -> None:
        """Delete the files durably. Their positions are not reused, because a reader may still have
        the address of a deleted unit."""
        with self._lock:
            self._start = self.end = self._files_end
            self._dirty_from, self._has_new_files = -1, False
            self._files.delete_folder(self.directory)


class ExtendedConsumeQueue(ConsumeQueue):
    """`ConsumeQueue` with an extension. The extension is written and synced first and deleted last,
    so no unit points to an unwritten position or to another message's extended unit."""

    __slots__ = ("extension",)

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        files: PositionalFiles,
        file_size: int | None,
        extension: ConsumeQueueExt,
        note_dirty: Callable[[ConsumeQueue], object] = lambda _: None,
    ) -> None:
        super().__init__(topic, queue_id, directory, files, file_size, note_dirty)
        self.extension = extension

    def load_run(self, run: FileRun) -> None:
        """Set the files of the queue, and the end of the extension according to the last unit of
        the queue. Raises Corrupt."""
        super().load_run(run)
        if self._is_owner:
            self._fit_extension()

    def _fit_extension(self) -> None:
        """End the extension after the extended unit of the queue's last unit."""
        code = None
        if self.max_offset > self.min_offset:
            _, size, last = self._read_file(self.max_offset - 1, 1)[0].item()
            code = None if size == BLANK_SIZE_FIELD else last
        self.extension.load(code)

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units of the queue, with tags codes instead of addresses. If the
        extension lacks a unit, its address is returned."""
        units = super().read_units(offset, count)
        rows = np.flatnonzero(units["tags_code"] <= MIN_EXTENDED_ADDRESS)
        if not len(rows):
            return units
        units = units.copy()
        addresses = units["tags_code"][rows].astype(np.int64)
        units["tags_code"][rows] = self.extension.find_tags_codes(addresses)
        # Deleted since: the extension may be deleted too, and hold other units.
        return units if self._has(offset) else units[:0]

    # The rest is only for the owner.

    def append_extended(self, group: QueueUnits) -> None:
        """Append units like `append`, and store their tags codes and store times in the extension.
        Raises the errors of `append`, and then leaves the extension unchanged."""
        begin, size, _ = group.units[-1].item()
        units = group.units
        skip = max(self.max_offset - group.offset, 0)
        before, end_before = self.max_offset, self.extension.end
        try:
            if skip < len(units):
                units = units.copy()
                units["tags_code"][skip:] = self.extension.append(
                    units["tags_code"][skip:].astype(np.int64), group.store_timestamps_ms[skip:]
                )
            self.append(group.offset, units.tobytes(), begin + size)
        except BaseException:
            if self.max_offset == before:  # otherwise an interrupt came after everything
                self.extension.end = end_before
            raise

    def _cut_units(self, offset: int) -> None:
        super()._cut_units(offset)
        self._fit_extension()

    def sync(self) -> set[Path]:
        """Sync the extension, then the queue's files, and return their folders. Both are on disk
        once these folders are synced too."""
        folders = self.extension.sync()
        return folders | super().sync()

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete expired files of the queue, then files of the extension that no unit points to.
        Returns the number of deleted queue files. Raises Unavailable if a file cannot be deleted.
        The next call then continues."""
        count = super().delete_expired(min_physical_offset)
        self._expire_extension()
        return count

    def drop_units_before(self, offset: int) -> None:
        super().drop_units_before(offset)
        self._expire_extension()

    def _expire_extension(self) -> None:
        offset = self.min_offset
        units = super().read_units(offset, 1)
        if len(units) and units["tags_code"][0] <= MIN_EXTENDED_ADDRESS:
            self.extension.delete_before(int(units["tags_code"][0]))

    def destroy(self) -> None:
        """Delete the queue's files durably, then those of the extension."""
        super().destroy()
        self.extension.destroy()


class ExtendedConsumeQueueStore(ConsumeQueueStore):
    """`ConsumeQueueStore` with extensions. As in Java, light queues have none.
    `extension_file_size`: bytes."""

    def __init__(
        self, root: Path, files: PositionalFiles, file_size: int, extension_file_size: int
    ) -> None:
        super().__init__(root, files, file_size)
        self._extension_directory = root / EXTENSION_DIRECTORY
        self._extension_file_size = extension_file_size

    def load(self) -> None:
        """Open every queue and find its tail. Raises Corrupt, Invalid or Unavailable."""
        super().load()
        for key in self._find_kept(self._extension_directory):
            if key not in self._queues:  # of a queue that was deleted
                folder = self._extension_directory / key.topic / str(key.queue_id)
                self._files.delete_folder(folder)

    def load_kept(self) -> LogSpan | None:
        """Load nothing and return None, because the positions in the extensions can only be found
        by reading the units."""
        return None

    def keep(self, log: LogSpan) -> None:
        """Save nothing, because `load_kept` loads nothing."""

    def _make_queue(self, key: QueueKey) -> ExtendedConsumeQueue:
        check_queue_name(key)
        place = Path(key.topic) / str(key.queue_id)
        return ExtendedConsumeQueue(
            key.topic,
            key.queue_id,
            self._directory / place,
            self._files,
            self._file_size,
            ConsumeQueueExt(
                self._extension_directory / place, self._files, self._extension_file_size
            ),
            self._note_dirty,
        )

    def append(self, groups: Sequence[QueueUnits], dispatched_offset: int) -> None:
        """Append the units from one pass of the dispatch, queue by queue. Tags codes and store
        times go into the queues' extensions."""
        for group in groups:
            queue = self.get_or_create(group.key)
            if group.key.topic.startswith(LMQ_PREFIX):
                super().append([group], dispatched_offset)
            else:
                assert isinstance(queue, ExtendedConsumeQueue)
                queue.append_extended(group)
