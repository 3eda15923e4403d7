"""A broker is restored from a tier that has no segments, because all topics have expired or are
deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tieredstore
from tests.kit.generations import (
    HOUR_MS,
    TOPICS,
    Refused,
    StillClock,
    expire_all,
    keep_topics,
    lose_disk,
    make_world,
    restore,
)
from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal
from tieredstore import jobs
from tieredstore.errors import Corrupt, Unnamed
from tieredstore.jobs.metadata.queues import FoundQueue, _Finder
from tieredstore.tier.reading import run

OLD = [b"old%d" % number for number in range(6)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    world = make_world(tmp_path)
    keep_topics(world)
    world.put("T", *OLD, key="old")
    world.put("U", *OLD[:2], key="old")
    world.upload()
    yield world
    world.close()


@pytest.mark.parametrize("how", ["expired", "deleted", "both", "undeleted"])
def test_t73_a_tier_without_segments_is_restored(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    world.store.backup.run_once(is_last=True)
    if how == "deleted":
        world.store.delete_topics({"T", "U"})
    elif how == "undeleted":
        with Refused(monkeypatch):
            world.store.delete_topics({"T", "U"})
            lose_disk(world)
    else:
        if how == "both":
            world.store.delete_topics({"T"})
        expire_all(world)
    if how != "undeleted":
        assert (world.tier_files("T"), world.tier_files("U")) == ([], [])
        lose_disk(world)
    ends = restore(world)
    assert ends == ({"T": 6, "U": 2} if how == "expired" else {"U": 2} if how == "both" else {})
    assert (world.root / "store" / "config" / "topics.json").read_text() == TOPICS
    world.open()
    assert (world.read("T"), world.read("U")) == ([], [])
    assert world.put("T", b"next", key="new") == [6]
    assert world.put("U", b"next", key="new") == [2]
    world.upload()
    world.store.expiry.run_once()
    world.reopen()
    assert (world.read("T"), world.read("U")) == ([(6, b"next")], [(2, b"next")])
    assert len(world.tier_files("T")) == len(world.tier_files("U")) == 2


def test_t73_two_brokers_without_segments_are_to_be_chosen_from(
    world: TieredLocal, tmp_path: Path
) -> None:
    world.store.backup.run_once(is_last=True)
    expire_all(world)
    lose_disk(world)
    other = TieredLocal(
        tmp_path / "other",
        StillClock(START_MS),
        **world.keys | {"brokerName": "b2", "tieredStoreFilePath": world.root / "tier"},
    )
    other.put("V", b"of another broker")
    other.upload()
    expire_all(other)
    other.close()
    with pytest.raises(Unnamed, match="b2, broker-a"):
        restore(world)
    tier = tieredstore.open(f"file://{world.root / 'tier'}", broker="broker-a")
    assert jobs.restore(tier, world.root / "store")["queue_ends"]
    world.open()


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize(
    "lost",
    ["last units", "zeroed units", "cut units", "last log", "cut log", "all units", "all"],
)
def test_t78_a_restore_goes_on_behind_messages_that_the_tier_has_lost(
    tmp_path: Path, lost: str, expired: bool
) -> None:
    world = make_world(
        tmp_path, tieredStoreConsumeQueueMaxSize=400, tieredStoreCommitLogMaxSize=1_500
    )
    keep_topics(world)
    messages = [b"%d" % number + b"x" * 100 for number in range(30)]
    world.put("T", *messages[:23])
    world.upload()
    if expired:
        world.clock.advance(1_000 * HOUR_MS)
    world.put("T", *messages[23:])
    world.upload()
    if expired:
        world.store.expiry.retention_clock.begin(world.clock.now_ms())
        world.store.expiry.run_once()
    world.store.backup.run_once(is_last=True)
    file = world.store.flat_files.get("T", 0)
    assert file is not None
    first = run(file.min_offset())
    assert (first > 20) is expired
    lose_disk(world)

    damage_queue(world, lost)
    report = jobs.restore(f"file://{world.root / 'tier'}", world.root / "store")
    assert "queue-short" in [row["kind"] for row in report["findings"]]
    assert report["damage"]
    world.open()
    left = world.read("T")
    assert left == list(enumerate(messages))[first : first + len(left)]
    assert ("all" not in lost) or not left
    [new] = world.put("T", b"new")
    assert new in {30, 31}
    for _ in range(2):
        world.upload()
        assert world.read("T") == [*left, (new, b"new")]
        world.reopen()
    world.close()


def damage_queue(world: TieredLocal, lost: str) -> None:
    """Damage the queue of topic T in the tier."""
    units, log = (
        sorted((path for path in world.tier_files("T") if kind in path.parts), key=read_base)
        for kind in ("CONSUME_QUEUE", "COMMIT_LOG")
    )
    if lost == "last units":
        units[-1].unlink()
    elif lost == "zeroed units":
        units[-1].write_bytes(bytes(units[-1].stat().st_size))
    elif lost == "cut units":
        units[-1].write_bytes(units[-1].read_bytes()[:-45])
    elif lost == "last log":
        log[-1].unlink()
    elif lost == "cut log":
        log[-1].write_bytes(log[-1].read_bytes()[:-250])
    else:
        for path in units if lost == "all units" else [*units, *log]:
            path.unlink()


def read_base(path: Path) -> int:
    """Return the base offset in the name of a segment."""
    return int(path.name[8:])


@pytest.fixture
def holed(tmp_path: Path) -> TieredLocal:
    """A tier of objects. Topic T has six messages in three objects. The disk is lost."""
    world = make_world(
        tmp_path,
        tieredBackendServiceProvider="fsspec",
        tieredStoreFsspecUrl=f"file://{tmp_path / 'tier'}",
        tieredStoreChunkFencing="none",
    )
    keep_topics(world)
    for _ in range(3):
        world.put("T", *OLD)
        world.upload()
    world.store.backup.run_once(is_last=True)
    lose_disk(world)
    return world


def restore_with_damage(world: TieredLocal, has_backup: bool) -> list[str]:
    """Restore and open the store. Return the kinds of the findings."""
    if not has_backup:
        for path in world.root.glob("tier/*/*/.backups/*.metadata"):
            path.unlink()
    url = f"fsspec+file://{world.root / 'tier'}?fencing=none"
    report = jobs.restore(url, world.root / "store", take_over=True)
    assert report["damage"]
    world.open()
    return [row["kind"] for row in report["findings"]]


def read_one(world: TieredLocal, offset: int) -> list[bytes]:
    return [bytes(m.body) for m in world.store.get_message("g", "T", 0, offset, 1).messages]


@pytest.mark.parametrize("has_backup", [True, False])
@pytest.mark.parametrize("lost", [0, 1])
def test_t78_a_queue_that_lacks_an_object_is_restored_again_and_again(
    holed: TieredLocal, has_backup: bool, lost: int
) -> None:
    objects = sorted(path for path in holed.tier_files("T") if path.name.startswith("u."))
    assert len(objects) == 3
    objects[lost].unlink()
    for number in range(3):
        assert "queue-damaged" in restore_with_damage(holed, has_backup)
        assert [read_one(holed, offset) for offset in range(12, 18)] == [[body] for body in OLD]
        assert [read_one(holed, 18 + before) for before in range(number)] == [[b"new"]] * number
        assert holed.put("T", b"new") == [18 + number]
        holed.upload()
        holed.store.backup.run_once(is_last=True)
        lose_disk(holed)


@pytest.mark.parametrize("has_backup", [True, False])
def test_t78_messages_continue_behind_a_queue_that_cannot_be_read(
    holed: TieredLocal, has_backup: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_finder: object, **_options: object) -> FoundQueue:
        raise Corrupt("injected: no unit can be read")

    monkeypatch.setattr(_Finder, "run", fail)
    assert "queue-unreadable" in restore_with_damage(holed, has_backup)
    monkeypatch.undo()
    [new] = holed.put("T", b"new")
    assert new >= 18
    for _ in range(2):
        holed.upload()
        assert read_one(holed, new) == [b"new"]
        holed.reopen()
    holed.close()
