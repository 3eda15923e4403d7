"""An argument means the same on the command line, in Python, SQL, exports and Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.growing_tier import START_MS, GrowingTier
from tieredstore.errors import Invalid
from tieredstore.spark.batch import TieredBatchReader
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema

REFUSED = "refused"
SECONDS = START_MS // 1000 + 3


def in_python(url: str, arguments: dict[str, Any]) -> list[int] | str:
    given = dict(arguments)
    if "pattern" in given:
        given["topic_pattern"] = given.pop("pattern")
    else:
        given["topic"] = "orders"
    try:
        scan = tieredstore.open(url).scan(columns=["queue_offset"], **given)
        return sorted(scan.to_arrow()["queue_offset"].to_pylist())
    except Invalid:
        return REFUSED


def in_cat(url: str, arguments: dict[str, Any]) -> list[int] | str:
    options = {"tags": "--tag", "from_offset": "--from-offset", "until_offset": "--until-offset"}
    options["queue_ids"] = "--queue"
    given: list[object] = []
    for name, value in arguments.items():
        if name == "pattern":
            value = value.replace(".*", "*")
        option = "--topic" if name == "pattern" else options.get(name, f"--{name}")
        given += [option, value]
    topic = [] if "pattern" in arguments else ["--topic", "orders"]
    ran = command("cat", "--tier", url, *topic, *given, "--output", "ndjson")
    if ran.code == 2:
        return REFUSED
    assert ran.code == 0, ran.err
    return sorted(row["queue_offset"] for row in ran.rows)


def in_spark(url: str, arguments: dict[str, Any]) -> list[int] | str:
    names = {"since": "startingTimestamp", "until": "endingTimestamp", "tags": "tags"}
    names |= {"pattern": "subscribePattern", "keys": "keys"}
    arguments = dict(arguments)
    queue_id = arguments.pop("queue_ids", None)
    given = {names[name]: str(value) for name, value in arguments.items()}
    if queue_id is not None:
        given["assign"] = json.dumps({"orders": {"broker-a": [queue_id]}})
    elif "pattern" not in arguments:
        given["subscribe"] = "orders"
    try:
        shape = Shape.of(spark_schema(("queue_offset",)), None)
        reader = TieredBatchReader(parse_options({"path": url, **given}), shape)
        return sorted(
            row["queue_offset"]
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        )
    except Invalid:
        return REFUSED


def in_sql(url: str, arguments: dict[str, Any]) -> list[int] | str:
    """Run an SQL query equivalent to the arguments, and return its rows. For arguments that other
    interfaces reject, the query may return no rows."""
    terms = {
        "since": "store_timestamp >= {}",
        "until": "store_timestamp < {}",
        "from_offset": "queue_offset >= {}",
        "until_offset": "queue_offset < {}",
        "queue_ids": "queue_id = {}",
    }
    conditions = ["true"]
    for name, value in arguments.items():
        if name == "keys":
            conditions.append(f"list_contains(keys, '{value}')")
        elif name == "tags":
            tags = [f"'{tag.strip()}'" for tag in value.split("||")]
            conditions.append("true" if value == "*" else f"tags in ({', '.join(tags)})")
        elif name != "pattern":
            is_ms = name in ("since", "until") and isinstance(value, int) and value >= START_MS
            conditions.append(terms[name].format(f"epoch_ms({value})" if is_ms else value))
    topic = arguments.get("pattern", "orders").replace("ord.*", "orders")
    query = f'select queue_offset from "{topic}" where {" and ".join(conditions)}'
    ran = command("sql", "--tier", url, query, "--output", "ndjson")
    if ran.code == 2:
        return REFUSED
    assert ran.code == 0, ran.err
    return sorted(row["queue_offset"] for row in ran.rows)


def in_export(url: str, arguments: dict[str, Any]) -> list[int] | str:
    target = Path(url.removeprefix("file://")).parent / "out"
    options = {"from_offset": "--from-offset", "until_offset": "--until-offset"}
    given: list[object] = []
    for name, value in arguments.items():
        if name == "pattern":
            given += ["--topics", value.replace(".*", "*")]
        else:
            given += [options.get(name, f"--{name}"), value]
    topic = [] if "pattern" in arguments else ["--topics", "orders"]
    ran = command(
        *("export", "--tier", url, "--format", "parquet", "--to", target, "--quiet"),
        *("--work", target.parent / "work", *topic, *given),
    )
    if ran.code == 2:
        return REFUSED
    assert ran.code == 0, ran.err
    tables = [pq.read_table(path) for path in target.glob("topic=*/day=*/*.parquet")]
    return sorted(offset for table in tables for offset in table["queue_offset"].to_pylist())


ALL = [0, 1, 2, 3, 4, 5]
TABLE: list[tuple[dict[str, Any], list[int] | str]] = [
    ({"tags": "T0"}, [0, 3]),
    ({"tags": "T0 || T2"}, [0, 2, 3, 5]),
    ({"tags": "T0||T2"}, [0, 2, 3, 5]),
    ({"tags": "*"}, ALL),
    ({"tags": "||"}, REFUSED),
    ({"tags": "T9"}, []),
    ({"tags": "T0,T2"}, []),
    ({"tags": ""}, REFUSED),
    ({"keys": "KEY-4"}, [4]),
    ({"keys": "KEY-4,KEY-5"}, []),
    ({"since": START_MS + 3000}, [3, 4, 5]),
    ({"since": SECONDS}, REFUSED),
    ({"since": str(SECONDS)}, REFUSED),
    ({"until": START_MS + 3000}, [0, 1, 2]),
    ({"since": START_MS + 3000, "until": START_MS + 3000}, []),
    ({"since": START_MS + 3000, "until": START_MS + 2000}, REFUSED),
    ({"from_offset": 4}, [4, 5]),
    ({"from_offset": 2, "until_offset": 2}, []),
    ({"from_offset": 3, "until_offset": 2}, REFUSED),
    ({"from_offset": -1}, REFUSED),
    ({"until_offset": -1}, REFUSED),
    ({"from_offset": 2**63}, REFUSED),
    ({"until_offset": 2**70}, REFUSED),
    ({"queue_ids": 0}, ALL),
    ({"queue_ids": 9}, REFUSED),
    ({"pattern": "ord.*"}, ALL),
    ({"pattern": "nothing.*"}, REFUSED),
    ({"pattern": ""}, REFUSED),
]
FACES: dict[str, Callable[[str, dict[str, Any]], list[int] | str]] = {
    "cat": in_cat,
    "python": in_python,
    "spark": in_spark,
    "sql": in_sql,
    "export": in_export,
}
LACKS = {
    "cat": {"keys"},  # `query` finds them
    "python": set[str](),
    # Spark takes offsets by queue, and has its own messages for them.
    "spark": {"from_offset", "until_offset"},
    "sql": set[str](),
    "export": {"tags", "keys", "queue_ids"},  # it is of whole queues
}
IN_SQL: dict[str, list[int] | str] = {"||": [], "": []}
"""Texts that other interfaces refuse as tags. SQL compares them like any other text."""


def expect(face: str, arguments: dict[str, Any], expected: list[int] | str) -> list[int] | str:
    if face != "sql" or expected != REFUSED:
        return expected
    if "tags" in arguments:
        return IN_SQL[arguments["tags"]]
    if len(arguments) == 2 or "queue_ids" in arguments:  # a condition that is never true
        return []
    # SQL compares with any number.
    below = [offset for offset in ALL if offset < arguments.get("until_offset", 6)]
    offsets = [offset for offset in below if offset >= arguments.get("from_offset", 0)]
    return offsets if arguments.keys() & {"from_offset", "until_offset"} else REFUSED


CASES = [
    (face, arguments, expect(face, arguments, expected))
    for arguments, expected in TABLE
    for face in FACES
    if LACKS[face].isdisjoint(arguments)
]


@pytest.mark.parametrize(("face", "arguments", "expected"), CASES)
def test_j47_an_argument_means_the_same_in_every_face(
    tmp_path: Path, face: str, arguments: dict[str, Any], expected: list[int] | str
) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 6)
    assert FACES[face](tier.url, arguments) == expected
