"""Tests of the commands `tieredstore tier …`: output, effects, and what a later broker finds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import files_of, one_line, tieredstore
from tests.kit.generations import Refused
from tests.kit.jobs.operating import (
    K,
    T,
    break_queue,
    done,
    leave_stray,
    make_world,
    operate,
    place,
    tier_bytes,
    verified,
)
from tests.kit.store_type import STORE_TYPE
from tests.kit.tiered_local import TieredLocal
from tieredstore.disk.locks import lock_file, unlock_file
from tieredstore.errors import Unavailable
from tieredstore.local.recovery.store_lock import StoreLock
from tieredstore.metadata.snapshot_files import SnapshotFiles
from tieredstore.tier.flat.queue_view import QueueView
from tieredstore.tier.index.watermarks import load_watermarks
from tieredstore.tier.state_files import LOCK_FILE

FOREVER = (0, 2**63 - 1)
VERBS: tuple[tuple[object, ...], ...] = (
    ("delete", "T"),
    ("expire", "T", "--before", "now"),
    ("skip", "T", "--queue", 0, "--to", 20),
    ("reset", "T"),
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    world = make_world(tmp_path)
    yield world
    world.close()


def test_what_would_go_is_said_and_nothing_is_changed(world: TieredLocal) -> None:
    lose_topic(world)
    before = files_of(world.root)
    ran = operate(world, "delete", "T")
    assert (ran.code, ran.record["done"]) == (0, False)
    assert ran.err == "tieredstore: nothing was changed, pass --yes to do it\n"
    assert [(row["queue_id"], row["messages"]) for row in ran.record["queues"]] == [(0, 9), (1, 4)]
    assert ran.record["messages"] == 13
    assert ran.record["objects"] == len(world.tier_files("T"))
    # A scan may begin an empty one for data that another scan has uploaded in the meantime.
    assert ran.record["segments"] - ran.record["objects"] in (0, 1)
    assert ran.record["bytes"] == tier_bytes(world, "T")
    assert ran.record["storage_saved_usd_month"] == pytest.approx(
        ran.record["bytes"] * 0.023 / 2**30
    )
    assert operate(world, "expire", "--all-topics", "--before", "now").record["messages"] == 17
    assert files_of(world.root) == before


def test_a_topic_leaves_the_tier(world: TieredLocal) -> None:
    lose_topic(world)
    said = done(world, "delete", "T")
    report = done(world, "delete", "T", "--yes")
    assert report["done"]
    assert {name: report[name] for name in ("segments", "objects", "bytes", "messages")} == {
        name: said[name] for name in ("segments", "objects", "bytes", "messages")
    }
    assert report["undeleted"] == 0
    assert world.tier_files("T") == []
    assert verified(world)["messages"] == 4
    again = operate(world, "delete", "T", "--yes")
    assert (again.code, "no topic 'T' in the tier" in one_line(again)) == (2, True)
    world.open()
    assert world.read("K", store=world.store.fetcher) == list(enumerate(K))
    assert world.store.fetcher.query_message("T", "old", 99, *FOREVER) == []


def lose_topic(world: TieredLocal) -> None:
    """Remove the topic from the local store, or all queues if they are in a database."""
    queues = world.root / "store" / "consumequeue"
    shutil.rmtree(queues / "T" if STORE_TYPE == "default" else queues)


def test_a_topic_that_would_come_again_is_not_deleted(world: TieredLocal) -> None:
    before = files_of(world.root / "tier")
    for more in (), ("--yes",):
        ran = operate(world, "delete", "T", *more)
        assert (ran.code, "would upload it again" in one_line(ran)) == (2, True)
    assert files_of(world.root / "tier").keys() == before.keys()


@pytest.mark.parametrize("spoil", [break_queue, leave_stray])
def test_a_topic_with_a_bad_queue_is_deleted_whole(
    world: TieredLocal, spoil: Callable[[TieredLocal], None]
) -> None:
    lose_topic(world)
    spoil(world)
    assert done(world, "delete", "T", "--yes")["messages"] == 13
    assert world.tier_files("T") == []
    assert verified(world)["messages"] == 4


def test_what_is_older_than_a_time_goes(world: TieredLocal) -> None:
    times = [m.store_timestamp_ms for m in stored(world, "T")]
    said = done(world, "expire", "T", "--queue", 0, "--before", times[6])
    assert 0 < said["messages"] <= 6
    report = done(world, "expire", "T", "--queue", 0, "--before", times[6], "--yes")
    assert (report["messages"], report["segments"]) == (said["messages"], said["segments"])
    assert [row["queue_id"] for row in report["queues"]] == [0]
    world.open()
    tier_min = world.store.flat_files.get("T", 0)
    assert tier_min is not None
    assert report["messages"] <= tier_min.consume_queue_min_offset <= 6
    assert tier_min.consume_queue_max_offset == 9
    world.close()
    assert verified(world)["damage"] == 0
    done(world, "expire", "--all-topics", "--before", "2100-01-01", "--yes")
    assert tier_bytes(world, "T") == tier_bytes(world, "K") == 0
    world.open()
    file = world.store.flat_files.get("T", 0)
    assert file is not None
    assert file.consume_queue_max_offset == 9
    assert world.put("T", b"new") == [9]
    world.upload()


def test_messages_that_can_be_read_no_more_are_counted_once(world: TieredLocal) -> None:
    """A message that can no longer be read is counted once, whether its unit or its record was
    deleted first."""
    times = [m.store_timestamp_ms for m in stored(world, "T")]
    gone = 0
    for time in [*times, times[-1] + 1]:
        arguments = "expire", "T", "--queue", 0, "--before", time
        said = done(world, *arguments)["messages"]
        assert done(world, *arguments, "--yes")["messages"] == said
        gone += said
        world.open()
        file = world.store.flat_files.get("T", 0)
        assert file is not None
        assert gone == file.consume_queue_min_offset
        world.close()
    assert gone == 9
    assert done(world, "reset", "T", "--queue", 0)["messages"] == 0


def test_what_cannot_be_read_goes_all_the_same(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise Unavailable("input/output error")

    monkeypatch.setattr(QueueView, "offset_of_position", refuse)
    report = done(world, "expire", "T", "--queue", 0, "--before", "2100-01-01", "--yes")
    assert (report["messages"], report["problems"]) == (9, [])
    assert tier_bytes(world, "T") < report["bytes"]


def stored(world: TieredLocal, topic: str) -> list[Any]:
    world.open()
    found = world.store.get_message("g", topic, 0, 0, 32).messages
    world.close()
    return list(found)


def test_a_queue_that_cannot_be_opened_stops_no_other(world: TieredLocal) -> None:
    break_queue(world)
    ran = operate(world, "expire", "--all-topics", "--before", "2100-01-01", "--yes")
    assert ran.code == 1
    [problem] = ran.record["problems"]
    assert "not a multiple of 20" in problem["problem"]
    assert sum(bool(row["segments"]) for row in ran.record["queues"]) == 2


@pytest.mark.parametrize("holder", ["broker", "offload"])
def test_a_tier_that_somebody_writes_is_left_alone(world: TieredLocal, holder: str) -> None:
    lose_topic(world)
    before = files_of(world.root / "tier")
    state = world.root / "store"
    if holder == "broker":
        lock = StoreLock(state)
        lock.acquire()
        release = lock.release
    else:
        fd = lock_file(state / LOCK_FILE)

        def release() -> None:
            unlock_file(fd)

    try:
        for verb in VERBS:
            assert operate(world, *verb).code == 0
            refused = operate(world, *verb, "--yes")
            assert refused.code == 5
            assert "store" in one_line(refused)
    finally:
        release()
    assert files_of(world.root / "tier") == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("delete", "TT"), "Did you mean T?"),
        (("reset", "T", "--queue", 7), "It has 0, 1"),
        (("reset", "T", "--to", 7), "--to is the offset of one queue"),
        (("skip", "T", "--queue", 0, "--to", 9), "is not after the queue's end, 9"),
        (("skip", "T", "--queue", 3, "--to", 9), "It has 0, 1"),
        (("expire", "--before", "now"), "name the topics, or give --all-topics"),
        (("expire", "T", "--all-topics", "--before", "now"), "name the topics"),
        (("expire", "T", "K", "--queue", 0, "--before", "now"), "--queue needs one TOPIC"),
        (("expire", "T", "--before", "soon"), "expected epoch milliseconds"),
    ],
)
def test_a_target_that_is_not_there_is_refused(
    world: TieredLocal, arguments: tuple[object, ...], text: str
) -> None:
    for more in (), ("--yes",):
        ran = operate(world, *arguments, *more)
        assert ran.code == 2
        assert text in ran.err


def test_the_state_of_another_tier_is_refused(world: TieredLocal, tmp_path: Path) -> None:
    other = TieredLocal(tmp_path / "other")
    other.put("T", *T)
    other.upload()
    other.close()
    before = segments_of(world)
    ran = tieredstore(
        "tier", "delete", "T", "--yes", "--tier", f"file://{world.root / 'tier'}",
        "--state", tmp_path / "other" / "store",
    )  # fmt: skip
    assert ran.code == 2
    assert "s it that of another tier" in one_line(ran)
    assert segments_of(world) == before


def segments_of(world: TieredLocal) -> dict[str, tuple[int, int, bytes]]:
    """Return all files of the tier except writer epochs."""
    found = files_of(world.root / "tier")
    return {name: file for name, file in found.items() if not name.endswith((".writer", ".tier"))}


def test_a_topic_that_is_gone_has_no_marks_in_the_index(world: TieredLocal) -> None:
    index = world.root / "store" / "tiered_index_file"
    lose_topic(world)
    before = load_watermarks(index).indexed_until
    done(world, "delete", "T", "--yes")
    left = load_watermarks(index).indexed_until
    assert len(before.keys() - left.keys()) == 2
    assert left


@pytest.mark.parametrize("spoil", [break_queue, leave_stray, lambda world: None])
@pytest.mark.parametrize("to", [0, 4])
def test_a_queue_is_emptied_and_uploaded_again(
    world: TieredLocal, spoil: Callable[[TieredLocal], None], to: int
) -> None:
    spoil(world)
    arguments = ("reset", "T", "--queue", 0, "--to", to)
    said = done(world, *arguments)
    assert said["messages"] == 9
    report = done(world, *arguments, "--yes")
    assert (report["segments"], report["bytes"]) == (said["segments"], said["bytes"])
    assert sum(path.stat().st_size for path in world.tier_files("T/0")) == 0
    assert verified(world)["messages"] == 8
    world.open()
    world.upload()
    assert world.read("T", store=world.store.fetcher) == list(enumerate(T))[to:]
    found = world.store.fetcher.query_message("T", "old", 99, *FOREVER)
    assert sorted(m.queue_offset for m in found) == list(range(to, 9))
    world.close()
    assert verified(world)["messages"] == 17 - to


@pytest.mark.parametrize("verb", [("reset", "S"), ("expire", "S", "--before", "now")])
def test_keys_of_a_queue_that_was_emptied_are_no_damage_beside_one_that_has_the_same_messages(
    world: TieredLocal, verb: tuple[object, ...]
) -> None:
    world.open()
    for queue_id in (0, 1):
        world.put("S", b"one", b"two", queue_id=queue_id)
    world.upload()
    world.close()
    before = verified(world)
    assert done(world, *verb, "--queue", 0, "--yes")["messages"] == 2
    after = verified(world)
    assert after["messages"] == before["messages"] - 2


def test_a_topic_is_emptied_and_its_offsets_go_on(world: TieredLocal) -> None:
    report = done(world, "reset", "T", "--yes")
    assert [(row["queue_id"], row["messages"]) for row in report["queues"]] == [(0, 9), (1, 4)]
    assert tier_bytes(world, "T") == 0
    assert done(world, "reset", "T", "--yes")["segments"] == 0
    world.open()
    assert world.put("T", b"new") == [9]
    world.upload()
    assert world.read("T", store=world.store.fetcher) == [(9, b"new")]
    assert world.read("K", store=world.store.fetcher) == list(enumerate(K))


def test_messages_are_skipped(world: TieredLocal) -> None:
    said = done(world, "skip", "T", "--queue", 0, "--to", 11)
    assert (said["end_offset"], said["left_out_messages"]) == (9, 2)
    assert (said["segments"], said["objects"], said["bytes"]) == (0, 0, 0)
    done(world, "skip", "T", "--queue", 0, "--to", 11, "--yes")
    world.open()
    assert world.put("T", b"bad", b"worse", b"good", b"better") == [9, 10, 11, 12]
    world.upload()
    assert world.read("T", store=world.store.fetcher) == [
        *enumerate(T),
        (11, b"good"),
        (12, b"better"),
    ]
    world.close()
    report = verified(world)
    assert (report["messages"], report["kinds"]["queue-hole"]) == (17 + 2, 1)


@pytest.mark.parametrize("to", [None, 2])
def test_a_topic_whose_segments_are_lost_is_reset(world: TieredLocal, to: int | None) -> None:
    """A topic can be reset even if all of its segments are lost."""
    shutil.rmtree(next((world.root / "tier").rglob("K")))
    ran = operate(world, "skip", "K", "--queue", 0, "--to", 20, "--yes")
    assert (ran.code, "`tieredstore tier reset` empties the queue" in ran.err) == (1, True)
    assert tieredstore("verify", *place(world), "--quiet", "--workers", 1).code == 1
    done(world, "reset", "K", "--queue", 0, *(() if to is None else ("--to", to)), "--yes")
    verified(world)
    world.open()
    world.put("K", b"new")
    world.upload()
    whole = [*enumerate(K), (4, b"new")]
    assert world.read("K", store=world.store.fetcher) == whole[4 if to is None else to :]
    world.close()
    verified(world)


@pytest.mark.parametrize("verb", [("expire", "K", "--before", "2100-01-01"), ("reset", "K")])
def test_a_queue_that_was_emptied_goes_on_at_its_end_after_a_restore(
    world: TieredLocal, verb: tuple[object, ...]
) -> None:
    """A queue that was emptied continues at its end offset after a restore, because the command
    makes a backup."""
    (world.root / "store" / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    world.open()
    world.close()
    world.open(tieredStoreBackupInterval=0)  # as if it was killed before the next backup
    world.put("K", b"since")
    world.upload()
    world.close()
    done(world, *verb, "--yes")
    shutil.move(world.root / "store", world.root / "lost")
    tier = f"file://{world.root / 'tier'}"
    ran = tieredstore("restore", "--tier", tier, "--store", world.root / "store")
    assert ran.code == 0, ran.err
    world.open()
    assert world.put("K", b"new") == [5]
    world.upload()
    world.close()
    verified(world)


def test_segments_that_are_lost_are_told_of_at_the_start(
    world: TieredLocal, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(next((world.root / "tier").rglob("K")))
    world.open()
    assert re.search(r"broker-a/K/0/COMMIT_LOG@0: (\d+) of \1 bytes are gone", caplog.text)


@pytest.mark.parametrize("kind", ["COMMIT_LOG", "CONSUME_QUEUE"])
def test_a_queue_with_a_lost_segment_in_its_middle_is_reset(world: TieredLocal, kind: str) -> None:
    paths = [path for path in world.tier_files("T") if f"/T/0/{kind}/" in str(path)]
    sorted(paths, key=lambda path: path.name[8:])[1].unlink()
    assert tieredstore("verify", *place(world), "--quiet", "--workers", 1).code == 1
    done(world, "reset", "T", "--queue", 0, "--to", 0, "--yes")
    verified(world)
    world.open()
    world.upload()
    assert world.read("T", store=world.store.fetcher) == list(enumerate(T))
    world.close()
    verified(world)


def test_a_queue_that_cannot_be_opened_is_not_skipped_in(world: TieredLocal) -> None:
    leave_stray(world)
    ran = operate(world, "skip", "T", "--queue", 0, "--to", 20, "--yes")
    assert ran.code == 1
    assert "`tieredstore tier reset` empties it" in ran.err


def test_a_tier_that_holds_nothing_any_more_is_still_its_brokers(world: TieredLocal) -> None:
    for index in (world.root / "tier").rglob("rmq_sys_INDEX"):
        shutil.rmtree(index)
    done(world, "expire", "--all-topics", "--before", "2100-01-01", "--yes")
    assert done(world, "reset", "T", "--queue", 0, "--to", 3, "--yes")["messages"] == 0
    world.open()
    world.upload()
    assert world.read("T", store=world.store.fetcher) == list(enumerate(T))[3:]


def test_many_queues_are_announced_with_few_writes(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()
    for queue_id in range(30):
        world.put("M", b"m", queue_id=queue_id)
    world.upload()
    world.close()
    sizes: list[int] = []
    real = SnapshotFiles.replace

    def count(self: SnapshotFiles, data: bytes, **how: Any) -> str:
        sizes.append(len(data))
        return real(self, data, **how)

    monkeypatch.setattr(SnapshotFiles, "replace", count)
    assert done(world, "expire", "M", "--before", "2100-01-01", "--yes")["segments"] == 60
    assert 0 < len(sizes) < 10


@pytest.mark.parametrize("verb", ["reset", "expire"])
def test_w96_a_job_whose_deletions_failed_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    world = make_world(tmp_path)
    arguments = (verb, "T", *(("--before", "2100-01-01") if verb == "expire" else ()), "--yes")
    with Refused(monkeypatch):
        done(world, *arguments)
    assert tier_bytes(world, "T") > 0
    done(world, *arguments)
    assert tier_bytes(world, "T") == 0
    verified(world)
