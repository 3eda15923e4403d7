"""A consume queue with an extension: its units hold addresses, and readers get tags codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tieredstore.local.log.file_names import FileRun
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.extension.files import ConsumeQueueExt
from tieredstore.local.queues.interface import QueueUnits, Units
from tieredstore.message.consume_queue import BLANK_SIZE_FIELD, MIN_EXTENDED_ADDRESS


class ExtendedConsumeQueue(ConsumeQueue):
    """A `ConsumeQueue` with an extension, which is written first, synced first and deleted last: no
    unit leads to a place that was never written, or that another message has."""

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
        """Take these files, and of the extension what they lead to. Raises Corrupt."""
        super().load_run(run)
        if self._is_owner:
            self._fit_extension()

    def _fit_extension(self) -> None:
        """Let the extension go on behind what the last unit leads to."""
        code = None
        if self.max_offset > self.min_offset:
            _, size, last = self._read_file(self.max_offset - 1, 1)[0].item()
            code = None if size == BLANK_SIZE_FIELD else last
        self.extension.load(code)

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units as the queue does, with tags codes instead of addresses; where
        the extension lacks a unit, the address stays."""
        units = super().read_units(offset, count)
        rows = np.flatnonzero(units["tags_code"] <= MIN_EXTENDED_ADDRESS)
        if not len(rows):
            return units
        units = units.copy()
        addresses = units["tags_code"][rows].astype(np.int64)
        units["tags_code"][rows] = self.extension.find_tags_codes(addresses)
        # Deleted meanwhile: the extension may be deleted too, and hold other units.
        return units if self._has(offset) else units[:0]

    # Everything below is for the owner only.

    def append_extended(self, group: QueueUnits) -> None:
        """Put units as `append` does, with what they hold in the extension. Raises what `append`
        raises; then nothing is kept of it in the extension."""
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
            if self.max_offset == before:  # else an interrupt came behind it all
                self.extension.end = end_before
            raise

    def _cut_units(self, offset: int) -> None:
        super()._cut_units(offset)
        self._fit_extension()

    def sync(self) -> set[Path]:
        """Sync the extension, then the files: both are on disk when this returns, once the folders
        that it returns are synced too."""
        folders = self.extension.sync()
        return folders | super().sync()

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete files as the queue does, then those of the extension that lead to nothing; returns
        how many of the queue's. Raises Unavailable; then the next call goes on."""
        count = super().delete_expired(min_physical_offset)
        self._expire_extension()
        return count

    def drop_units_before(self, offset: int) -> None:
        """Drop the units before an offset of the queue; those from there on stay."""
        super().drop_units_before(offset)
        self._expire_extension()

    def _expire_extension(self) -> None:
        offset = self.min_offset
        units = super().read_units(offset, 1)
        if len(units) and units["tags_code"][0] <= MIN_EXTENDED_ADDRESS:
            self.extension.delete_before(int(units["tags_code"][0]))

    def destroy(self) -> None:
        """Delete the files, then those of the extension, on disk when this returns."""
        super().destroy()
        self.extension.destroy()
