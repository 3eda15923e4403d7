"""Without a state directory, topic ids are derived from the keys of verified messages."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.kit.tier_builder import BuiltTier, TierBuilder, message
from tieredstore.message.index.tiered import COMPACTED_ITEM_DTYPE
from tieredstore.scan.verify import index_items
from tieredstore.scan.verify.topic_probes import TopicProbes

TOPICS = 20


@pytest.fixture
def tier(tmp_path: Path) -> BuiltTier:
    """A tier of twenty topics with one message each, which differ only in their topic names. All
    messages are indexed."""
    builder = TierBuilder(tmp_path)
    for number in range(TOPICS):
        topic = f"topic-{number:02d}"
        builder.queue(topic, 0, [message(topic, 0, 0)])
    builder.index()
    return builder.built


def test_no_topic_is_tried_for_the_ids_of_others(tier: BuiltTier) -> None:
    run = index_items._GroupCheck.run
    with mock.patch.object(index_items._GroupCheck, "run", autospec=True, side_effect=run) as tried:
        report, findings = tier.verify()
    assert report.index_items == 2 * TOPICS
    assert findings == []
    assert tried.call_count == 0


def test_an_index_of_messages_that_are_no_probes_teaches_as_well(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    for topic in ("a", "b", "c"):
        items = builder.queue(topic, 0, [message(topic, 0, n) for n in range(5)])
        builder.built.stored[topic, 0] = items[3:4]
    builder.index()
    report, findings = builder.built.verify()
    assert report.index_items == 6
    assert findings == []


def test_tries_are_bounded(tier: BuiltTier) -> None:
    """The number of lookups for topic ids is limited, because some ids, such as those of deleted
    topics, cannot be found."""
    run = index_items._GroupCheck.run
    with (
        mock.patch.object(TopicProbes, "find_topics", return_value={}),
        mock.patch.multiple(index_items, _TRIES=5, _TRIES_A_QUEUE=0),
        mock.patch.object(index_items._GroupCheck, "run", autospec=True, side_effect=run) as tried,
    ):
        report, findings = tier.verify()
    assert tried.call_count <= 5 + TOPICS
    assert report.messages == TOPICS
    assert [finding.kind for finding in findings] == ["index-item-dangling"]


def items(*rows: tuple[int, int, int, int, int]) -> np.ndarray:
    found = np.zeros(len(rows), COMPACTED_ITEM_DTYPE)
    for name, values in zip(
        ("hash", "topic_id", "queue_id", "offset", "size"), zip(*rows, strict=True), strict=True
    ):
        found[name] = values
    return found


def test_the_id_that_most_items_have_is_the_topics() -> None:
    probes = TopicProbes.of([("a", 0, (7, n * 100, 100)) for n in range(3)])
    good = [(7, 4, 0, n * 100, 100) for n in range(3)]
    assert probes.find_topics(items(*good)) == {4: "a"}
    assert probes.find_topics(items(*good[:2], (7, 9, 0, 200, 100))) == {4: "a"}
    assert probes.find_topics(items(good[0], (7, 9, 0, 100, 100))) == {}
    assert probes.find_topics(items((7, 4, 1, 0, 100))) == {}
    assert TopicProbes().find_topics(items(*good)) == {}
