"""A read-only broker serves the lite topics of a tier that another broker writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.lite_tier import LiteTier, queue_of
from tieredstore import registry
from tieredstore.cli.reading_broker import _load
from tieredstore.contracts.backups import BackupName, RangedBackups
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.contracts.wrapping import find_layer
from tieredstore.jobs.metadata.following import TierFollower
from tieredstore.scan.location import locate
from tieredstore.tier.lite.merging import FAN_IN
from tieredstore.tier.lite.runs import load_runs
from tieredstore.tier.lite.service import RETIRED_MS
from tieredstore.tier.store import TieredMessageStore


class Follower:
    """The store of a read-only broker over the tier of `writer`."""

    def __init__(self, writer: LiteTier) -> None:
        conf = writer.root / "reader.conf"
        conf.write_text("enableLmq=true\nenableMultiDispatch=true\n")
        location = locate(f"file://{writer.root / 'tier'}", config=conf)
        state = writer.root / "reader"
        (state / "config").mkdir(parents=True)
        self.follower = TierFollower.open(location, state, writer.clock)
        store = registry.message_store(_load(location, state, self.follower.broker), writer.clock)
        assert isinstance(store, TieredMessageStore)
        store.load()
        store.start()
        self.store = store

    def close(self) -> None:
        self.store.shutdown()

    def follow(self) -> None:
        self.follower.follow(self.store)

    def get(self, lite: str, offset: int) -> GetMessageStatus:
        return self.store.get_message("g", queue_of(lite), 0, offset, 32).status

    def read(self, lite: str) -> list[bytes]:
        found: list[bytes] = []
        offset = 0
        while (one := self.store.get_message("g", queue_of(lite), 0, offset, 32)).messages:
            found += (bytes(message.body) for message in one.messages)
            offset = one.next_begin_offset
        return found


@pytest.fixture
def it(tmp_path: Path) -> Iterator[LiteTier]:
    store = LiteTier(tmp_path)
    # The ids of topics are not in their order, and no index file is uploaded.
    store.put("Z", b"z")
    store.upload()
    yield store
    store.close()


@pytest.fixture
def follower(it: LiteTier) -> Iterator[Follower]:
    it.put_lite("a", b"0")
    it.upload_runs()
    with closing(Follower(it)) as follower:
        yield follower


def test_t77_lite_topics_are_found_without_an_index(follower: Follower) -> None:
    assert follower.read("a") == [b"0"]


def test_t77_new_runs_are_served_and_merged_ones_are_not_missed(
    it: LiteTier, follower: Follower
) -> None:
    bodies = [b"0"]
    for number in range(1, 2 * FAN_IN):
        bodies.append(b"%d" % number)
        it.put_lite("a", bodies[-1])
        it.upload_runs()
        it.clock.advance(RETIRED_MS)
        if number % 3:
            follower.follow()
            assert follower.read("a") == bodies
    assert len(it.list_runs()) < 2 * FAN_IN


def test_t77_a_parent_that_comes_later_gets_its_own_id(it: LiteTier) -> None:
    with closing(Follower(it)) as follower:
        it.put("A", b"a")
        it.put_lite("a", b"0")
        it.upload()
        follower.follow()
        assert follower.read("a") == []
        it.upload_runs()
        follower.follow()
        assert follower.read("a") == [b"0"]


def test_t77_a_deleted_lite_topic_is_no_longer_served(it: LiteTier, follower: Follower) -> None:
    assert follower.read("a") == [b"0"]
    it.store.delete_topics({queue_of("a")})
    it.upload_runs()
    follower.follow()
    assert follower.read("a") == []


def test_o09_messages_of_a_lost_run_are_not_passed_over(it: LiteTier, follower: Follower) -> None:
    for body in (b"1", b"2"):
        it.put_lite("a", body)
        it.upload_runs()
    place = find_layer(it.store.flat_files.provider, RangedBackups)
    assert place is not None
    place.delete_backups(it.store.flat_files.config.broker_name, [it.list_runs()[1]])
    follower.follow()
    assert follower.get("a", 0) is GetMessageStatus.FOUND
    assert follower.get("a", 1) is GetMessageStatus.OFFSET_FOUND_NULL
    assert follower.get("a", 2) is GetMessageStatus.FOUND


def test_t77_runs_that_are_merged_after_their_listing_are_listed_again(it: LiteTier) -> None:
    it.put_lite("a", b"0")
    it.upload_runs()
    stale: list[BackupName] = it.list_runs()
    stale[0] = stale[0]._replace(sequence=stale[0].sequence + 7)
    found = load_runs(it.store.flat_files.provider, it.store.flat_files.config.broker_name, stale)
    assert [run.name for run in found.directory.runs] == it.list_runs()
