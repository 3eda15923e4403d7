"""A deletion by a fenced writer never affects its successor's data."""

from __future__ import annotations

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import BROKER, KEY, Tier, config, fill
from tests.kit.tier.writing import become_writer
from tieredstore.contracts.metadata_store import TopicMetadata
from tieredstore.errors import Fenced, Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.tier.deleted.records import find_deleted, list_records
from tieredstore.tier.flat.file_store import FlatFileStore


def open_store(tier: Tier, client: MemoryObjectClient) -> FlatFileStore:
    """Open the store as if in another process, and acquire the writer epoch."""
    store = FlatFileStore(config(), chunk_provider(client), tier.metadata, tier.clock)
    become_writer(store, take_over=True)
    store.load()
    return store


@pytest.mark.parametrize("knows", [False, True])
def test_t74_a_deletion_by_a_former_writer_hides_nothing_of_the_next_one(knows: bool) -> None:
    """A former writer's deletion of a topic does not hide the next writer's messages. With `knows`,
    the former writer is fenced only at its second fence check."""
    client = MemoryObjectClient()
    tier = Tier()
    former = open_store(tier, client)
    file = former.get_or_create(*KEY)
    file.init_offset(0)
    fill(file, 0, 3)
    if knows:
        writer = former.deleted._writer
        assert writer is not None
        confirm, calls = writer.confirm, iter(range(2))
        writer.confirm = lambda: confirm() if next(calls) else None  # type: ignore[method-assign]
    successor = open_store(tier, client)
    with pytest.raises(Fenced):
        former.destroy_topics({KEY.topic})
    assert find_deleted(successor.provider, BROKER) == {}
    successor.close()
    again = open_store(tier, client)
    found = again.get(*KEY)
    assert found is not None
    assert found.consume_queue_commit_offset == 3


def test_t74_a_late_record_of_a_former_writer_is_older_than_what_counts() -> None:
    client = MemoryObjectClient()
    tier = Tier()
    former = open_store(tier, client)
    file = former.get_or_create(*KEY)
    file.init_offset(0)
    fill(file, 0, 3)
    place = former.deleted._place
    assert place is not None
    list_all = place.list_backups
    late: list[tuple[object, ...]] = []

    class Later:
        """Backup location whose write fails and is applied later."""

        list_backups = staticmethod(list_all)

        def write_backup(self, *request: object) -> None:
            late.append(request)
            raise Unavailable("no answer")

    former.deleted._place = Later()  # type: ignore[assignment]
    with pytest.raises(Unavailable):
        former.destroy_topics({KEY.topic})
    successor = open_store(tier, client)
    [request] = late
    place.write_backup(*request)  # type: ignore[arg-type]
    assert len(list_records(successor.provider, BROKER)) == 2
    assert find_deleted(chunk_provider(client), BROKER) == {}


def test_t30_a_recreated_topic_does_not_get_the_id_of_another_one() -> None:
    """A recreated topic does not get its reserved id if a Java broker has given that id to another
    topic."""
    tier = Tier()
    store = open_store(tier, MemoryObjectClient())
    file = store.get_or_create(*KEY)
    file.init_offset(0)
    fill(file, 0, 3)
    store.destroy_topics({KEY.topic})
    record = store.deleted.get(KEY.topic)
    assert record is not None
    tier.metadata.add_topic("java")
    tier.metadata.update_topic(TopicMetadata(record.next_id, "java"))
    added = store.deleted.add_topic(KEY.topic)
    assert added > record.next_id
    assert [one.topic_id for one in tier.metadata.topics()].count(added) == 1
    store.close()
