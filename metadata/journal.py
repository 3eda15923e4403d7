"""The journal beside the metadata JSON: what is newer than the snapshot. Sizes and times, and where
no Java broker reads the file, what there is: topics, queues and segments that came or went.

JSON lines. The first names the format version and the SHA-256 of the snapshot that it extends; a
journal of another snapshot says nothing. Each further line holds one entry's present values and
their CRC-32; the last line may be torn. Format: `docs/formats/metadata.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import AppendFile, FileOperations
from tieredstore.errors import Corrupt, Invalid
from tieredstore.metadata.journal_lines import apply_line, parse_line
from tieredstore.metadata.snapshot_files import Snapshot

FORMAT_VERSION = 2
"""With structure in it."""
SIZES_ALONE = 1
"""Format of a journal of sizes and times."""

_LOG = logging.getLogger(__name__)
_FORMATS = (SIZES_ALONE, FORMAT_VERSION)


class Journal:
    """One journal file. Not thread-safe."""

    def __init__(self, path: Path, operations: FileOperations) -> None:
        self._path = path
        self._operations = operations
        self._file: AppendFile | None = None
        self._is_foreign = False
        self.is_superseded = False
        self._is_named = False  # durably, in its folder
        self.size_bytes = 0
        self.format = SIZES_ALONE

    @property
    def path(self) -> Path:
        return self._path

    def replay(
        self,
        snapshot: Snapshot,
        find_former: Callable[[], str],
        limit_bytes: int,
        *,
        read_only: bool,
    ) -> bool:
        """Apply what extends a snapshot; whether the file can be appended to.

        Changes nothing on disk. A journal of another snapshot, or with a bad line, cannot be
        appended to. find_former: finds the digest of the snapshot before. Raises Invalid for a
        newer format version, Corrupt when structure is told of a snapshot that is lost, Unavailable
        when it cannot be read.
        """
        self.size_bytes = 0
        self._is_foreign = self.is_superseded = False
        data = self._read_lines(limit_bytes)
        if data is None:
            return False
        lines = data.split(b"\n")
        torn = lines.pop()  # empty when the last line is whole
        header = _header(lines[0]) if lines else None
        if header is not None:
            version = header["format"]
            if version > FORMAT_VERSION and not read_only:
                raise Invalid(
                    f"{self._path}: format version {version}, this program writes "
                    f"{FORMAT_VERSION}: a newer program wrote it",
                    path=str(self._path),
                )
            self._check_snapshot(header, snapshot, find_former, read_only=read_only)
        if (
            header is None
            or header["snapshot"] != snapshot.digest
            or header["format"] not in _FORMATS
        ):
            self._ignore("it does not extend the metadata file")
            self.is_superseded = True
            return False
        self.format = header["format"]
        self.size_bytes = len(data)  # what is told before damage is to get to the file too
        for number, line in enumerate(lines[1:], 2):
            if not apply_line(line, snapshot.tables):
                self._ignore(f"line {number} is damaged")
                return False
        return not torn

    def _check_snapshot(
        self,
        header: dict[str, Any],
        snapshot: Snapshot,
        find_former: Callable[[], str],
        *,
        read_only: bool,
    ) -> None:
        """Raise Corrupt where what the journal tells is known to be lost with the file that it
        extends. A process that was killed between a new file and its journal leaves that of the
        file before, all of which is in the new one."""
        extended = header["snapshot"]
        if extended == snapshot.digest:
            return
        if not snapshot.digest:
            is_lost = bool(extended)
        elif header["format"] < FORMAT_VERSION:
            return  # sizes and times, which the tier has too
        else:
            is_lost = snapshot.is_backup or not (read_only or extended == find_former())
        if is_lost:
            raise Corrupt(
                f"{self._path} extends a metadata file that is not there (SHA-256 "
                f"{extended[:16]}…); nothing was changed: put back {self._path.stem} or its .bak, "
                "rebuild the metadata from the tier (`tieredstore rebuild metadata --force`), or "
                "remove the journal to go on without the topics, queues and segments that it tells",
                path=str(self._path),
            )

    def find_snapshot(self, limit_bytes: int) -> str:
        """Find the SHA-256 of the snapshot that the journal extends, "" where it does not say.
        Raises Unavailable when it cannot be read."""
        try:
            data = self._read_lines(limit_bytes)
        except Corrupt:
            return ""  # `replay` says what is wrong
        header = _header(data.split(b"\n", 1)[0]) if data else None
        return "" if header is None else str(header["snapshot"])

    def expect_replacement(self) -> None:
        """Let no journal be there, nor come back, that does not extend the present metadata file,
        before there is a new one: it would look like one whose file was lost. Raises OSError."""
        if self.is_superseded:
            self._set_aside()
            self._operations.sync_directory(self._path.parent)
            self.is_superseded = False
        elif self.format == FORMAT_VERSION and self.size_bytes and not self._is_named:
            with suppress(OSError):  # only a loss of power could bring an older one back
                self.sync()

    def start(self, digest: str, *, has_structure: bool = False) -> None:
        """Begin an empty journal of a snapshot that has just been written; keep one that says
        nothing as `.ignored`. has_structure: whether its lines may tell what came and went. Raises
        OSError."""
        self.close()
        self.is_superseded = True
        if self._is_foreign:
            with suppress(OSError):  # it is ignored by its content wherever it is
                self._set_aside()
        self.format = FORMAT_VERSION if has_structure else SIZES_ALONE
        self._is_named = False
        header = orjson.dumps({"format": self.format, "snapshot": digest}) + b"\n"
        self._file = self._operations.open_append(self._path, empty=True)
        self._file.write(header)
        self.size_bytes = len(header)
        self.is_superseded = False

    def _set_aside(self) -> None:
        if self._operations.size(self._path) is not None:
            self._operations.rename(self._path, self._path.with_name(f"{self._path.name}.ignored"))
        self._is_foreign = False

    def append(self, line: bytes) -> None:
        """Append a line. Raises OSError; the last line may be torn then."""
        if self._file is None:
            self._file = self._operations.open_append(self._path, empty=False)
        self._file.write(line)
        self.size_bytes += len(line)

    def sync(self) -> None:
        """Put all lines on stable storage, those that were found there too. Raises OSError: then
        none of them can be counted on."""
        if self._file is None:
            self._file = self._operations.open_append(self._path, empty=False)
        self._file.sync()
        if not self._is_named:
            self._operations.sync_directory(self._path.parent)
            self._is_named = True

    def close(self) -> None:
        """Close the file; `append` opens it again. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_lines(self, limit_bytes: int) -> bytes | None:
        try:
            size = self._operations.size(self._path)
            if size is None:
                return None
            if size > limit_bytes:
                raise Corrupt(
                    f"{self._path}: {size} bytes, more than the limit of {limit_bytes}",
                    path=str(self._path),
                )
            return self._operations.read(self._path)
        except OSError as error:
            raise translate_os_error(error, "read", self._path, invalid=RETRY_LATER) from error

    def _ignore(self, reason: str) -> None:
        _LOG.warning("%s is ignored from there on: %s", self._path, reason)
        self._is_foreign = True


def _header(line: bytes) -> dict[str, Any] | None:
    header = parse_line(line)
    if not isinstance(header, dict) or not isinstance(header.get("snapshot"), str):
        return None
    return header if type(header.get("format")) is int else None
