"""Commit log of a plain Parquet target. Each commit lists added and removed files.

    topic=orders/day=2026-11-21/00000001-00000.parquet
    _tieredstore/commits/00000000000000000001.json      state and files of commit 1
    _tieredstore/published/00000000000000000001         marks commit 1 as published
    _tieredstore/staging/00000000000000000000-<export>/ files of the tasks of an export
    _tieredstore/staging/compact-<20 digits>-<id>/      files of the tasks of a compaction

A commit is the conditional create of a file in `commits`. Then it is published: new files get their
final names, removed files are deleted, and `published` records this. A crash may repeat the
publication. Only the last commit can be unpublished, because a commit requires a published
predecessor. Readers ignore names that begin with `_`.
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
    """Path of a task's file below the staging folder, and its final name in the target."""

    staged: str
    name: str


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a file in `commits`. `files`: files that the commit adds. `removed`: files whose
    rows are now in `files`. `compacted`: number of the last commit that removed files, which may be
    this one. `exported`: number of the commit of the last export (0: this commit)."""

    state: TargetState
    staging: str
    files: list[Publication]
    removed: list[str] = []
    compacted: int = 0
    exported: int = 0


@dataclass(frozen=True, slots=True)
class NumberedCommit:
    """A commit and its number in the log, from 1."""

    number: int
    commit: Commit

    @property
    def exported(self) -> int:
        """Number of the commit that stored the state."""
        return self.commit.exported or self.number


@dataclass
class CommitLog:
    """Log of one target. `where`: name of the target in messages. Raises Invalid for a bad URL,
    Unavailable, and Corrupt for a damaged log."""

    url: str
    options: Mapping[str, str]
    where: str

    def __post_init__(self) -> None:
        self.files: FolderFiles = ArrowFolder(self.url, self.options).connect()

    @property
    def is_new(self) -> bool:
        """Whether the log has no commit."""
        return not self.files.names(_COMMITS)

    def folder(self, below: str = "") -> Folder:
        """Return the target's folder for tasks, or a folder below it."""
        return ArrowFolder(self.url, self.options, below)

    def find_last(self) -> NumberedCommit | None:
        """Return the last commit, whether or not it is published."""
        names = [name for name in self.files.names(_COMMITS) if name.endswith(".json")]
        names = [name for name in names if not name.startswith(".")]
        return self._read(names[-1]) if names else None

    def read(self, number: int) -> Commit:
        """Return the commit with the given number."""
        return self._read(f"{number_text(number)}.json").commit

    def add(self, number: int, commit: Commit) -> bool:
        """Create the commit `number`, whose predecessor is published. Return False if it already
        exists."""
        data = msgspec.json.encode(commit)
        return self.files.put_new(f"{_COMMITS}/{number_text(number)}.json", data)

    def publish_last(self) -> NumberedCommit | None:
        """Publish the last commit if it is unpublished, and return it."""
        last = self.find_last()
        if last is None or self._is_published(last.number):
            return last
        commit = last.commit
        added = [file.name for file in commit.files]
        self._each(lambda file: self._publish(last, file), commit.files)
        self._sync_folders(added)
        if commit.removed:
            # Source files are deleted first, so that no late process restores them.
            self._clear(commit)
            self._each(self.files.delete, commit.removed)
            self._sync_folders(commit.removed)
        self.files.put(f"{_PUBLISHED}/{number_text(last.number)}", b"")
        return last

    def clear(self) -> None:
        """Remove staged files that can no longer be committed."""
        last = self.publish_last()
        if last is not None:
            self._clear(last.commit)

    def _clear(self, commit: Commit) -> None:
        """Delete the staging folders of exports and compactions that were planned before `commit`,
        because they can no longer be committed."""
        for staging in self.files.names(STAGING):
            is_compaction = staging.startswith(_COMPACT)
            number = staging.removeprefix(_COMPACT).partition("-")[0]
            end = commit.compacted if is_compaction else commit.state.sequence
            if number.isdecimal() and int(number) < end:
                self.files.delete_folder(f"{STAGING}/{staging}")

    def _read(self, name: str) -> NumberedCommit:
        where = f"{self.where}/{_COMMITS}/{name}"
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
        # Another process may have moved it in the meantime. A later commit may have removed it
        # since.
        if self.files.exists(file.name) or self._is_published(last.number):
            return
        raise Corrupt(
            f"{self.where}: commit {last.number} has a file that is gone: expected {file.name} or "
            f"{staged}",
            path=file.name,
        )

    def _each(self, action: Callable[[Any], None], items: Iterable[Any]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(action, items):
                pass

    def _sync_folders(self, names: Iterable[str]) -> None:
        """Sync the folders of these files and their parents, because any of them may be new."""
        found: set[str] = {""}
        for name in names:
            folder = name.rpartition("/")[0]
            while folder not in found:
                found.add(folder)
                folder = folder.rpartition("/")[0]
        for folder in sorted(found):
            self.files.sync_folder(folder)


def number_text(number: int) -> str:
    """Return a number in the form of file names."""
    return f"{number:020d}"


def export_staging(base: int, export: str) -> str:
    """Return the staging folder of an export that is based on sequence `base`."""
    return f"{number_text(base)}-{export}"


def compact_staging(compacted: int, name: str) -> str:
    """Return the staging folder of the compaction `name` that follows compaction `compacted`."""
    return f"{_COMPACT}{number_text(compacted)}-{name}"
