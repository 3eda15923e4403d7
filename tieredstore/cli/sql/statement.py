"""Tables of a SQL statement, and the message keys in its conditions. DuckDB describes a statement
as JSON, whose structure changes between releases. Conditions with an unknown structure are ignored.
The read then returns more messages, and DuckDB drops the unwanted rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import orjson

from tieredstore.errors import Invalid

if TYPE_CHECKING:
    import duckdb

_Node: TypeAlias = "Mapping[str, Any]"
_CONTAINS: Final = frozenset(
    {"list_contains", "array_contains", "list_has", "array_has", "contains"}
)


class Statement(NamedTuple):
    """Parsed SELECT. `tables`: names as written, including those defined by WITH. `keys`: keys that
    a table's messages must have, for each table with such a condition."""

    tables: frozenset[str]
    keys: Mapping[str, tuple[str, ...]]


def read_statement(connection: duckdb.DuckDBPyConnection, query: str) -> Statement:
    """Parse one SELECT. Raises Invalid for any other statement."""
    rows = connection.execute("select json_serialize_sql(?::varchar)", [query]).fetchall()
    found = orjson.loads(rows[0][0])
    if found["error"]:
        problem = found["error_message"]
        if "Only SELECT" in problem:
            problem = "expected a SELECT (or FROM, WITH, DESCRIBE, SUMMARIZE): a tier is only read"
        raise Invalid(f"sql: {problem}")
    statements = found["statements"]
    if len(statements) != 1:
        raise Invalid(f"sql: expected one statement, found {len(statements)}")
    nodes = list(_walk(statements[0]))
    names = [str(node["table_name"]) for node in nodes if node.get("type") == "BASE_TABLE"]
    counts = Counter(map(str.casefold, names))
    keys = {
        name: wanted
        for node in nodes
        if node.get("type") == "SELECT_NODE"
        for name, wanted in _find_keys(node)
        if counts[name.casefold()] == 1
    }
    return Statement(frozenset(names), keys)


def _walk(value: object) -> Iterator[_Node]:
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)


def _find_keys(select: _Node) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the table of a SELECT with a key that every row of the result must have. Yields nothing
    if the SELECT has several tables or no such key."""
    table, condition = select.get("from_table"), select.get("where_clause")
    if not isinstance(table, dict) or not isinstance(condition, dict):
        return
    if table.get("type") != "BASE_TABLE" or table.get("sample") is not None:
        return
    if table.get("column_name_alias"):  # `orders as o(a, b)`: `keys` may be another column
        return
    name = str(table["table_name"])
    for term in _terms(condition):
        key = _find_key(term, {name, str(table.get("alias"))})
        if key is not None:
            yield name, (key,)
            return


def _terms(condition: _Node) -> Iterator[_Node]:
    if condition.get("type") != "CONJUNCTION_AND":
        yield condition
        return
    for part in condition.get("children", ()):
        yield from _terms(part)


def _find_key(term: _Node, tables: set[str]) -> str | None:
    if term.get("function_name") not in _CONTAINS:
        return None
    arguments = [
        argument.get("expression", argument)
        for argument in term.get("arguments") or term.get("children") or ()
    ]
    if len(arguments) != 2:
        return None
    column, constant = arguments
    path = column.get("column_names", ())
    if not path or path[-1] != "keys" or not set(path[:-1]) <= tables:
        return None
    if constant.get("class") != "CONSTANT":
        return None
    literal, value = constant.get("literal"), constant.get("value")
    if isinstance(literal, dict) and literal.get("kind") == "STRING":
        return str(literal["text"])
    if isinstance(value, dict) and isinstance(value.get("value"), str):
        return str(value["value"])
    return None
