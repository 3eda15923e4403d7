"""A segment provider: a tier in one SQLite file. In a broker.conf:

tieredBackendServiceProvider=sqlite_provider:SqliteProvider
tieredStoreFilePath=/data/tier.sqlite
"""

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from tieredstore.config import StoreConfig
from tieredstore.contracts import segment as contract
from tieredstore.contracts.segment import SegmentId, SegmentListing
from tieredstore.errors import Fenced, Unavailable
from tieredstore.providers import checks, naming

PIECES = "CREATE TABLE IF NOT EXISTS piece (path, type, base, start, data)"
WRITERS = "CREATE TABLE IF NOT EXISTS writer (broker PRIMARY KEY, owner)"
PLACE = "FROM piece WHERE path = ? AND type = ? AND base = ?"
SIZE = f"SELECT coalesce(max(start + length(data)), 0) {PLACE}"
SIZES = "SELECT path, type, base, max(start + length(data)) FROM piece GROUP BY 1, 2, 3"
READ = f"SELECT start, data {PLACE} AND start < ? AND start + length(data) > ? ORDER BY start"
DELETE = f"DELETE {PLACE} AND start >= ?"


class SqliteProvider:
    capabilities = contract.Capabilities(rewritable=True, conditional=False, durable=True)

    def __init__(self, file: str) -> None:
        self.file, self.url = file, f"sqlite://{file}"
        self.query(PIECES)
        self.query(WRITERS)

    @classmethod
    def from_config(cls, config: StoreConfig) -> "SqliteProvider":
        return cls(config.tier_file_path)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as a transaction. Any thread may call this, since each thread has its own
        connection."""
        try:
            with closing(sqlite3.connect(self.file, timeout=30)) as db, db:
                db.execute("BEGIN IMMEDIATE")
                yield db
        except sqlite3.Error as error:  # No error of a library leaks past a provider.
            raise Unavailable(f"{self.url}: {error}") from error

    def query(self, statement: str, *values: object) -> list[Any]:
        with self.transaction() as db:
            return db.execute(statement, values).fetchall()

    def list(self, prefix: str = "") -> Iterator[SegmentListing]:
        parts = naming.parse_prefix(prefix)
        for path, kind, base, size in self.query(SIZES):
            if tuple(path.split("/")[: len(parts)]) == parts:
                yield SegmentListing(SegmentId(path, contract.FileSegmentType(kind), base), size)

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> "SqliteFileSegment":
        naming.relative_segment_path(id)  # Raises Invalid for a name that no tier can have.
        return SqliteFileSegment(self, id)

    def acquire_writer(self, broker_name: str, *, take_over: bool = False, **_: Any) -> "Epoch":
        naming.check_name(broker_name, "broker name")
        epoch = Epoch(self, broker_name, f"writer {uuid.uuid4()}")
        how = "REPLACE" if take_over else "IGNORE"
        self.query(f"INSERT OR {how} INTO writer VALUES (?, ?)", broker_name, epoch.owner)
        epoch.check()
        return epoch

    def close(self) -> None:
        """No-op: the object holds no resources between two calls."""


class SqliteFileSegment:
    def __init__(self, provider: SqliteProvider, id: SegmentId) -> None:
        self.id, self._provider, self._is_sealed = id, provider, False
        self._key = (id.path, int(id.type), id.base_offset)

    def size(self) -> int:
        return int(self._provider.query(SIZE, *self._key)[0][0])

    def write(self, position: int, buffers: Sequence[contract.Buffer]) -> contract.WriteResult:
        checks.check_range(self.id, position, 0)
        if self._is_sealed:
            raise checks.make_sealed_error(self.id, position)
        start, data = position, b"".join(buffers)
        try:
            with self._provider.transaction() as db:
                if position > (size := db.execute(SIZE, self._key).fetchone()[0]):
                    raise checks.make_hole_error(self.id, position, size)
                # Bytes at the position and after it are replaced.
                for start, piece in db.execute(READ, (*self._key, position + 1, position)):
                    data = piece[: position - start] + data
                db.execute(DELETE, (*self._key, start))
                if data:
                    db.execute("INSERT INTO piece VALUES (?,?,?,?,?)", (*self._key, start, data))
        except Unavailable as error:  # The outcome of the commit is unknown. The caller finds out.
            return contract.UnknownWrite(str(error))
        return contract.Written(position + checks.total_bytes(buffers))

    def read(self, position: int, length: int) -> memoryview:
        checks.check_range(self.id, position, length)
        rows = self._provider.query(READ, *self._key, position + length, position)
        found = b"".join(data[max(position - start, 0) :] for start, data in rows)[:length]
        if len(found) < length:
            raise checks.make_short_read_error(self.id, position, length, len(found))
        return memoryview(found)

    def read_nowait(self, position: int, length: int) -> None:
        checks.check_range(self.id, position, length)  # None, since a query may wait for the disk.

    def seal(self) -> None:
        self._is_sealed = True

    def delete(self) -> None:
        self._provider.query(DELETE, *self._key, 0)

    def close(self) -> None:
        """No-op: the object holds no resources."""


class Epoch:
    def __init__(self, provider: SqliteProvider, broker_name: str, owner: str) -> None:
        self._provider, self._broker_name, self.owner = provider, broker_name, owner

    def check(self) -> None:
        held = self._provider.query("SELECT * FROM writer WHERE broker = ?", self._broker_name)
        if held != [(self._broker_name, self.owner)]:
            raise Fenced(f"{self._provider.url}: not held by {self.owner}; held by {held}")

    confirm = check

    def release(self) -> None:
        self._provider.query("DELETE FROM writer WHERE owner = ?", self.owner)
