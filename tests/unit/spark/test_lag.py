"""A stream's lag is computed from Spark's progress report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.growing_tier import BROKER, GrowingTier
from tests.kit.spark.stream_reader import latest, reader_of, through_json
from tieredstore.errors import Invalid
from tieredstore.spark.lag import Lag, lag_of


@pytest.mark.parametrize("as_text", [False, True])
def test_offsets_behind_latest(tmp_path: Path, as_text: bool) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 10)
    tier.append("orders", 1, 4)
    tier.append("paid", 0, 1)
    reader = reader_of(tier, maxOffsetsPerTrigger="6")
    end = latest(reader, through_json(reader.initialOffset()))
    reported = reader.reportLatestOffset()
    offsets: list[Any] = [json.dumps(one) if as_text else one for one in (end, reported)]
    source = {"endOffset": offsets[0], "latestOffset": offsets[1]}
    other = {"endOffset": "7", "latestOffset": json.dumps({"t": {"0": 7}})}  # a rate, Kafka's
    found = lag_of({"sources": [other, source]})
    assert found is not None
    assert sum(found.by_queue.values()) == found.total == 15 - 6
    assert found.by_topic == {"orders": 9, "paid": 0}
    assert found.max == found.by_queue["orders", BROKER, 0]
    assert found.avg == 3.0


def test_what_has_no_lag() -> None:
    assert lag_of(None) is None
    assert lag_of({"sources": [{"endOffset": "7", "latestOffset": None}]}) is None
    old_spark = {"endOffset": {"@brokers": []}, "latestOffset": "null"}
    assert lag_of({"sources": [old_spark]}) is None
    with pytest.raises(Invalid):
        lag_of({"sources": [{"endOffset": {"@brokers": 1, "t": 2}, "latestOffset": "null"}]})
    assert (Lag({}).max, Lag({}).avg, Lag({}).by_topic) == (0, 0.0, {})
