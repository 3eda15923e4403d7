"""A report of the tier that Java wrote agrees with the manifest."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import ReportOptions
from tieredstore.jobs.reporting.job import run_report
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.scan.location import locate


@pytest.mark.parametrize("with_state", [False, True])
def test_figures_are_those_of_the_manifest(
    public_a: Path, public_a_manifest: dict[str, Any], tmp_path: Path, with_state: bool
) -> None:
    queues: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for found in public_a_manifest["messages"]:
        if found.get("tiered"):
            queues[found["topic"], found["queueId"]].append(found)
    state = public_a / "store" if with_state else None
    source = locate(f"file://{public_a / 'tiered'}", state=state)
    newest_ms = max(m["storeTimestamp"] for rows in queues.values() for m in rows)
    options = ReportOptions(as_of=newest_ms + 1000)
    with Journal(None, {}) as journal:
        totals = run_report(JobRun("report", LocalRunner(1), journal), source, tmp_path, options)
    assert totals["damage"] == 0, totals["damage_met"]
    assert totals["messages"] == sum(map(len, queues.values())) == 1759
    rows = {
        (row["topic"], row["queue_id"]): row
        for row in pq.read_table(tmp_path / "queues.parquet").to_pylist()
        if row["messages"]
    }
    assert set(rows) == set(queues)
    for key, messages in queues.items():
        row, sizes = rows[key], sorted(m["storeSize"] for m in messages)
        times = [m["storeTimestamp"] for m in messages]
        assert row["messages"] == len(messages)
        assert row["first_offset"] == min(m["queueOffset"] for m in messages)
        assert row["next_offset"] == max(m["queueOffset"] for m in messages) + 1
        assert row["record_bytes"] == sum(sizes)
        assert (row["record_bytes_min"], row["record_bytes_max"]) == (sizes[0], sizes[-1])
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            true = sizes[max(-(-len(sizes) * int(share * 100) // 100), 1) - 1]
            assert row[f"record_bytes_{name}"] == pytest.approx(true, rel=1 / 64)
        assert row["min_store_timestamp"].timestamp() * 1000 == pytest.approx(min(times))
        assert row["max_store_timestamp"].timestamp() * 1000 == pytest.approx(max(times))
    values = pq.read_table(tmp_path / "values.parquet").to_pylist()
    for topic in pq.read_table(tmp_path / "topics.parquet").to_pylist():
        messages = [
            m for (name, _), rows_ in queues.items() for m in rows_ if name == topic["topic"]
        ]
        assert topic["messages_read"] == topic["messages"] == len(messages)
        keys = Counter(key for m in messages for key in (m["keys"] or "").split())
        tags = Counter(m["tags"] for m in messages if m["tags"])
        assert topic["keys_values"] == keys.total()
        assert topic["keys_distinct"] == len(keys)
        assert topic["tags_values"] == tags.total()
        assert topic["tags_distinct"] == len(tags)
        for row in values:
            if row["topic"] == topic["topic"] and row["kind"] != "UNIQ_KEY":
                true = (keys if row["kind"] == "KEYS" else tags)[row["value"]]
                assert row["count"] <= true <= row["count_most"]
