"""The log of a plain Parquet target: what was added and removed, commit by commit.

    topic=orders/day=2026-11-21/00000001-00000.parquet
    _tieredstore/commits/00000000000000000001.json      state and files of commit 1
    _tieredstore/published/00000000000000000001         what it says is done
    _tieredstore/staging/00000000000000000000-<export>/ what the tasks of an export write
    _tieredstore/staging/compact-<20 digits>-<id>/      and those of a compaction

The commit is the file in `commits`, which is made only if it is not there. What follows from it is
done by whoever comes next, and may be done twice: each new file gets its name, those that were
removed are deleted, then `published` says so. Only the last commit is ever published, for none is
made before the one in front of it is. Readers leave out names that begin with `_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from tieredstore.errors import Corrupt
from tieredstore.jobs.exporting.state import TargetState, decode_state
from tieredstore.jobs.exporting.targets.storage import ArrowFolder, Folder, FolderFiles

_LOG = "_tieredstore"
_COMMITS, _PUBLISHED, STAGING = f"{_LOG}/commits", f"{_LOG}/published", f"{_LOG}/staging"
_COMPACT = "compact-"
_THREADS = 8


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """A file as the task wrote it, below its staging folder, and its place in the target."""

    staged: str
    name: str


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a file in `commits` has. removed: files whose rows are in `files`. compacted: number of
    the last commit that removed any, this one too. exported: number of the one that made the state;
    0 where it is this one."""

    state: TargetState
    staging: str
    files: list[Publication]
    removed: list[str] = []
    compacted: int = 0
    exported: int = 0


@dataclass(frozen=True, slots=True)
class NumberedCommit:
    """A commit and its place in the log, from 1."""

    number: int
    commit: Commit

    @property
    def exported(self) -> int:
        """Number of the commit that made the state."""
        return self.commit.exported or self.number


class CommitLog:
    """The log of one target. Raises Unavailable, and Corrupt for a damaged one."""

    def __init__(self, url: str, options: Mapping[str, str], where: str) -> None:
        """where: the target in messages. Raises Invalid."""
        self._url = url
        self._options = dict(options)
        self._where = where
        self.files: FolderFiles = ArrowFolder(url, self._options).connect()

    @property
    def is_new(self) -> bool:
        """Whether there is no commit."""
        return not self.files.names(_COMMITS)

    def folder(self, below: str = "") -> Folder:
        """Return the target's folder for tasks, or one in it."""
        return ArrowFolder(self._url, self._options, below)

    def find_last(self) -> NumberedCommit | None:
        """Return the last commit, published or not."""
        names = [name for name in self.files.names(_COMMITS) if name.endswith(".json")]
        names = [name for name in names if not name.startswith(".")]
        return self._read(names[-1]) if names else None

    def read(self, number: int) -> Commit:
        """Return the commit of a number."""
        return self._read(f"{number_text(number)}.json").commit

    def add(self, number: int, commit: Commit) -> bool:
        """Make the commit of a number; False where there is one. The one in front of it has to be
        published."""
        data = msgspec.json.encode(commit)
        return self.files.put_new(f"{_COMMITS}/{number_text(number)}.json", data)

    def publish_last(self) -> NumberedCommit | None:
        """Do what the last commit says, where that is not done, and return it."""
        last = self.find_last()
        if last is None or self._is_published(last.number):
            return last
        commit = last.commit
        added = [file.name for file in commit.files]
        self._each(lambda file: self._publish(last, file), commit.files)
        self._sync_folders(added)
        if commit.removed:
            # First what they were made from: nobody who is late puts them there again.
            self._clear(commit)
            self._each(self.files.delete, commit.removed)
            self._sync_folders(commit.removed)
        self.files.put(f"{_PUBLISHED}/{number_text(last.number)}", b"")
        return last

    def clear(self) -> None:
        """Remove what was staged for commits that can not be made any more."""
        last = self.publish_last()
        if last is not None:
            self._clear(last.commit)

    def _clear(self, commit: Commit) -> None:
        """An export follows the one that it looked at, a compaction the compaction."""
        for staging in self.files.names(STAGING):
            is_compaction = staging.startswith(_COMPACT)
            number = staging.removeprefix(_COMPACT).partition("-")[0]
            end = commit.compacted if is_compaction else commit.state.sequence
            if number.isdecimal() and int(number) < end:
                self.files.delete_folder(f"{STAGING}/{staging}")

    def _read(self, name: str) -> NumberedCommit:
        where = f"{self._where}/{_COMMITS}/{name}"
        data = self.files.read(f"{_COMMITS}/{name}")
        try:
            raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            decode_state(bytes(raw["state"]), where)
            return NumberedCommit(
                int(name.removesuffix(".json")), msgspec.json.decode(data, type=Commit)
            )
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            raise Corrupt(f"{where}: not a commit of an export: {error}", path=where) from error

    def _is_published(self, number: int) -> bool:
        return self.files.exists(f"{_PUBLISHED}/{number_text(number)}")

    def _publish(self, last: NumberedCommit, file: Publication) -> None:
        staged = f"{STAGING}/{last.commit.staging}/{file.staged}"
        if self.files.exists(file.name) or self.files.move(staged, file.name):
            return
        # Another process may have moved it in between; a later commit may have removed it since.
        if self.files.exists(file.name) or self._is_published(last.number):
            return
        raise Corrupt(
            f"{self._where}: commit {last.number} has a file that is gone: expected {file.name} or "
            f"{staged}",
            path=file.name,
        )

    def _each(self, action: Callable[[Any], None], items: Iterable[Any]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(action, items):
                pass

    def _sync_folders(self, names: Iterable[str]) -> None:
        """All that may be new: those of the files, and the ones that these are in."""
        found: set[str] = {""}
        for name in names:
            folder = name.rpartition("/")[0]
            while folder not in found:
                found.add(folder)
                folder = folder.rpartition("/")[0]
        for folder in sorted(found):
            self.files.sync_folder(folder)


def number_text(number: int) -> str:
    """Return a number as names have it."""
    return f"{number:020d}"


def export_staging(base: int, export: str) -> str:
    """Return the staging folder of an export that goes out from sequence `base`."""
    return f"{number_text(base)}-{export}"


def compact_staging(compacted: int, name: str) -> str:
    """Return that of a compaction that follows the compaction of a number."""
    return f"{_COMPACT}{number_text(compacted)}-{name}"
