"""The parser finds the tables of a statement and the keys in its conditions."""

from __future__ import annotations

import duckdb
import pytest

from tieredstore.cli.sql.statement import read_statement
from tieredstore.errors import Invalid


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("select 1", set()),
        ("from orders", {"orders"}),
        ('select * from orders o join "%RETRY%g" r using (keys)', {"orders", "%RETRY%g"}),
        ("with c as (select * from orders) select * from c", {"orders", "c"}),
        ("select (select count(*) from a) from b where x in (select y from c)", {"a", "b", "c"}),
        ("describe orders", {"orders"}),
        ("summarize orders", {"orders"}),
        ("select 1 union all select 2 from orders", {"orders"}),
    ],
)
def test_tables_are_found_wherever_they_stand(query: str, tables: set[str]) -> None:
    assert read_statement(duckdb.connect(), query).tables == tables


@pytest.mark.parametrize(
    "query",
    [
        "select * from orders where list_contains(keys, 'k''1')",
        "select * from orders where queue_id = 1 and (list_has(keys, 'k''1') and tags = 'x')",
        "select * from orders o where array_contains(o.keys, 'k''1')",
        "select * from orders where list_contains(orders.keys, 'k''1') order by 1 limit 3",
        "with c as (from orders where list_contains(keys, 'k''1')) select * from c, c as d",
        "select count(*) from orders where 'k''1' in keys",
    ],
)
def test_a_key_that_each_row_has_to_have_is_found(query: str) -> None:
    assert read_statement(duckdb.connect(), query).keys == {"orders": ("k'1",)}


@pytest.mark.parametrize(
    "query",
    [
        "select list_contains(keys, 'k') from orders",
        "select * from orders where list_contains(keys, 'k') or tags = 'x'",
        "select * from orders where not list_contains(keys, 'k')",
        "select * from orders where list_contains(keys, tags)",
        "select * from orders where list_contains(tags, 'k')",
        "select * from orders where list_contains(x.keys, 'k')",
        "select * from orders, other where list_contains(keys, 'k')",
        "select * from orders a where list_contains(keys, 'k') union select * from orders",
        "select * from orders tablesample 10% where list_contains(keys, 'k')",
        "select * from (select ['k'] as keys) where list_contains(keys, 'k')",
    ],
)
def test_a_key_that_some_rows_need_not_have_narrows_nothing(query: str) -> None:
    assert read_statement(duckdb.connect(), query).keys == {}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("selec 1", "syntax error"),
        ("drop table x", "expected a SELECT"),
        ("create table x as select 1", "expected a SELECT"),
        ("select 1; select 2", "expected one statement, found 2"),
        ("", "expected one statement, found 0"),
    ],
)
def test_anything_but_one_select_is_refused(query: str, problem: str) -> None:
    with pytest.raises(Invalid, match=f"sql: .*{problem}"):
        read_statement(duckdb.connect(), query)
