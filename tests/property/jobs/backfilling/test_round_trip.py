"""The rows of a backfill can be read back, for any order of the rows and any queues, files and
segments."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.jobs.backfill import damage, found, memory_tier, new_run, tier_at
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.options import BackfillOptions
from tieredstore.scan.arrow.schema import TYPES

TEXT = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\x01\x02"),
    min_size=1,
    max_size=9,
)
WORD = TEXT.filter(lambda text: text.split() == [text] and " " not in text)
HOST = st.sampled_from(["10.0.0.1:10911", "[2001:db8:0:0:0:0:0:1]:9", "0.0.0.0:0"])
NUMBER = st.integers(-(2**31), 2**31 - 1)
MS = st.integers(0, 2**42)
NAMES = st.text("aB9%|_-", min_size=1, max_size=12)
PROPERTIES = st.dictionaries(WORD, TEXT, max_size=4)

ROW = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=300),
        "properties": PROPERTIES,
        "flag": NUMBER,
        "reconsume_times": NUMBER,
        "born_timestamp": MS,
        "born_host": HOST,
        "store_host": HOST,
        "sys_flag": st.sampled_from([0, 4, 8]),
    }
)


@st.composite
def queues(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw rows of up to three queues in any order. Each queue has offsets without a gap, and times
    that never decrease."""
    rows = []
    names = draw(st.lists(st.tuples(NAMES, st.integers(0, 5)), min_size=1, max_size=3, unique=True))
    for topic, queue_id in names:
        first = draw(st.sampled_from([0, 1, 77, 2**33]))
        members = draw(st.lists(ROW, min_size=1, max_size=12))
        times = sorted(draw(st.lists(MS, min_size=len(members), max_size=len(members))))
        for at, row in enumerate(members):
            rows.append(
                {
                    "topic": topic,
                    "queue_id": queue_id,
                    "queue_offset": first + at,
                    "store_timestamp": times[at],
                    **row,
                }
            )
    return draw(st.permutations(rows))


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["properties"] = [list(value.items()) for value in columns["properties"]]
    arrays = {
        name: pa.array(values, pa.int64() if name.endswith("timestamp") else TYPES[name])
        for name, values in columns.items()
    }
    return pa.table(arrays)


@settings(max_examples=25, deadline=None)
@given(
    queues(),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([200, 1500, 10**6]),
    st.sampled_from([1, 700, 10**6]),
    st.booleans(),
)
def test_any_rows_come_back(
    rows: list[dict[str, Any]],
    files: int,
    group_rows: int,
    segment_bytes: int,
    task_bytes: int,
    in_chunks: bool,
) -> None:
    table = table_of(rows)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "table").mkdir()
        step = -(-len(rows) // files)
        for first in range(0, len(rows), step):
            path = root / "table" / f"{first:04}.parquet"
            pq.write_table(table.slice(first, step), path, row_group_size=group_rows)
        tier = memory_tier(root) if in_chunks else tier_at(root)
        options = BackfillOptions(segment_bytes=segment_bytes)
        run_backfill(new_run(), tier, str(root / "table"), options, task_bytes=task_bytes)
        back = found(root, tier).select(list(rows[0])).to_pylist()
        assert damage(tier) == []
    expected = sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))
    for row, given_ in zip(back, expected, strict=True):
        row["properties"] = dict(row["properties"])
        v6 = 16 * given_["born_host"].startswith("[") + 32 * given_["store_host"].startswith("[")
        assert row.pop("sys_flag") == given_["sys_flag"] | v6
        for name in ("born_timestamp", "store_timestamp"):
            row[name] = round(row[name].timestamp() * 1000)
        assert row == {name: value for name, value in given_.items() if name != "sys_flag"}
