"""The extension of one consume queue: `consumequeue_ext/<topic>/<queueId>/<20 digits>`.

An extended unit has a place, a byte of the address space of the files; a consume queue unit has it
as an address instead of its tags code (`docs/formats/consume-queue-extension.md`). All of it can be
read in the records too, so nothing here is needed to find a message.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from pathlib import Path
from typing import Final

import numpy as np

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.local.log.file_names import file_name, list_files
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.interface import Int64s
from tieredstore.message.buffers import view_unaligned
from tieredstore.message.consume_queue import (
    EXTENDED_ADDRESS_SIGN,
    EXTENDED_UNIT_DTYPE,
    EXTENDED_UNIT_SIZE,
    MIN_EXTENDED_ADDRESS,
)

EXTENSION_DIRECTORY: Final = "consumequeue_ext"
END_BYTES: Final = 4
"""A file has as many bytes left, at least, behind its last unit."""
_END_MARK: Final = struct.pack(">h", -1)
_PLACE_MASK: Final = 2**63 - 1
_READ_BYTES: Final = 1 << 20
_log = logging.getLogger(__name__)


class ConsumeQueueExt:
    """Extended units of one queue. One writer, any number of readers.

    file_size: bytes; 0 takes that of the files (`find_file_size`). end: place of the next unit. No
    place is given out twice as long as a unit of the queue, or a reader, may have it.
    """

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
        self._start = 0  # first byte of the first file
        self._files_end = 0  # first byte behind the last one
        self._dirty_from = -1  # what is synced ends here; -1: all is
        self._has_new_files = False
        self._lock = threading.Lock()

    def _path(self, begin: int) -> str:
        return f"{self.directory}/{file_name(begin)}"

    def _list_files(self) -> list[tuple[int, int]]:
        """(place of the first byte, length) of each file, in order."""
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
        """Take the size of the files from them: the store is another process's. Raises
        Unavailable."""
        self._file_size = next((length for _, length in self._list_files() if length), 0)

    def find_tags_codes(self, addresses: Int64s) -> Int64s:
        """Return the tags codes that are kept at addresses; where there is no unit, or it cannot be
        read, the address stays: the record says the same."""
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

    # Everything below is for the owner only.

    def load(self, last_tags_code: int | None) -> None:
        """Go on behind the extended unit of the queue's last unit, and drop what lies behind it.

        last_tags_code: what that unit has; None for a queue without units, of which nothing is
        kept. Raises Corrupt for files of another size, or a gap between them, and Unavailable.
        """
        if last_tags_code is None:
            self.destroy()
            return
        with self._lock:
            is_address = last_tags_code <= MIN_EXTENDED_ADDRESS
            last = last_tags_code & _PLACE_MASK if is_address else -1
            found = self._list_files()
            # What is behind was never synced; without an address that can be said of a file that
            # is not whole.
            while found and (found[-1][0] > last if is_address else found[-1][1] < self._file_size):
                self._files.delete(self._path(found.pop()[0]))
            run = list_files(self.directory, file_size=self._file_size)
            self._start, self._files_end = run.start, run.end
            # Where it is not known what the last file holds, the next unit begins another one.
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
        """Size of the unit at a place, 0 where there is none."""
        inside = place % self._file_size
        data = self._files.read_up_to(self._path(place - inside), EXTENDED_UNIT_SIZE, inside)
        if len(data) < EXTENDED_UNIT_SIZE:
            return 0
        size, _, _, bitmap_size = np.frombuffer(data, EXTENDED_UNIT_DTYPE)[0].item()
        return size if size == EXTENDED_UNIT_SIZE + max(bitmap_size, 0) else 0

    def _wipe(self, place: int) -> None:
        """Zero the rest of a file, whose units would be taken for such as are there."""
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
        """Put an extended unit for each tags code, without a bitmap; returns their addresses.
        Raises Exhausted or Unavailable; then `end` is what it was."""
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
            if not Path(path).exists():  # else a call that was interrupted has made it
                self._files.create(path, self._file_size)
            if self._start == self._files_end:
                self._start = begin
            self._has_new_files = True
            self._files_end = begin + self._file_size
        return path

    def sync(self) -> set[Path]:
        """Sync the files: the units are on disk when this returns, once the folders that it
        returns are synced too. Raises Exhausted or Unavailable; then the next call goes on."""
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
            with self._lock:  # whoever deletes it has done so then
                if self._start <= start < self._files_end:
                    self._files.sync(self._path(start))

    def delete_before(self, address: int) -> None:
        """Delete the files that end before an address, the last one never. Raises Unavailable;
        then the next call goes on."""
        place = address & _PLACE_MASK
        with self._lock:
            # The oldest first, each for good before the next: no gap is left.
            while (
                self._start + self._file_size <= place
                and self._start + self._file_size < self._files_end
            ):
                self._files.delete(self._path(self._start))
                self._start += self._file_size
                self._files.sync_folder(self.directory)

    def destroy(self) -> None:
        """Delete the files, on disk when this returns. Later units have later places: somebody may
        be about to read one of those that are gone."""
        with self._lock:
            self._start = self.end = self._files_end
            self._dirty_from, self._has_new_files = -1, False
            self._files.delete_folder(self.directory)
