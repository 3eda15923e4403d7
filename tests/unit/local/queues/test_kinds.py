"""Tests of the consume queues of a stopped store, both in files and in RocksDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.local.queues.kinds import find_queues_of


@pytest.mark.parametrize(
    ("store_type", "place"), [("default", "consumequeue/T"), ("defaultRocksDB", "consumequeue")]
)
def test_the_queues_of_a_topic_are_found_until_it_is_deleted(
    tmp_path: Path, store_type: str, place: str
) -> None:
    config = small_config(tmp_path, store_type=store_type)
    with running(config) as store:
        put_all(store, [plain("T"), plain("U")])
    assert find_queues_of(tmp_path, "T") == tmp_path / place
    assert find_queues_of(tmp_path, "V") is None
    with running(config) as store:
        store.delete_topics({"T"})
    assert find_queues_of(tmp_path, "T") is None
    assert find_queues_of(tmp_path, "U") is not None


def test_a_folder_without_a_store_has_no_queues(tmp_path: Path) -> None:
    assert find_queues_of(tmp_path, "T") is None
