"""SQL queries over the topics of a tier, with DuckDB: the session and its values."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.cli.help.suggesting import hint_at
from tieredstore.cli.sql.statement import read_statement
from tieredstore.errors import Invalid, make_missing_error
from tieredstore.scan.findings import LeftOut, OnDamage, make_on_finding
from tieredstore.scan.rows import ALL_COLUMNS, show_body

if TYPE_CHECKING:
    import duckdb

    from tieredstore.scan.arrow.dataset import ScanDataset
    from tieredstore.scan.catalogue import TierCatalogue
    from tieredstore.scan.rows import BodyForm
    from tieredstore.table import Tier


_FETCHED_ROWS: Final = 1024
_RESULT: Final = "tieredstore result"
_SETTINGS: Final = (
    "SET TimeZone = 'UTC'",
    "SET python_enable_replacements = false",  # no name refers to a variable of this program
    "SET autoinstall_known_extensions = false",  # no download without a request
    "CREATE MACRO text(bytes) AS try(decode(bytes))",
)


class SqlSession:
    """Runs SQL statements over a tier, reading it again for each statement. `search_times`:
    argument of `Tier.scan`. The constructor raises Invalid without the extra `duckdb`."""

    def __init__(self, tier: Tier, search_times: str = "exact", on_damage: str = "fail") -> None:
        try:
            import duckdb
            import pyarrow as pa  # noqa: F401
        except ImportError as error:
            raise make_missing_error("sql", error, "duckdb") from error
        self._tier = tier
        self._search_times = search_times
        self.left_out = LeftOut()
        """Messages that `on_damage="skip"` omitted."""
        self._on_finding = make_on_finding(OnDamage(on_damage), self.left_out)
        self._errors: type[Exception] = duckdb.Error
        self._connection: duckdb.DuckDBPyConnection = duckdb.connect()
        for setting in (*_SETTINGS, f"SET temp_directory = '{_find_temporary_folder()}'"):
            self._connection.execute(setting)

    def close(self) -> None:
        self._connection.close()

    def list_tables(self) -> Iterator[dict[str, object]]:
        """Yield a row for each topic. Raises Unavailable or Corrupt."""
        catalogue = self._tier.catalogue()
        keywords = self._find_keywords()
        for topic in catalogue.topic_names():
            is_plain = topic.isidentifier() and topic.casefold() not in keywords
            quoted = topic.replace('"', '""')
            queues = [queue for queue in catalogue.queues if queue.topic == topic]
            yield {
                "table": topic if is_plain else f'"{quoted}"',
                "queues": len(queues),
                "bytes": sum(queue.size_bytes for queue in queues),
            }

    def run(self, query: str) -> tuple[Sequence[str], Iterator[tuple[object, ...]]]:
        """Run a SELECT and return its columns and rows. Data above the memory limit spills to a
        temporary folder. Raises Invalid for an invalid statement, and the errors of reads from the
        tier."""
        try:
            query.encode()
        except UnicodeEncodeError:
            raise Invalid("sql: expected a statement in UTF-8") from None
        statement = read_statement(self._connection, query)
        catalogue = self._tier.catalogue()
        datasets = []
        for name, topic in _find_topics(catalogue, statement.tables).items():
            keys = statement.keys.get(name)
            scan = self._tier.scan(
                topic,
                columns=ALL_COLUMNS,
                keys=keys,
                search_times=self._search_times,
                on_finding=self._on_finding,
            )
            datasets.append(scan.to_dataset())
            self._connection.register(name, datasets[-1])
        try:
            # A statement prints all rows or none, so they are collected first.
            relation = self._connection.sql(self._cut_end(query))
            names = _make_distinct(map(str, relation.columns))
            self._connection.execute(f'DROP TABLE IF EXISTS "{_RESULT}"')
            relation.create(_RESULT)
            found = self._connection.execute(f'FROM "{_RESULT}"')
        except (self._errors, RuntimeError) as error:
            raise self._explain(error, datasets, statement.tables, catalogue) from error
        return names, self._fetch(found, datasets)

    def _cut_end(self, query: str) -> str:
        """Remove the final semicolon, which DuckDB's relations do not accept."""
        import duckdb

        data = query.encode()  # the places are those of bytes
        for place, kind in reversed(duckdb.tokenize(query)):
            if data[place : place + 1] == b";":
                data = data[:place]
            elif kind != duckdb.token_type.comment:
                break
        return data.decode()

    def _find_keywords(self) -> frozenset[str]:
        """Return the words that must be quoted when used as table names."""
        query = "select keyword_name from duckdb_keywords() where keyword_category <> 'unreserved'"
        return frozenset(str(name) for (name,) in self._connection.execute(query).fetchall())

    def _fetch(
        self, found: duckdb.DuckDBPyConnection, datasets: Sequence[ScanDataset]
    ) -> Iterator[tuple[object, ...]]:
        while True:
            try:
                rows = found.fetchmany(_FETCHED_ROWS)
            except (self._errors, RuntimeError) as error:
                raise self._explain(error, datasets) from error
            if not rows:
                return
            yield from rows

    def _explain(
        self,
        error: Exception,
        datasets: Sequence[ScanDataset],
        tables: Iterable[str] = (),
        catalogue: TierCatalogue | None = None,
    ) -> BaseException:
        """Return the error to raise for a failed statement. This is the error of a read from the
        tier, or DuckDB's error with suggested topics."""
        for dataset in datasets:
            if dataset.failure is not None:
                return dataset.failure
        text = str(error).split("\n\n", 1)[0]
        if "interrupted" in text.lower():
            return KeyboardInterrupt()
        if not isinstance(error, self._errors):
            return error
        hint = ""
        if catalogue is not None and "Table with name" in text:
            topics = catalogue.topic_names()
            known = {name.casefold() for name in _find_topics(catalogue, tables)}
            unknown = [name for name in sorted(tables) if name.casefold() not in known]
            hint = "".join(hint_at(name, topics) for name in unknown)
            text = text.partition("\n")[0].partition("!")[0]
            hint = hint or "; `.tables` lists those of the tier"
        elif "VARCHAR[]" in text:
            hint = "; keys are a list: list_contains(keys, 'k')"
        return Invalid(f"sql: {text}{hint}")


def _find_temporary_folder() -> str:
    """Return DuckDB's temporary folder as an SQL string, or an empty string if no folder is
    writable."""
    try:
        folder = Path(tempfile.gettempdir()) / f"tieredstore-sql-{os.getpid()}"
    except FileNotFoundError:
        return ""
    return str(folder).replace("'", "''")


def _find_topics(catalogue: TierCatalogue, tables: Iterable[str]) -> dict[str, str]:
    """Return the topics used as tables in a statement, by table name. An exact match is preferred.
    Otherwise case is ignored, as in SQL. Names that differ only in case are the same table in
    DuckDB, so only one of them is returned. Raises Invalid if a name is ambiguous."""
    topics = catalogue.topic_names()
    found: dict[str, tuple[str, str]] = {}
    for name in sorted(tables):
        alike = [topic for topic in topics if topic.casefold() == name.casefold()]
        meant = [name] if name in alike else alike
        _, known = found.get(name.casefold(), (name, meant[0] if meant else ""))
        if len(meant) > 1 or (meant and known != meant[0]):
            raise Invalid(
                f"sql: topics {' and '.join(alike)} differ in case alone, which makes one table "
                "of them: a query reads one, by its exact name"
            )
        if meant:
            found[name.casefold()] = name, known
    return dict(found.values())


def _make_distinct(names: Iterable[str]) -> list[str]:
    """Make column names unique by appending numbers, because each row is a mapping by column
    name."""
    found: list[str] = []
    for name in names:
        number, distinct = 1, name
        while distinct in found:
            number += 1
            distinct = f"{name}_{number}"
        found.append(distinct)
    return found


def plain_value(value: object, body: BodyForm, *, is_json: bool) -> object:
    """Convert a value for JSON. Without `is_json`, some types become text, which is more exact:
    times in ISO 8601, numbers with all digits, bytes in the format of bodies."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if is_json:
                return value if math.isfinite(value) else None
            return repr(value)
        case Decimal():
            return float(value) if is_json else str(value)
        case bytes() | bytearray() | memoryview():
            return show_body(bytes(value), body)
        case datetime():
            return _show_moment(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case list() | tuple():
            return [plain_value(one, body, is_json=is_json) for one in value]
        case Mapping():
            return {str(key): plain_value(one, body, is_json=is_json) for key, one in value.items()}
        case _:
            return str(value)


def _show_moment(moment: datetime) -> str:
    """Format a time with milliseconds, or microseconds if needed, and with `Z` if it has a time
    zone."""
    precision = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    if moment.tzinfo is None:
        return moment.isoformat(timespec=precision)
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=precision) + "Z"
