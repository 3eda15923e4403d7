"""Plain Parquet: a folder with `topic=…/day=…/` below it, and a log of commits.

    topic=orders/day=2026-11-21/00000001-00000.parquet
    _tieredstore/commits/00000000000000000001.json      state and files of commit 1
    _tieredstore/published/00000000000000000001         its files are in their places
    _tieredstore/staging/00000000000000000000-<export>/ what the tasks write

The commit is the file in `commits`, which is made only if it is not there. What follows from it is
done by whoever comes next, and may be done twice: each file gets its name, then `published` says
that all have. Readers leave out names that begin with `_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.exporting.partition import Partition
from tieredstore.jobs.exporting.request import ExportRequest
from tieredstore.jobs.exporting.state import DataFile, TargetState, decode_state
from tieredstore.jobs.exporting.targets.storage import ArrowFolder, Folder, FolderFiles

_LOG = "_tieredstore"
_COMMITS, _PUBLISHED, _STAGING = f"{_LOG}/commits", f"{_LOG}/published", f"{_LOG}/staging"
_THREADS = 8


class Publication(msgspec.Struct, frozen=True, array_like=True):
    """A file as the task wrote it, below `staging`, and its place in the folder."""

    staged: str
    name: str


@dataclass(frozen=True, slots=True)
class Commit:
    """What a file in `commits` has."""

    state: TargetState
    staging: str
    files: list[Publication]


class ParquetTarget:
    """A folder of Parquet files."""

    def __init__(self, request: ExportRequest) -> None:
        assert request.to is not None
        self._by = request.partition_by
        self.file_columns = tuple(n for n in request.column_names if n not in self._by.types)
        self._url = request.to
        self._options = dict(request.target_options)
        self._files: FolderFiles = ArrowFolder(self._url, self._options).connect()
        self._where = request.target

    def prepare(self) -> None:
        names = [name for name in self._files.names() if not name.startswith((".", "_"))]
        if names and not self._files.names(_COMMITS):
            raise Invalid(
                f"{self._where}: has files that no export wrote ({names[0]}); give an empty folder",
                path=self._where,
            )
        self._clear()

    def load(self) -> TargetState:
        last = self._find_last_commit()
        return TargetState() if last is None else last.state

    def folder(self, base: int, export: str) -> Folder:
        return ArrowFolder(self._url, self._options, f"{_STAGING}/{_staging(base, export)}")

    def commit(self, state: TargetState, files: Sequence[DataFile]) -> str | None:
        # Its exporter may have been killed since `prepare`: only the last commit is ever published.
        self._publish_last()
        publications = [
            Publication(file.name, self._place(file.partition, state.sequence, index))
            for index, file in enumerate(files)
        ]
        commit = Commit(state, _staging(state.sequence - 1, state.export), publications)
        name = f"{_COMMITS}/{_number(state.sequence)}.json"
        if not self._files.put_new(name, msgspec.json.encode(commit)):
            return None
        return self.find_commit(state)

    def find_commit(self, state: TargetState) -> str:
        self._publish_last()
        return _number(state.sequence)

    def discard(self, folder: Folder, names: Sequence[str]) -> None:  # noqa: ARG002
        self._clear()

    def _clear(self) -> None:
        """What exports of older states staged can not be committed any more: all of it goes, when
        the last commit is published."""
        self._publish_last()
        last = self._find_last_commit()
        base = 0 if last is None else last.state.sequence
        for staging in self._files.names(_STAGING):
            number = staging.partition("-")[0]
            if number.isdecimal() and int(number) < base:
                self._files.delete_folder(f"{_STAGING}/{staging}")

    def _find_last_commit(self) -> Commit | None:
        names = [name for name in self._files.names(_COMMITS) if name.endswith(".json")]
        names = [name for name in names if not name.startswith(".")]
        if not names:
            return None
        where = f"{self._where}/{_COMMITS}/{names[-1]}"
        data = self._files.read(f"{_COMMITS}/{names[-1]}")
        try:
            raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            state = decode_state(bytes(raw["state"]), where)
            staging = msgspec.json.decode(raw["staging"], type=str)
            files = msgspec.json.decode(raw["files"], type=list[Publication])
        except (msgspec.DecodeError, KeyError) as error:
            raise Corrupt(f"{where}: not a commit of an export: {error}", path=where) from error
        return Commit(state, staging, files)

    def _place(self, partition: Partition, sequence: int, index: int) -> str:
        folder, name = self._by.folder(partition), f"{sequence:08d}-{index:05d}.parquet"
        return f"{folder}/{name}" if folder else name

    def _publish_last(self) -> None:
        commit = self._find_last_commit()
        if commit is None or self._files.exists(f"{_PUBLISHED}/{_number(commit.state.sequence)}"):
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(lambda file: self._publish(commit, file), commit.files):
                pass
        for folder in _folders_of(commit.files):
            self._files.sync_folder(folder)
        self._files.put(f"{_PUBLISHED}/{_number(commit.state.sequence)}", b"")

    def _publish(self, commit: Commit, file: Publication) -> None:
        staged = f"{_STAGING}/{commit.staging}/{file.staged}"
        if not self._files.exists(file.name) and not self._files.move(staged, file.name):
            # Another process may have moved it in between.
            if self._files.exists(file.name):
                return
            raise Corrupt(
                f"{self._where}: commit {commit.state.sequence} has a file that is gone: expected "
                f"{file.name} or {staged}",
                path=file.name,
            )


def _folders_of(files: Iterable[Publication]) -> list[str]:
    """All that may be new: those of the files, and the ones that these are in."""
    found: set[str] = {""}
    for file in files:
        folder = file.name.rpartition("/")[0]
        while folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return sorted(found)


def _number(sequence: int) -> str:
    return f"{sequence:020d}"


def _staging(base: int, export: str) -> str:
    return f"{_number(base)}-{export}"
