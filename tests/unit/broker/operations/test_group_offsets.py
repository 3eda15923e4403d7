"""A metrics scrape takes time linear in the number of groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.kit.broker_services import broker_services
from tests.kit.loops import on_loop
from tieredstore.broker.operations.operations import Operations
from tieredstore.broker.state.topics import TopicConfig


class _Counted(dict[tuple[str, str], dict[int, int]]):
    """Offset table that counts the keys yielded by its iterators."""

    count = 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for key in super().__iter__():
            self.count += 1
            yield key


@on_loop
async def test_the_offsets_of_all_groups_are_walked_over_once(tmp_path: Path) -> None:
    async with broker_services(tmp_path) as broker:
        counted = broker.offsets._offsets = _Counted()
        for number in range(50):
            broker.topics.update_topic(TopicConfig(topic_name=f"T{number}"))
            broker.offsets.commit_offset(f"G{number}", f"T{number}", 0, number)
        broker.offsets.commit_offset("G", "Gone", 0, 1)
        found = Operations(broker, list)._list_group_offsets()
        assert {(entry.group, entry.topic, entry.offsets[0]) for entry in found} == {
            (f"G{number}", f"T{number}", number) for number in range(50)
        }
        assert counted.count <= 2 * 51
