"""A Java broker can open a tier whose Python writer was killed. Java reads only the JSON file."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.tier.flat import BROKER, KEY, Tier, existing, fill
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.metadata.json_store import DefaultMetadataStore


def test_no_segment_that_holds_messages_looks_expired(tmp_path: Path) -> None:
    """Java's expiry immediately deletes a segment without an end time, even the last segment. This
    project records end times in the journal, which Java does not read. So the JSON entry of a
    segment has an end time from the start."""
    path = tmp_path / "config" / "tieredStoreMetadata.json"
    metadata = DefaultMetadataStore(path, BROKER)
    metadata.load()
    tier = Tier(metadata=metadata, settings={"commit_log_max_size_bytes": 600})
    file = tier.queue()
    fill(file, 0, 10)
    assert len(file.commit_log.segments) > 1
    assert all(segment.commit_position for segment in file.commit_log.segments)
    java = json.loads(path.read_bytes())  # nothing was closed or flushed
    for table in ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable"):
        entries = [entry for rows in java[table].values() for entry in rows.values()]
        assert entries
        for entry in entries:
            assert entry["endTimestamp"] != NEVER_WRITTEN_MS
    metadata.close()


def test_the_end_of_an_empty_segment_is_no_time_of_a_message(tmp_path: Path) -> None:
    metadata = DefaultMetadataStore(tmp_path / "m.json", BROKER)
    metadata.load()
    tier = Tier(metadata=metadata)
    file = tier.queue()
    fill(file, 0, 3)
    file.commit_log.roll()
    last = file.max_store_timestamp_ms
    again = existing(tier.store(), KEY)
    assert again.max_store_timestamp_ms == last
    assert again.commit_log.segments[-1].is_expired(0)  # as any that was never written
    metadata.close()
