"""Iceberg table, written by pyiceberg. Each export adds one snapshot with the state in its
properties. Snapshots of other writers, such as compactions, have no state. The state is therefore
read from the current snapshot or its newest ancestor with a state. A rolled-back table thus
continues at the end of its data. If all such snapshots have expired, the copy in the table's
properties is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tieredstore.disk.errors import classify_os_error
from tieredstore.errors import Invalid, Unavailable, make_missing_error
from tieredstore.jobs.exporting.request import ExportRequest
from tieredstore.jobs.exporting.state import DataFile, TargetState, decode_state, require_columns
from tieredstore.jobs.exporting.targets import storage
from tieredstore.jobs.exporting.targets.iceberg_entries import data_files
from tieredstore.jobs.exporting.targets.iceberg_schema import make_schema, make_spec, require_cut

STATE_PROPERTY = "tieredstore.export"
_ATTEMPTS = 5
_NO_METRICS = ("body", "keys.element", "properties.key", "properties.value")
"""Columns without statistics in the data files."""


@dataclass(frozen=True, slots=True)
class IcebergFolder:
    """Folder at a location that pyiceberg opens. Picklable, including access keys of the
    catalog."""

    location: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> str:
        return self.location

    def connect(self) -> IcebergFiles:
        return IcebergFiles(self.location, self.properties)


class IcebergFiles:
    """Files of a folder, through pyiceberg's own file access."""

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        from pyiceberg.io import load_file_io

        self.is_local = location.startswith(("/", "file:"))
        self._location = location
        self._io = load_file_io(dict(properties), location)

    def path(self, name: str) -> str:
        return f"{self._location}/{name}"

    def create(self, name: str) -> storage.OutputStream:
        with storage.translate_errors(self._location):
            return self._io.new_output(self.path(name)).create()

    def seal(self, name: str) -> None:
        """No-op: pyiceberg does not sync files."""

    def open(self, name: str) -> storage.InputFile:
        with storage.translate_errors(self._location):
            return self._io.new_input(self.path(name)).open()

    def exists(self, name: str) -> bool:
        with storage.translate_errors(self._location):
            return bool(self._io.new_input(self.path(name)).exists())

    def delete(self, name: str) -> None:
        with storage.translate_errors(self._location), suppress(FileNotFoundError):
            self._io.delete(self.path(name))

    def close(self) -> None:
        """No-op: pyiceberg closes its connections itself."""


class IcebergTarget:
    """A table of a catalog."""

    def __init__(self, request: ExportRequest) -> None:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NoSuchTableError
        except ImportError as error:
            raise make_missing_error("iceberg", error, "iceberg") from error
        assert request.catalog is not None
        assert request.table is not None
        self._where = request.target
        self._name = request.table
        self._location = request.to
        self._no_table = NoSuchTableError
        self._types = request.types
        self._by = request.partition_by
        self.file_columns = request.column_names
        try:
            self._catalog = _call_once_more(
                lambda: load_catalog(request.catalog, **request.target_options)
            )
        except Exception as error:  # Any error of the catalog's library.
            text = " ".join(str(error).split())
            raise Invalid(
                f"catalog {request.catalog!r}: {text}. Its settings are those of --target-option"
                " (docs/jobs.md) and of pyiceberg's configuration"
            ) from error
        self._catalog.properties.setdefault(
            "py-io-impl", "tieredstore.jobs.exporting.targets.iceberg_io.S3FileIO"
        )

    def prepare(self) -> None:
        table = self._find()
        if table is not None:
            self._require_same(table)

    def make(self) -> None:
        table = self._find()
        if table is None:
            self._create()
            table = self._table()
        self._require_same(table)

    def _require_same(self, table: Any) -> None:
        """Raise Invalid for a table with data of other writers, or with other columns or
        partitions."""
        if table.current_snapshot() is not None and _state_text(table) is None:
            raise Invalid(f"{self._where}: has data that no export wrote. Name an empty table")
        columns = table.schema().fields
        require_columns(
            self._where,
            self.file_columns,
            [column.name for column in columns],
            [column.name for column in columns if column.required],
        )
        require_cut(table, self._by, self._where)

    def load(self) -> TargetState:
        table = self._find()
        return TargetState() if table is None else self._state(table)

    def folder(self, base: int, export: str) -> storage.Folder:  # noqa: ARG002
        table = self._table()
        return IcebergFolder(f"{table.location()}/data", dict(table.io.properties))

    def commit(self, state: TargetState, files: Sequence[DataFile]) -> str | None:
        text = msgspec.json.encode(state).decode()
        for _ in range(_ATTEMPTS):
            table = self._table()
            if self._state(table).sequence != state.sequence - 1:
                return None
            if self._add(table, text, files):
                return self.find_commit(state)
        raise Unavailable(
            f"{self._where}: others commit to the table all the time: {_ATTEMPTS} attempts failed"
        )

    def _add(self, table: Any, text: str, files: Sequence[DataFile]) -> bool:
        """Add a snapshot after the current snapshot of `table`. Return False if another writer was
        first."""
        from pyiceberg.exceptions import CommitFailedException

        # pyiceberg would retry after another export's commit. This is its own copy of the table's
        # properties, not the table's.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        entries = data_files(table, f"{table.location()}/data", files)
        properties = {STATE_PROPERTY: text}
        if table.metadata.name_mapping() is None:  # Data files have no column ids.
            mapping = table.schema().name_mapping.model_dump_json()
            properties["schema.name-mapping.default"] = mapping
        merges = table.properties.get("commit.manifest-merge.enabled", "").lower() == "true"
        try:
            with table.transaction() as transaction:
                transaction.set_properties(properties)
                update = transaction.update_snapshot({STATE_PROPERTY: text})
                with update.merge_append() if merges else update.fast_append() as append:
                    for entry in entries:
                        append.append_data_file(entry)
        except CommitFailedException:
            return False
        return True

    def find_commit(self, state: TargetState) -> str:
        for snapshot in _ancestors(self._table()):
            found = _property(snapshot)
            if found is not None and decode_state(found, self._where).export == state.export:
                return str(snapshot.snapshot_id)
        return ""

    def discard(self, folder: storage.Folder, names: Sequence[str]) -> None:
        storage.delete_files(folder, names)

    def _state(self, table: object) -> TargetState:
        text = _state_text(table)
        return TargetState() if text is None else decode_state(text, self._where)

    def _find(self) -> object:
        try:
            return self._catalog.load_table(self._name)
        except self._no_table:
            return None
        except OSError as error:
            raise classify_os_error(error)(f"{self._where}: {error}") from error

    def _table(self) -> Any:
        table = self._find()
        if table is None:
            raise Unavailable(f"{self._where}: the table is gone")
        return table

    def _create(self) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        namespace, dot, _ = self._name.rpartition(".")
        if not dot:
            raise Invalid(f"table {self._name!r}: expected namespace.name")
        schema = make_schema(self._types)
        spec = make_spec(self._by, {column.name: column.field_id for column in schema.fields})
        _call_once_more(lambda: self._catalog.create_namespace_if_not_exists(namespace))
        with suppress(TableAlreadyExistsError):
            self._catalog.create_table(
                self._name,
                schema,
                self._location,
                partition_spec=spec,
                properties={
                    f"write.metadata.metrics.column.{name}": "none" for name in _NO_METRICS
                },
            )


def _call_once_more(make: Callable[[], Any]) -> Any:
    """Call `make`, which creates a catalog object if it is missing, and retry once. If another
    process creates the same object, the first call fails in SQL, and the second call finds it."""
    try:
        return make()
    except Exception as error:  # Any error of the catalog's library.
        if not type(error).__module__.startswith("sqlalchemy."):
            raise
        return make()


def _ancestors(table: Any) -> list[Any]:
    """Return the current snapshot and those of its ancestors that the table still has."""
    found = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        found.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return found


def _state_text(table: Any) -> str | None:
    snapshots = _ancestors(table)
    texts = (text for snapshot in snapshots if (text := _property(snapshot)) is not None)
    return next(texts, table.properties.get(STATE_PROPERTY) if snapshots else None)


def _property(snapshot: Any) -> str | None:
    summary = snapshot.summary
    text: str | None = summary and summary.additional_properties.get(STATE_PROPERTY)
    return text
