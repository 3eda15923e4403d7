"""The commit log of a store that this process does not own, read by position and never mapped."""

from __future__ import annotations

from pathlib import Path

from tieredstore.errors import Unavailable
from tieredstore.local.log.file_names import FileRun, file_name, list_files
from tieredstore.local.log.gathering import Runs, gather_runs
from tieredstore.local.positional_files import PositionalFiles


class ForeignCommitLog:
    """A `CommitLogReader`. file_size: length of the log's files, bytes."""

    def __init__(self, directory: Path, files: PositionalFiles) -> None:
        self.directory = directory
        self._files = files
        self.run = FileRun(0, 0, 0)

    def refresh(self) -> None:
        """See which files there are. Raises Corrupt or Invalid."""
        self.run = list_files(self.directory, file_size=None)

    @property
    def file_size(self) -> int:
        return self.run.file_size or 1  # without a file no byte is in the same one as another

    @property
    def min_offset(self) -> int:
        return self.run.start

    @property
    def readable_offset(self) -> int:
        return self.run.end

    @property
    def confirm_offset(self) -> int:
        return self.run.end

    @property
    def flushed_offset(self) -> int:
        return self.run.end

    def _place(self, offset: int, size: int) -> tuple[str, int] | None:
        run = self.run
        if size < 0 or offset < run.start or offset + size > run.end or offset == run.end:
            return None
        inside = offset % run.file_size
        if inside + size > run.file_size:
            return None
        return f"{self.directory}/{file_name(offset - inside)}", inside

    def get(self, offset: int, size: int) -> memoryview | None:
        place = self._place(offset, size)
        if place is None:
            return None
        try:
            return memoryview(self._files.read(place[0], size, place[1]))
        except Unavailable:
            if Path(place[0]).exists():
                raise
            self.refresh()  # the owner has deleted an expired file
            return None

    def gather(self, runs: Runs) -> bytearray | None:
        return gather_runs(runs.list_spans(), self.get)

    def path_of(self, offset: int) -> Path:
        """Return the path of the file that holds (or would hold) a byte."""
        return self.directory / file_name(offset - offset % self.file_size)

    def rest_of_file(self, offset: int) -> memoryview:
        """Return everything readable from an offset on, up to the end of its file."""
        end = min(offset - offset % self.file_size + self.file_size, self.run.end)
        return self.get(offset, end - offset) or memoryview(b"")

    def skip_hole(self, offset: int) -> int:
        """Return the first byte of the log from an offset on that may be other than zero; the end
        of its file without one."""
        place = self._place(offset, 1)
        if place is None:
            return offset
        return offset - place[1] + max(self._files.skip_hole(*place), place[1])

    def is_resident(self, offset: int, size: int) -> bool:
        place = self._place(offset, size)
        return place is not None and self._files.is_resident(place[0], place[1], size)
