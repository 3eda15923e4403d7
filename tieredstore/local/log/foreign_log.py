"""Commit log that another process owns, read by position and never mapped. Also searches for
records in a damaged part of a log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.errors import Invalid, Unavailable
from tieredstore.local.log.commit_log import COMMIT_LOG_DIRECTORY, find_log_directory
from tieredstore.local.log.file_names import NAME_DIGITS, FileRun, file_name, list_files
from tieredstore.local.log.gathering import Runs, gather_runs
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.layout import MAGIC_V1, MAGIC_V2, MAGICS, PHYSICAL_OFFSET_POSITION


class ForeignCommitLog:
    """CommitLogReader for a store of another process. `file_size`: size of log files (bytes)."""

    def __init__(self, directory: Path, files: PositionalFiles) -> None:
        self.directory = directory
        self._files = files
        self.run = FileRun(0, 0, 0)

    def refresh(self) -> None:
        """Update the list of files. Raises Corrupt or Invalid."""
        self.run = list_files(self.directory, file_size=None)

    @property
    def file_size(self) -> int:
        return self.run.file_size or 1  # without a file no two bytes are in the same file

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
        """Return the path of the file that contains the byte at `offset`."""
        return self.directory / file_name(offset - offset % self.file_size)

    def rest_of_file(self, offset: int) -> memoryview:
        """Return all readable bytes from `offset` to the end of its file."""
        end = min(offset - offset % self.file_size + self.file_size, self.run.end)
        return self.get(offset, end - offset) or memoryview(b"")

    def skip_hole(self, offset: int) -> int:
        """Return the first position at or after `offset` that is not in a hole of the file, or the
        end of the file."""
        place = self._place(offset, 1)
        if place is None:
            return offset
        return offset - place[1] + max(self._files.skip_hole(*place), place[1])

    def is_resident(self, offset: int, size: int) -> bool:
        place = self._place(offset, size)
        return place is not None and self._files.is_resident(place[0], place[1], size)


_CHUNK_BYTES: Final = 8 << 20
_MAGIC_START: Final = MAGIC_V1.to_bytes(4, "big")[:3]
_LAST_BYTES: Final = (MAGIC_V1 & 0xFF, MAGIC_V2 & 0xFF)


def find_record(log: ForeignCommitLog, offset: int) -> int:
    """Return the first position at or after `offset` where a record seems to begin, or -1. Such a
    record has a magic number and its own physical offset."""
    while offset < log.readable_offset:
        file_end = offset - offset % log.file_size + log.file_size
        while (offset := log.skip_hole(offset)) < file_end:
            length = min(_CHUNK_BYTES, file_end - offset)
            chunk = log.get(offset, length)
            if chunk is None:
                return -1
            data = bytes(chunk)
            at = data.find(_MAGIC_START, 4)
            while at >= 0:
                begin = at - 4
                if data[at + 3 : at + 4] and data[at + 3] in _LAST_BYTES:
                    head = log.get(offset + begin, PHYSICAL_OFFSET_POSITION + 8)
                    if head is not None and offset + begin == int.from_bytes(head[-8:], "big"):
                        return offset + begin
                at = data.find(_MAGIC_START, at + 1)
            if length < _CHUNK_BYTES:
                break
            offset += length - 8  # a magic may cross the border
        offset = file_end
    return -1


_HEAD_BYTES: Final = 8
_VERBS: Final = (
    "so `tieredstore store check`, `store recover`, `store stat`, `cat --store`, `offload` and a "
    "broker of ours refuse it"
)


def check_log_form(root: Path, config: StoreConfig) -> None:
    """Raise Invalid, with cause and remedy, for an unsupported commit log. These are the log of a
    DLedger group, a log in several folders, and a log outside the configured folder."""
    _refuse_dledger(root, config)
    _refuse_several(root, config)


def _refuse_dledger(root: Path, config: StoreConfig) -> None:
    groups = sorted(path for path in root.glob("dledger-*") if path.is_dir())
    is_set = config.plugin_properties.get("enableDLegerCommitLog", "").lower() == "true"
    if not groups and not is_set:
        return
    found = f"{groups[0]} is there" if groups else "enableDLegerCommitLog is true"
    raise Invalid(
        f"store {root}: it belongs to a DLedger group ({found}). Its log has entries of another "
        "form, and entries of a member may be cut off again when another member leads. It cannot "
        f"be uploaded, {_VERBS}. While its brokers run, `tieredstore tail` reads its messages "
        "through them, and any producer can put them into an ordinary broker",
        path=str(root),
    )


def _refuse_several(root: Path, config: StoreConfig) -> None:
    given = config.store_path_commit_log
    log = find_log_directory(config, root)
    if "," in given:
        folders = [part for part in given.split(",") if part]
        cause = f"storePathCommitLog: expected one folder, found {given!r}"
    else:
        others = [folder for folder in _find_logs(root) if folder != log]
        if log.is_dir():
            others = [folder for folder in others if _goes_on(log, folder)]
        if not others:
            return
        folders = [str(folder) for folder in (*([log] if log.is_dir() else []), *others)]
        if len(folders) == 1:
            raise Invalid(
                f"store {root}: no message store: expected a folder {log}, found a log in "
                f"{folders[0]}: storePathCommitLog has to name it, with --config where a verb "
                "takes one",
                path=str(root),
            )
        cause = f"found a log in each of {', '.join(folders)}"
    target = root / COMMIT_LOG_DIRECTORY
    raise Invalid(
        f"store {root}: its commit log lies in several folders ({cause}), as storePathCommitLog of "
        f"a Java broker may say, {_VERBS}. Stop the broker, put all files into one folder, such as "
        f"{target}, set storePathCommitLog to it, and run `tieredstore store check {root}`",
        path=str(root),
    )


def _goes_on(log: Path, other: Path) -> bool:
    """Return whether the folder `other` has more files of the same log, in a gap or after its end.
    A copy of the log would have the same file names instead."""
    names, more = ({*filter(_is_log_name, os.listdir(path))} for path in (log, other))  # noqa: PTH208
    return bool(names) and not names & more and max(more) > min(names)


def _find_logs(root: Path) -> list[Path]:
    """Return the folders of a store that contain commit log files, according to file names and
    first bytes."""
    found = []
    with wrap_os_errors("list", root):
        folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        for folder in folders:
            names = (name for name in sorted(os.listdir(folder)) if _is_log_name(name))  # noqa: PTH208
            first = next(names, None)
            if first is not None and _begins_with_record(folder / first):
                found.append(folder)
    return found


def _is_log_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _begins_with_record(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return int.from_bytes(head[4:], "big") in MAGICS
