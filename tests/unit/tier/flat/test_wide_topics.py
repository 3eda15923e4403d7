"""Deleting a topic with many queues does not rewrite the metadata file for each queue."""

from __future__ import annotations

from pathlib import Path

from tests.kit.tier.flat import BROKER, Tier, fill
from tieredstore.disk.file_operations import FileOperations
from tieredstore.metadata.json_store import DefaultMetadataStore

QUEUES = 300


class CountingOperations(FileOperations):
    """Counts complete rewrites of files."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def write_temporary(self, path: Path, data: bytes, mode: int = 0o644) -> Path:
        self.written += 1
        return super().write_temporary(path, data, mode)


def test_s63_a_topic_of_many_queues_is_deleted_in_a_few_writes(tmp_path: Path) -> None:
    operations = CountingOperations()
    metadata = DefaultMetadataStore(tmp_path / "metadata.json", BROKER, operations=operations)
    metadata.load()
    tier = Tier(metadata=metadata)
    store = tier.store()
    for queue_id in range(QUEUES):
        file = store.get_or_create("Wide", queue_id)
        file.init_offset(0)
        fill(file, 0, 1, topic="Wide", queue_id=queue_id)
    kept = store.get_or_create("Kept", 0)
    kept.init_offset(0)
    fill(kept, 0, 1, topic="Kept")
    operations.written = 0
    [(topic, queue_ids)] = store.destroy_topics(["Wide"])
    assert (topic.topic, queue_ids) == ("Wide", list(range(QUEUES)))
    assert operations.written < 20
    assert {item.path for item in tier.objects()} == {f"{BROKER}/Kept/0"}
    assert [topic.topic for topic in metadata.topics()] == ["Kept"]
    assert len(list(metadata.segments())) == 2
    # A deleted topic may be recreated at once.
    again = store.get_or_create("Wide", 7)
    again.init_offset(0)
    fill(again, 0, 1, topic="Wide", queue_id=7)
    assert tier.store().get("Wide", 7) is not None
