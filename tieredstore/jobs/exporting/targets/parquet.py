"""Plain Parquet target: a folder with subfolders `topic=…/day=…/`, and a log of commits
(`parquet_log`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.partition import Partition
from tieredstore.jobs.exporting.request import ExportRequest
from tieredstore.jobs.exporting.state import COMPACTED_VERSION, DataFile, TargetState
from tieredstore.jobs.exporting.targets import parquet_log
from tieredstore.jobs.exporting.targets.storage import Folder


class ParquetTarget:
    """A folder of Parquet files."""

    def __init__(self, request: ExportRequest) -> None:
        assert request.to is not None
        self._by = request.partition_by
        self.file_columns = tuple(n for n in request.column_names if n not in self._by.types)
        self._where = request.target
        self._log = parquet_log.CommitLog(request.to, request.target_options, self._where)

    def prepare(self) -> None:
        names = [name for name in self._log.files.names() if not name.startswith((".", "_"))]
        if names and self._log.is_new:
            raise Invalid(
                f"{self._where}: has files that no export wrote ({names[0]}). Give an empty folder",
                path=self._where,
            )
        self._log.clear()

    def make(self) -> None:
        """No-op: the folder is created with its first file."""

    def load(self) -> TargetState:
        last = self._log.find_last()
        return TargetState() if last is None else last.commit.state

    def folder(self, base: int, export: str) -> Folder:
        return self._log.folder(f"{parquet_log.STAGING}/{parquet_log.export_staging(base, export)}")

    def commit(self, state: TargetState, files: Sequence[DataFile]) -> str | None:
        publications = [
            parquet_log.Publication(file.name, self._place(file.partition, state.sequence, index))
            for index, file in enumerate(files)
        ]
        staging = parquet_log.export_staging(state.sequence - 1, state.export)
        while True:
            # Its creator may have been killed since `prepare`.
            last = self._log.publish_last()
            if (0 if last is None else last.commit.state.sequence) != state.sequence - 1:
                return None
            number = 1 if last is None else last.number + 1
            compacted = 0 if last is None else last.commit.compacted
            if compacted:
                state = replace(state, version=COMPACTED_VERSION)
            commit = parquet_log.Commit(state, staging, publications, compacted=compacted)
            if self._log.add(number, commit):
                return self.find_commit(state)
            # A compaction, which keeps the state, or another export.

    def find_commit(self, state: TargetState) -> str:  # noqa: ARG002
        last = self._log.publish_last()
        assert last is not None
        return parquet_log.number_text(last.exported)

    def discard(self, folder: Folder, names: Sequence[str]) -> None:  # noqa: ARG002
        self._log.clear()

    def _place(self, partition: Partition, sequence: int, index: int) -> str:
        folder, name = self._by.folder(partition), f"{sequence:08d}-{index:05d}.parquet"
        return f"{folder}/{name}" if folder else name
