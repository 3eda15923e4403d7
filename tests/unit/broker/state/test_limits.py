"""Tests of the limits on table entries that clients can create."""

from __future__ import annotations

from pathlib import Path

import pytest

from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state import groups as groups_module
from tieredstore.broker.state import offsets as offsets_module
from tieredstore.broker.state import topics as topics_module
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import DEFAULT_TOPIC, TopicConfig, TopicConfigManager
from tieredstore.errors import Busy


def test_s81_clients_create_a_limited_number_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(groups_module, "MAX_GROUPS", 3)
    manager = SubscriptionGroupManager(tmp_path, BrokerSettings())
    assert all(manager.find_group(name) for name in "abc")
    assert "3 groups" in caplog.text
    assert manager.find_group("d") is None
    assert manager.find_group("a") is not None
    manager.update_group(SubscriptionGroupConfig(group_name="e"))  # of an operator
    assert manager.find_group("e") is not None
    for name in "abe":
        manager.delete_group(name)
    assert manager.find_group("d") is not None


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("%LMQ%a@b", True),
        ("%LMQ%" + "n" * 115, True),
        ("%LMQ%" + "n" * 116, False),
        ("%LMQ%" + "é" * 60, False),
        ("%LMQ%a/../../b", False),
        ("%LMQ%a\nb", False),
    ],
)
def test_s81_groups_of_light_queues_have_valid_names(
    tmp_path: Path, name: str, is_valid: bool
) -> None:
    """A group whose name begins with `%LMQ%` must still have a valid name."""
    manager = SubscriptionGroupManager(tmp_path, BrokerSettings(), has_lmq=True)
    assert (manager.find_group(name) is not None) is is_valid


def test_s81_clients_create_a_limited_number_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = TopicConfigManager(tmp_path, BrokerSettings())
    manager.add_system_topics()
    count = len(manager.list_topics())
    monkeypatch.setattr(topics_module, "MAX_TOPICS", count + 2)
    for name in ("a", "a"):
        assert manager.create_on_send(name, DEFAULT_TOPIC, 4) is not None
    manager.create_on_send_back("%RETRY%g", 1)
    with pytest.raises(Busy, match=f"{count + 2} topics"):
        manager.create_on_send("b", DEFAULT_TOPIC, 4)
    with pytest.raises(Busy, match="create no further"):
        manager.create_on_send_back("%RETRY%h", 1)
    assert manager.create_on_send("a", DEFAULT_TOPIC, 4) is not None
    manager.update_topic(TopicConfig(topic_name="c"))  # of an operator
    manager.delete_topic("TRANS_CHECK_MAX_TIME_TOPIC")
    manager.add_system_topics()
    assert manager.find_topic("TRANS_CHECK_MAX_TIME_TOPIC") is not None


def test_s81_clients_commit_offsets_of_a_limited_number_of_groups_and_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_module, "MAX_ENTRIES", 2)
    manager = ConsumerOffsetManager(tmp_path)
    for group in "ab":
        manager.check_room(group, "T")
        manager.commit_offset(group, "T", 0, 1)
    manager.check_room("a", "T")
    with pytest.raises(Busy, match="2 groups and topics"):
        manager.check_room("c", "T")
    manager.remove_group("a")
    manager.check_room("c", "T")
