"""Messages as a pyarrow dataset, for libraries that push down columns and filters, such as DuckDB
and Polars."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tieredstore.scan.arrow.pruning import Narrowing, find_columns, narrow
from tieredstore.scan.arrow.schema import schema_of

Read = Callable[[tuple[str, ...], Narrowing], Generator[pa.RecordBatch]]
"""Function that yields batches of the named columns. The batches contain all messages within the
bounds of the `Narrowing`, and may contain others."""


class ScanDataset(ds.Dataset):  # type: ignore[misc]
    """Dataset that is read again by each scanner. A scanner reads only the needed columns, and only
    queues, queue offsets and store times that its filter allows."""

    def __init__(self, schema: pa.Schema, read: Read) -> None:
        """`schema`: schema of all columns."""
        # The base class has no use for what it would be made of.
        self._columns = schema
        self._read = read
        self.failure: BaseException | None = None
        """Error that ended the last read, because a caller in another language does not receive the
        error itself."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of all columns."""
        return self._columns

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **options: object,  # noqa: ARG002 - sizes and threads of pyarrow's own scanner
    ) -> RowScanner:
        """Return a scanner of some columns, for the rows that match `filter`. It can be used once.
        Raises the errors of the read."""
        shown = self._columns.names if columns is None else list(columns)
        needed = {*shown, *find_columns(filter, self._columns)}
        names = tuple(name for name in self._columns.names if name in needed)
        names = names or tuple(self._columns.names[:1])
        schema = schema_of(tuple(shown))

        def read() -> Generator[pa.RecordBatch]:
            batches = self._guard(self._read(names, narrow(filter, self._columns)))
            with closing(batches):
                for batch in batches:
                    table = pa.Table.from_batches([batch])
                    if filter is not None:
                        table = table.filter(filter)
                    yield from table.select(shown).to_batches()

        return RowScanner(schema, read)

    def count_rows(self, filter: pc.Expression | None = None, **options: object) -> int:
        """Count the rows that match `filter`. Only the columns of `filter` are read."""
        reader = self.scanner(self._columns.names[:1], filter, **options).to_reader()
        return sum(batch.num_rows for batch in reader)

    def _guard(self, batches: Generator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        try:
            with closing(batches):
                yield from batches
        except Exception as error:
            self.failure = error
            raise

    def __reduce__(self) -> Any:
        raise TypeError("a dataset of a scan does not pickle: send the tasks of its plan")


class RowScanner:
    """Rows that are read on demand, with the common methods of pyarrow's `Scanner`. pyarrow's own
    scanner reads ahead in its own threads and keeps its source open for longer."""

    def __init__(self, schema: pa.Schema, read: Callable[[], Generator[pa.RecordBatch]]) -> None:
        self.projected_schema = schema
        self._read = read

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        stream = pa.RecordBatchReader.from_batches(self.projected_schema, self._read())
        return stream.__arrow_c_stream__(requested_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a stream with bounded memory. Closing it releases its resources."""
        # One over the C interface drops what it wraps when it is closed.
        return pa.RecordBatchReader.from_stream(self)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the record batches."""
        return self._read()

    def to_table(self) -> pa.Table:
        """Read all rows into memory."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """Read the first rows."""
        found: list[pa.RecordBatch] = []
        with self.to_reader() as reader:
            for batch in reader:
                found.append(batch[: num_rows - sum(map(len, found))])
                if sum(map(len, found)) >= num_rows:
                    break
        return pa.Table.from_batches(found, self.projected_schema)
