"""After any history of the tier, libraries of other projects (such as pyarrow and DuckDB) find the
expected rows in every export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tieredstore
from tests.kit.histories import (
    COLUMNS,
    History,
    QueuePlan,
    Row,
    build,
    filters,
    histories,
    rows_of,
)
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.request import Format


def target_of(form: Format, root: Path) -> dict[str, Any]:
    """Return the arguments of `export` for a target."""
    if form is not Format.ICEBERG:
        return {"to": root / "target", "format": form.value}
    (root / "warehouse").mkdir(exist_ok=True)
    options = {
        "type": "sql",
        "uri": f"sqlite:///{root}/catalog.db",
        "warehouse": f"file://{root}/warehouse",
    }
    return {"format": "iceberg", "catalog": "test", "table": "lake.messages",
            "target_options": options}  # fmt: skip


def readers(form: Format, root: Path, arguments: dict[str, Any]) -> dict[str, list[Row]]:
    """Return the rows that each reader finds, by the reader's name. The result is empty if no
    export had a message."""
    import duckdb
    import polars as pl

    tables: dict[str, pa.Table] = {}
    match form:
        case Format.PARQUET:
            folder = root / "target"
            if not folder.exists():
                return {}
            tables["pyarrow"] = ds.dataset(str(folder), partitioning="hive").to_table()
            if tables["pyarrow"].num_rows:
                files = f"{folder}/topic=*/day=*/*.parquet"
                query = f"select * from read_parquet('{files}', hive_partitioning=true)"
                with duckdb.connect() as connection:
                    tables["duckdb"] = connection.sql(query).to_arrow_table()
        case Format.DELTA:
            from deltalake import DeltaTable

            if not DeltaTable.is_deltatable(str(root / "target")):
                return {}
            tables["deltalake"] = DeltaTable(str(root / "target")).to_pyarrow_table()
            tables["polars"] = pl.read_delta(str(root / "target")).to_arrow()
        case Format.ICEBERG:
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog("test", **arguments["target_options"])
            if not catalog.table_exists("lake.messages"):
                return {}
            tables["pyiceberg"] = catalog.load_table("lake.messages").scan().to_arrow()
            catalog.close()
    # A folder without files has no columns.
    return {
        name: rows_of(_plain(table).to_batches()) if table.num_rows else []
        for name, table in tables.items()
    }


def _plain(table: pa.Table) -> pa.Table:
    """Cast the columns of a table to the types of a scan, because readers may change the types."""
    from tieredstore.scan.arrow.schema import schema

    return table.select(COLUMNS).cast(schema(COLUMNS))


def goes_back_at(history: History, until_ms: int) -> bool:
    """Return whether the clock of a queue steps back across `until_ms`: a store time below
    `until_ms` follows a time at or above it. Counts damaged messages too."""
    return any(
        time >= until_ms > later
        for plan in history.plans
        for at, time in enumerate(plan.times())
        for later in plan.times()[at:]
    )


@pytest.mark.parametrize("form", list(Format))
@settings(max_examples=4)
@given(st.data(), histories())
def test_an_export_gives_the_rows_of_a_plain_list_to_every_reader(
    tmp_path_factory: pytest.TempPathFactory,
    form: Format,
    data: st.DataObject,
    plans: list[QueuePlan],
) -> None:
    root = tmp_path_factory.mktemp("history")
    history = build(root, plans)
    drawn = data.draw(filters(plans))
    names = {"since_ms": "since", "until_ms": "until", "from_offset": "from_offset",
             "until_offset": "until_offset"}  # fmt: skip
    chosen = {name: drawn[name] for name in names if name in drawn}
    target = target_of(form, root)
    options: dict[str, Any] = {
        "columns": COLUMNS,
        "on_damage": "skip",
        "accept": ["gap"],
        **target,
    }
    tier = tieredstore.open(history.url)
    bounds = {names[name]: value for name, value in chosen.items()}
    refused: Invalid | None = None
    try:
        report = tier.export(**options, **bounds)
    except Invalid as error:
        refused = error
    if refused is not None and chosen.get("since_ms", 0) > chosen.get("until_ms", 2**63):
        assert "is behind until" in str(refused)
        return
    if refused is not None:
        assert "store times go back" in str(refused)
        assert goes_back_at(history, chosen["until_ms"])
        return
    wanted = history.rows(**chosen)
    assert report["rows"] == len(wanted)
    exported = readers(form, root, target)
    assert exported or not wanted
    for name, found in exported.items():
        assert (name, found) == (name, wanted)
    # The next one continues after it, and returns the omitted messages at its end.
    tier.export(**options)
    ends = {"until_ms", "until_offset"}
    begun = {name: value for name, value in chosen.items() if name not in ends}
    if not begun:
        for name, found in readers(form, root, target).items():
            assert (name, found) == (name, history.rows())
