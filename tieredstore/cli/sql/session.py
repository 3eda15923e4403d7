"""A session of DuckDB in which each topic of a tier is a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tieredstore.cli.help.suggesting import hint_at
from tieredstore.cli.sql.statement import read_statement
from tieredstore.errors import Invalid, make_missing_error
from tieredstore.scan.rows import COLUMNS

if TYPE_CHECKING:
    import duckdb

    from tieredstore.scan.arrow.dataset import ScanDataset
    from tieredstore.scan.catalogue import TierCatalogue
    from tieredstore.table import Tier

_FETCHED_ROWS: Final = 1024
_SETTINGS: Final = (
    "SET TimeZone = 'UTC'",
    "SET python_enable_replacements = false",  # no name means a variable of this program
    "SET autoinstall_known_extensions = false",  # nothing is downloaded unasked
    "CREATE MACRO text(bytes) AS try(decode(bytes))",
)


class SqlSession:
    """Runs statements over a tier, each of which reads it anew. Raises Invalid when the extra
    `duckdb` is not installed."""

    def __init__(self, tier: Tier) -> None:
        try:
            import duckdb
            import pyarrow as pa  # noqa: F401
        except ImportError as error:
            raise make_missing_error("sql", error, "duckdb") from error
        self._tier = tier
        self._errors: type[Exception] = duckdb.Error
        self._connection: duckdb.DuckDBPyConnection = duckdb.connect()
        for setting in _SETTINGS:
            self._connection.execute(setting)

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def list_tables(self) -> Iterator[dict[str, object]]:
        """Yield a row for each topic. Raises Unavailable, Corrupt."""
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

    def run(self, query: str) -> tuple[Sequence[str], Iterator[tuple[Any, ...]]]:
        """Run a SELECT; returns the columns, and the rows as they come. Raises Invalid for a
        statement that cannot be run, what reading the tier raises, and both from the rows too."""
        statement = read_statement(self._connection, query)
        catalogue = self._tier.catalogue()
        datasets = []
        for name, topic in _find_topics(catalogue, statement.tables).items():
            keys = statement.keys.get(name)
            scan = self._tier.scan(topic, columns=COLUMNS, keys=keys)
            datasets.append(scan.to_dataset())
            self._connection.register(name, datasets[-1])
        try:
            found = self._connection.execute(query)
            names = _make_distinct(str(column[0]) for column in found.description or ())
        except (self._errors, RuntimeError) as error:
            raise self._explain(error, datasets, statement.tables, catalogue) from error
        return names, self._fetch(found, datasets)

    def _find_keywords(self) -> frozenset[str]:
        """The words that name a table only when they are quoted."""
        query = "select keyword_name from duckdb_keywords() where keyword_category <> 'unreserved'"
        return frozenset(str(name) for (name,) in self._connection.execute(query).fetchall())

    def _fetch(
        self, found: duckdb.DuckDBPyConnection, datasets: Sequence[ScanDataset]
    ) -> Iterator[tuple[Any, ...]]:
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
        """The error that ended a read, else what DuckDB says, with topics that may be meant."""
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


def _find_topics(catalogue: TierCatalogue, tables: Iterable[str]) -> dict[str, str]:
    """Each table that is a topic, and that topic: case does not count, as in SQL, where no topic
    has that very name. To DuckDB it never counts, so a name is there once, in one of its
    spellings. Raises Invalid where that would be two topics."""
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
    """The names of columns, each once: a row is a mapping."""
    found: list[str] = []
    for name in names:
        number, distinct = 1, name
        while distinct in found:
            number += 1
            distinct = f"{name}_{number}"
        found.append(distinct)
    return found
