"""An offload lists the store's queues once, and again only on request."""

from __future__ import annotations

from typing import cast

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey
from tieredstore.jobs.offloading.source import OffloadSource, list_skipped_topics
from tieredstore.tier.policy.topic_filter import TopicFilter


class Listed:
    """Store that counts its listings."""

    def __init__(self) -> None:
        self.keys = [QueueKey("orders", 0), QueueKey("other", 1)]
        self.lists = 0
        self.fails = False

    def queues(self) -> list[QueueKey]:
        self.lists += 1
        if self.fails:
            raise OSError("away")
        return self.keys

    def find_excluded_topics(self) -> dict[str, str]:
        self.lists += 1
        return {"compacted": "compaction topic"}


def make_source(listed: Listed, *topics: str) -> OffloadSource:
    return OffloadSource(cast(DispatchSource, listed), topics, TopicFilter(StoreConfig()))


def test_a_store_is_listed_once() -> None:
    listed = Listed()
    source = make_source(listed)
    for _ in range(3):
        assert list(source.queues()) == listed.keys
        assert list_skipped_topics(source, TopicFilter(StoreConfig())).keys() == {"compacted"}
        assert source.make_topic_choice()("orders")
        source.check_topics()
    assert listed.lists == 2


def test_what_has_come_is_there_after_another_look() -> None:
    listed = Listed()
    source = make_source(listed, "o*")
    assert list(source.queues()) == listed.keys
    listed.keys = [*listed.keys, QueueKey("orders", 7), QueueKey("new", 0)]
    assert QueueKey("orders", 7) not in source.queues()
    source.look_again()
    assert list(source.queues()) == listed.keys[:3]


def test_a_list_that_fails_is_asked_for_again() -> None:
    listed = Listed()
    source = make_source(listed)
    listed.fails = True
    try:
        list(source.queues())
    except OSError:
        listed.fails = False
    assert list(source.queues()) == listed.keys
