"""Topics are written, uploaded, deleted and recreated in any order (faults T30 to T33). The tier is
disabled and enabled, and its backend refuses deletions for some time. There are crashes, older
metadata, expiry, lost disks, restores and a follower. The oracle is the list of acknowledged
messages."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.generations import HOUR_MS, StillClock
from tests.kit.generations import TOPICS as TOPICS_FILE
from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal
from tieredstore import jobs, registry
from tieredstore.cli.reading_broker import _load, _prepare
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Busy, Invalid, Unavailable
from tieredstore.jobs.metadata.following import TierFollower
from tieredstore.providers.posix.provider import PosixFileSegment
from tieredstore.scan.location import locate

TOPICS = ("A", "B", "C")
Held = dict[str, tuple[int, frozenset[SegmentId]]]


class Run:
    """One broker with its tier and its follower. `live` has the messages of each topic since its
    last deletion, by queue offset. `uploaded` has the messages that are certainly in the tier."""

    def __init__(self, root: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.world = TieredLocal(
            root / "w",
            StillClock(START_MS),
            tieredStorageLevel="FORCE",
            tieredStoreFileReservedTime=1_000,
            tieredStoreBackupInterval=60_000,
            tieredStoreCommitLogMaxSize=self.random.choice([2_000, 1 << 20]),
            tieredStoreConsumeQueueMaxSize=400,
            mappedFileSizeCommitLog=1 << 14,
            fileReservedTime=1,
        )
        self.world.put("K", b"kept")
        self.world.upload()
        config = self.world.root / "store" / "config"
        (config / "topics.json").write_text(TOPICS_FILE)
        self.world.store.backup.run_once(is_last=True)
        self.is_on = True
        self.live: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
        self.uploaded: dict[str, set[int]] = {topic: set() for topic in TOPICS}
        self.next: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.floor: dict[str, int] = dict.fromkeys(TOPICS, 0)  # end of all tiered offsets
        self.begin: dict[str, int] = dict.fromkeys(TOPICS, 0)  # earlier ones have expired
        self.generation: dict[str, int] = defaultdict(int)
        self.copies: list[tuple[Path, Held]] = []
        self.number = 0
        self.refuses = self.has_refused = False
        self.expired: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
        self._refuse_when_told(monkeypatch)
        self.steps: list[str] = []
        self.reader: Any = None

    def _refuse_when_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        delete = PosixFileSegment.delete

        def refuse(segment: PosixFileSegment) -> None:
            if self.refuses:
                raise Unavailable("delete refused for a while")
            delete(segment)

        monkeypatch.setattr(PosixFileSegment, "delete", refuse)

    # Steps

    def put(self) -> None:
        topic = self.random.choice(TOPICS)
        size = self.random.choice([0, 300])
        bodies = []
        for _ in range(self.random.randint(1, 6)):
            self.number += 1
            bodies.append(b"%s.%d.%d." % (topic.encode(), self.generation[topic], self.number))
        offsets = self.world.put(topic, *[body + b"x" * size for body in bodies], key=topic)
        if self.is_on:
            assert offsets[0] >= self.floor[topic], "an offset that the tier had comes again"
        elif offsets[0] < self.floor[topic]:
            self.floor[topic] = self.begin[topic] = 0  # only the tier had these offsets
        if self.live[topic]:
            assert offsets[0] == self.next[topic], "an offset is given out again, or left out"
        for offset, body in zip(offsets, bodies, strict=True):
            self.live[topic][offset] = body + b"x" * size
        self.next[topic] = offsets[-1] + 1

    def upload(self) -> None:
        if not self.is_on:
            return
        self.world.local.flush()
        outcomes = self.world.store.dispatcher.scan(force=True)
        waiting = {outcome.key.topic for outcome in outcomes if outcome.error is not None}
        for outcome in outcomes:  # a name may be free only when its segment is deleted
            assert outcome.error is None or isinstance(outcome.error, (Busy, Unavailable)), outcome
        assert self.refuses or self.has_refused or not waiting
        for topic in set(TOPICS) - waiting:
            live = self.live[topic]
            if live:
                self.floor[topic] = max(live) + 1
            self.uploaded[topic] = {offset for offset in live if offset >= self.begin[topic]}

    def delete(self) -> None:
        topic = self.random.choice(TOPICS)
        self.world.store.delete_topics({topic})
        self.live[topic], self.uploaded[topic], self.expired[topic] = {}, set(), {}
        self.generation[topic] += 1

    def refuse_deletions(self) -> None:
        self.refuses = not self.refuses
        self.has_refused = True

    def sweep(self) -> None:
        if self.is_on:
            self.world.store.expiry.run_once()
            self.has_refused = self.refuses

    def switch(self) -> None:
        self.is_on = not self.is_on
        self.world.reopen(tieredStorageLevel="FORCE" if self.is_on else "DISABLE")

    def restart(self) -> None:
        self._reopen()

    def crash(self) -> None:
        root = self.world.root
        self._stop_services()
        self._end_reader()
        shutil.copytree(root / "store", root / "killed", ignore=shutil.ignore_patterns("lock"))
        shutil.copytree(root / "tier", root / "killed-tier")
        self.world.close()
        for name, killed in (("store", "killed"), ("tier", "killed-tier")):
            shutil.rmtree(root / name)
            shutil.move(root / killed, root / name)
        self._open()

    def copy_metadata(self) -> None:
        if not self.is_on:
            return
        self.world.store.flat_files.metadata.flush()
        folder = self.root / f"copy{len(self.steps)}"
        folder.mkdir()
        for path in (self.world.root / "store" / "config").glob("tieredStoreMetadata.json*"):
            shutil.copy(path, folder / path.name)
        self.copies.append((folder, self._find_held()))

    def put_back_metadata(self) -> None:
        """Restore an older copy of the metadata, if all topics that differ in the copy were deleted
        after the copy was made. Otherwise do nothing."""
        if not self.copies or not self.is_on:
            return
        folder, held = self.random.choice(self.copies)
        now = self._find_held()
        deleted = self.world.store.flat_files.deleted
        for topic in {*now, *held}:
            is_known = topic in held and topic in now and held[topic] == now[topic]
            if not is_known and deleted.get(topic) is None:
                return
            before, after = held.get(topic), now.get(topic)
            if before is not None and after is not None and before[0] == after[0] and not is_known:
                return
        self.world.close()
        config = self.world.root / "store" / "config"
        for path in config.glob("tieredStoreMetadata.json*"):
            path.unlink()
        for path in folder.iterdir():
            shutil.copy(path, config / path.name)
        self._open()

    def _find_held(self) -> Held:
        found: dict[str, set[SegmentId]] = defaultdict(set)
        for entry in self.world.store.flat_files.metadata.segments():
            topic = entry.path.split("/")[1]
            if entry.type is not FileSegmentType.INDEX and entry.status == 0:
                found[topic].add(entry.id)
        for known in self.world.store.flat_files.metadata.topics():
            found[known.topic] |= set()  # one of which nothing was uploaded yet
        return {topic: (self.generation[topic], frozenset(ids)) for topic, ids in found.items()}

    def clean_local(self) -> None:
        """Delete the local commit log, including its records of deletions."""
        for _ in range(2):
            self.world.put("K", *[b"k" * 500] * 40)
            self.upload()
        self.world.local.flush()
        for _ in range(2):
            self.world.clock.advance(26 * HOUR_MS)
            self.world.local.execute_delete_files_manually()
            self.world.local.cleaning.run_once()
        if not self.is_on:  # messages that were not uploaded may be lost with their log
            for topic, live in self.live.items():
                begin = self.world.local.get_min_offset_in_queue(topic, 0)
                gone = {
                    offset
                    for offset in live.keys() - self.uploaded[topic]
                    if not offset >= begin >= 0
                }
                # The first scan after it was switched on has uploaded some.
                self.expired[topic] |= {offset: live[offset] for offset in gone}
                self.live[topic] = {one: live[one] for one in live.keys() - gone}

    def expire(self) -> None:
        """Let all messages in the tier expire."""
        if not self.is_on:
            return
        self.upload()
        self.world.clock.advance(1_001 * HOUR_MS)
        self.world.store.expiry.retention_clock.begin(self.world.clock.now_ms())
        self.world.store.expiry.run_once()
        self.world.local.execute_delete_files_manually()
        self.world.local.cleaning.run_once()
        for topic in TOPICS:
            begin = self.world.local.get_min_offset_in_queue(topic, 0)
            live = self.live[topic]
            self.expired[topic] |= live
            self.live[topic] = {offset: live[offset] for offset in live if offset >= begin >= 0}
            self.uploaded[topic] = set()
            self.begin[topic] = self.floor[topic]
        self.copies.clear()

    def lose_disk(self) -> None:
        """Lose the disk, and restore the store from the tier. Messages that were not uploaded are
        lost, and new messages may get the offsets of the lost ones."""
        if not self.is_on:
            return
        self.upload()
        root = self.world.root
        self._stop_services()
        self._end_reader()
        shutil.copytree(root / "tier", root / "kept-tier")
        self.world.close()
        for name in ("tier", "store"):
            shutil.rmtree(root / name)
        shutil.move(root / "kept-tier", root / "tier")
        report = jobs.restore(f"file://{root / 'tier'}", root / "store")
        assert not report["problems"]
        self.copies.clear()
        for topic in TOPICS:
            live = self.live[topic]
            self.live[topic] = {offset: live[offset] for offset in self.uploaded[topic]}
        self._open()

    def _stop_services(self) -> None:
        store = self.world.store
        if self.is_on:
            for service in (store.dispatcher, store.expiry, store.backup):
                service.stop()
            store.index.stop(force=False)

    def _open(self) -> None:
        self.world.open(tieredStorageLevel="FORCE" if self.is_on else "DISABLE")

    def _reopen(self) -> None:
        self.world.close()
        self._open()

    # What holds after each step

    def check(self) -> None:
        for topic in TOPICS:
            found = dict(self.world.read(topic))
            if self.is_on:
                tier = found
                live = self.live[topic]
                # A restore may find expired messages that could not be deleted.
                seen = self._find_seen(topic)
                assert tier.items() <= seen.items(), f"{topic}: messages that are lost"
                assert set(tier) >= self.uploaded[topic] & live.keys(), f"{topic}: hidden"
            else:
                seen = self._find_seen(topic)
                assert found.items() <= seen.items(), topic
            for message in self.world.store.query_message(topic, topic, 999, 0, 2**62):
                seen = self._find_seen(topic)
                assert seen.get(message.queue_offset) == bytes(message.body), topic

    def _find_seen(self, topic: str) -> dict[int, bytes]:
        """Return all messages that a get may return. At the offset of a live message, only that
        message is possible."""
        return self.expired[topic] | self.live[topic]

    def follow(self) -> None:
        location = locate(
            f"file://{self.world.root / 'tier'}", cluster=None, broker=None, config=None
        )
        if self.reader is None:
            if not any(True for topic in ("K", *TOPICS) if self.world.tier_files(topic)):
                return  # it has expired altogether
            _prepare(self.root / "reader")
            try:
                self.follower = TierFollower.open(location, self.root / "reader")
            except Invalid:  # all that is there is of deleted topics
                assert not any(self.uploaded[topic] & self.live[topic].keys() for topic in TOPICS)
                shutil.rmtree(self.root / "reader")
                return
            loaded = _load(location, self.root / "reader", self.follower.broker)
            self.reader = registry.message_store(loaded, self.world.clock)
            self.reader.load()
            self.reader.start()
        self.follower.follow(self.reader)
        if not self.is_on:
            return  # the tier does not know of the deletion yet
        for topic in TOPICS:
            found = dict(self.world.read(topic, store=self.reader))
            seen = self._find_seen(topic)
            assert found.items() <= seen.items(), f"{topic}: the follower has others'"
            assert set(found) >= self.uploaded[topic] & self.live[topic].keys(), topic

    def _end_reader(self) -> None:
        """Stop the follower, because the files of the tier are replaced by copies."""
        if self.reader is not None:
            self.reader.shutdown()
            shutil.rmtree(self.root / "reader")
        self.reader = None

    def close(self) -> None:
        self._end_reader()
        self.world.close()

    def go(self, steps: int) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.put, 8),
            (self.upload, 6),
            (self.delete, 4),
            (self.refuse_deletions, 2),
            (self.sweep, 2),
            (self.switch, 1),
            (self.restart, 1),
            (self.crash, 1),
            (self.copy_metadata, 2),
            (self.put_back_metadata, 2),
            (self.clean_local, 1),
            (self.expire, 1),
            (self.lose_disk, 1),
            (self.follow, 2),
        ]
        choice = [action for action, weight in actions for _ in range(weight)]
        for _ in range(steps):
            action = self.random.choice(choice)
            self.steps.append(action.__name__)
            action()
            self.check()


def run(root: Path, seed: int, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    one = Run(root, seed, monkeypatch)
    try:
        one.go(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}: {' '.join(one.steps)}")
        raise
    finally:
        one.close()


@pytest.mark.parametrize("seed", range(6))
def test_t30_t31_t32_t33_generations_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run(tmp_path, seed, monkeypatch, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_150))
def test_t30_t31_t32_t33_generations_in_any_order_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run(tmp_path, seed, monkeypatch, 80)
