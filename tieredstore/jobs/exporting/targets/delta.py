"""Delta table, written without a JVM. The `txn` action of a commit (application
`tieredstore-export`) identifies the state. It stays in the log and its checkpoints through any
cleanup. Its version is the number of the state's file below `_tieredstore/`, which is written
before the commit. The upper bits of the number are the sequence, the lower bits are random. Data
files are in Hive-style folders, because some readers take partition values from folder names
instead of the log."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tieredstore.errors import Invalid, Unavailable, make_missing_error
from tieredstore.jobs.exporting.partition import FIRST_TIME_US, LAST_TIME_US
from tieredstore.jobs.exporting.request import ExportRequest
from tieredstore.jobs.exporting.state import DataFile, TargetState, decode_state, require_columns
from tieredstore.jobs.exporting.targets import storage

APPLICATION = "tieredstore-export"
_PERCENT_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_RANDOM_BITS = 31
_ATTEMPTS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeltaTarget:
    """A folder with a Delta table."""

    def __init__(self, request: ExportRequest) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise make_missing_error("delta", error, "delta") from error
        assert request.to is not None
        self._delta = deltalake
        self._url = request.to
        self._where = request.target
        self._options = dict(request.target_options)
        self._storage_options = storage.delta_options(self._url, self._options)
        self._files: storage.FolderFiles = storage.ArrowFolder(self._url, self._options).connect()
        if self._files.is_local and _PERCENT_ESCAPE.search(self._url_of_table()):
            raise Invalid(
                f"{self._where}: delta-rs decodes the %XX in a folder's name and looks elsewhere. "
                "Choose a folder without"
            )
        self._by = request.partition_by
        self._partition_columns = list(self._by.types)
        self.file_columns = tuple(n for n in request.column_names if n not in self._by.types)
        self._schema = pa.schema({**self._by.types, **request.types})

    def prepare(self) -> None:
        table = self._find()
        if table is None:
            if any(not name.startswith((".", "_")) for name in self._files.names()):
                self._refuse()
            return
        self._require_same(table)

    def make(self) -> None:
        table = self._find()
        if table is None:
            self._create()
            table = self._table()
        self._require_same(table)

    def _require_same(self, table: Any) -> None:
        """Raise Invalid for a table with data of other writers, or with other columns or partition
        columns."""
        if not self._version(table) and table.file_uris():
            self._refuse()
        found = table.metadata().partition_columns
        if found != self._partition_columns:
            raise Invalid(
                f"{self._where}: a table that is partitioned otherwise: expected "
                f"{self._partition_columns}, found {found}",
                path=self._where,
            )
        fields = table.schema().fields
        require_columns(
            self._where,
            self._schema.names,
            [field.name for field in fields],
            [field.name for field in fields if not field.nullable],
        )

    def load(self) -> TargetState:
        table = self._find()
        version = 0 if table is None else self._version(table)
        if not version:
            return TargetState()
        name = _state_name(version)
        return decode_state(self._files.read(name), f"{self._where}/{name}")

    def folder(self, base: int, export: str) -> storage.Folder:  # noqa: ARG002
        return storage.ArrowFolder(self._url, self._options)

    def commit(self, state: TargetState, files: Sequence[DataFile]) -> str | None:
        version = state.sequence << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        self._files.put(_state_name(version), msgspec.json.encode(state))
        actions = [self._action(file) for file in files]
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(0.1 * 2**attempt)
            if self.load().sequence != state.sequence - 1:
                break
            if self._try(state, version, actions):
                return self.find_commit(state)
        else:
            raise Unavailable(
                f"{self._where}: others commit to the table all the time: {_ATTEMPTS} attempts "
                "failed",
                path=self._where,
            )
        self._files.delete(_state_name(version))
        return None

    def find_commit(self, state: TargetState) -> str:  # noqa: ARG002
        return str(self._table().version())

    def discard(self, folder: storage.Folder, names: Sequence[str]) -> None:
        storage.delete_files(folder, names)

    def _try(self, state: TargetState, version: int, actions: list[object]) -> bool:
        """Try to commit `actions` as the next version of the Delta log. Return False if another
        writer may have been first."""
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import CommitProperties, Transaction

        properties = CommitProperties(
            custom_metadata={"tieredstore.export": state.export},
            max_commit_retries=0,  # The state is checked again after another commit.
            app_transactions=[Transaction(APPLICATION, version)],
        )
        table = self._table()
        if self._version(table) >> _RANDOM_BITS != state.sequence - 1:
            return False
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                self._partition_columns,
                commit_properties=properties,
            )
        except CommitFailedError:
            return self._version(self._table()) == version
        except DeltaError as error:
            raise self._unavailable(error) from error
        return True

    def _action(self, file: DataFile) -> object:
        from deltalake.transaction import AddAction

        stats = {
            "numRecords": file.rows,
            "minValues": _bounds(file, "least", self._schema),
            "maxValues": _bounds(file, "most", self._schema),
            "nullCount": {name: found.nulls for name, found in file.statistics.items()},
        }
        return AddAction(
            file.name,
            file.size_bytes,
            self._by.values(file.partition),
            int(time.time() * 1000),
            True,
            json.dumps(stats),
        )

    def _create(self) -> None:
        from deltalake.exceptions import DeltaError

        if self._files.is_local:
            Path(self._url_of_table()).mkdir(parents=True, exist_ok=True)
        try:
            self._delta.DeltaTable.create(
                self._url_of_table(),
                self._delta.Schema.from_arrow(self._schema),
                mode="ignore",
                partition_by=self._partition_columns,
                storage_options=self._storage_options,
            )
        except DeltaError as error:
            if self._find() is None:  # Otherwise a concurrent export created it.
                raise self._unavailable(error) from error

    def _table(self) -> Any:
        table = self._find()
        if table is None:
            raise Unavailable(f"{self._where}: the table is gone", path=self._where)
        return table

    def _find(self) -> object:
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return self._delta.DeltaTable(
                self._url_of_table(), storage_options=self._storage_options
            )
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        """Return Unavailable with the text of an error, without terminal colour codes and XML."""
        text = re.sub(r"\x1b\[\d+m|↳", "", str(error).partition("<?xml")[0])
        return Unavailable(f"{self._where}: {' '.join(text.split())}", path=self._where)

    def _url_of_table(self) -> str:
        if self._files.is_local:
            return storage.open_filesystem(self._url, {})[1]
        return self._url.partition("?")[0]

    def _version(self, table: Any) -> int:
        version: int = table.transaction_version(APPLICATION) or 0
        return version

    def _refuse(self) -> None:
        raise Invalid(
            f"{self._where}: has data that no export wrote. Give an empty folder", path=self._where
        )


def _bounds(file: DataFile, which: str, schema: pa.Schema) -> dict[str, int | str]:
    """Return the lower or upper bounds of a file's columns, in the form of the log's JSON. JSON has
    no times after the year 9999. If all times of a file are later, the lower bound is the end of
    that year, and the upper bound is omitted. Times before the year 1 are treated the same way.
    Without any bounds, deltalake's dataset would omit the rows of the file."""
    found: dict[str, int | str] = {}
    for name, statistics in file.statistics.items():
        bound: int | str | None = getattr(statistics, which)
        if pa.types.is_timestamp(schema.field(name).type) and isinstance(bound, int):
            bound = _time_bound(bound, which)
        elif bound is None and statistics.nulls < file.rows:  # texts too long for a footer
            bound = "" if which == "least" else "\U0010ffff" * 16
        if bound is not None:
            found[name] = bound
    return found


def _time_bound(microseconds: int, which: str) -> str | None:
    """Return the time in whole milliseconds, or None if no valid bound exists."""
    if which == "least" and microseconds < FIRST_TIME_US:
        return None
    if which == "most" and microseconds > LAST_TIME_US:
        return None
    near = min(max(microseconds, FIRST_TIME_US), LAST_TIME_US)
    moment = _EPOCH + timedelta(milliseconds=near // 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _state_name(version: int) -> str:
    return f"_tieredstore/{version:020d}.json"
