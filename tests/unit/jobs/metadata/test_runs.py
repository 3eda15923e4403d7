"""Tests of complete runs of `rebuild metadata`: conditions, kept files, kills, topic ids, and the
command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.index_chains import put_item
from tests.kit.jobs.rebuild_metadata import (
    BROKER,
    NOW_MS,
    Killed,
    World,
    facts_of,
    killed_at,
    kinds,
    rebuilt,
)
from tests.kit.tier.flat import fill
from tests.kit.tier_builder import (
    MAX_ITEMS,
    SLOTS,
    START_MS,
    TierBuilder,
    flip,
    message,
    small_tier,
)
from tieredstore.cli.main import run as command
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Fenced, Invalid
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.metadata import job
from tieredstore.local.recovery.store_lock import StoreLock
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.message.index.tiered import IndexHeader, pack_header, unsealed_size
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.scan.location import METADATA_FILE, TierLocation
from tieredstore.tier.state_files import LOCK_FILE as STATE_LOCK

LATER_MS = NOW_MS + 60_000
STATE_MEMORY_NAME = "tieredstoreTier.json"
"""Name of the file that identifies the state directory's tier."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A tier with two queues of 20 messages each."""
    made = World(tmp_path, monkeypatch)
    with made.opened(made.lost, writing=True) as store:
        for queue_id in (0, 1):
            file = store.get_or_create("TopicA", queue_id)
            file.init_offset(0)
            fill(file, 0, 20, queue_id=queue_id)
    return made


def files_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in {".writer", STATE_LOCK, STATE_MEMORY_NAME}
    }


# Who may


def test_a_writer_of_the_tier_keeps_the_job_out_and_nothing_is_written(world: World) -> None:
    epoch = world.provider.acquire_writer(BROKER)
    try:
        with pytest.raises(Fenced):
            world.rebuild()
        assert files_of(world.made) == {}
        assert world.rebuild(dry_run=True)["messages"] == 40
    finally:
        epoch.release()
    assert files_of(world.made) == {}
    world.rebuild()
    world.provider.acquire_writer(BROKER).release()


def test_a_broker_on_the_state_directory_keeps_the_job_out(world: World) -> None:
    world.made.mkdir()
    lock = StoreLock(world.made)
    lock.acquire()
    try:
        with pytest.raises(Fenced, match="a broker runs on it"):
            world.rebuild()
    finally:
        lock.release()
    assert list(files_of(world.made)) == ["lock"]


def test_each_broker_has_a_state_of_its_own(world: World) -> None:
    other = world.root / "tier"
    [cluster] = other.iterdir()
    shutil.copytree(cluster / BROKER, cluster / "broker-b")
    source, world.source = world.source, TierLocation(world.source.url, world.config)
    with pytest.raises(Invalid, match=r"broker-a, broker-b\. Choose one with --broker"):
        world.rebuild()
    world.source = source
    assert world.rebuild()["queues"] == 2
    paths = {name.split("/", 1)[0] for name in facts_of(world.made)["segments"]}
    assert paths == {BROKER}


def test_a_broker_that_is_not_there_is_an_error(world: World) -> None:
    world.source = TierLocation(world.source.url, world.config, "broker-z")
    with pytest.raises(Invalid, match="no broker 'broker-z'"):
        world.rebuild()


# The existing state


def test_metadata_that_is_there_is_replaced_with_force_only_and_kept(world: World) -> None:
    before = files_of(world.lost)
    with pytest.raises(Invalid, match="--force"):
        world.rebuild(world.lost)
    assert files_of(world.lost) == before

    world.clock.set(LATER_MS)
    report = world.rebuild(world.lost, force=True)

    after = files_of(world.lost)
    main = after.pop(METADATA_FILE)
    assert after.pop(f"{METADATA_FILE}.bak") == main
    assert after == {f"{name}.replaced-{LATER_MS}": data for name, data in before.items()}
    assert sorted(report["kept"]) == [str(world.lost / name) for name in sorted(after)]


@pytest.mark.parametrize("broken", ["{", "", "[]"])
def test_metadata_that_nobody_can_read_is_replaced_with_force(world: World, broken: str) -> None:
    for name in ("", ".bak"):
        (world.lost / f"{METADATA_FILE}{name}").write_text(broken)
    world.rebuild(world.lost, force=True)
    world.rebuild()
    assert facts_of(world.lost) == facts_of(world.made)


# Kills


@pytest.mark.parametrize("call", range(3))
@pytest.mark.parametrize("after", [False, True])
def test_a_run_after_a_kill_between_steps_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, call: int, after: bool
) -> None:
    monkeypatch.setattr(job, "_TASK_QUEUES", 1)  # a task for each queue
    journal = world.root / "job.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record", killed_at(call, Journal.record, after=after))
        with pytest.raises(Killed):
            world.rebuild(journal=journal)
    assert not (world.made / METADATA_FILE).exists()
    world.clock.advance(1000)
    report = world.rebuild(journal=journal)
    assert not journal.exists()
    done = call + after - 1  # the first step is the moment
    assert sum(stage["resumed"] for stage in report["stages"]) == max(done, 0)
    world.rebuild(world.root / "whole")
    assert facts_of(world.made) == facts_of(world.root / "whole")


COMMIT_CALLS: tuple[tuple[Any, str], ...] = (
    (Path, "hardlink_to"),
    (Path, "replace"),
    (Path, "unlink"),
    (shutil, "rmtree"),
)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name"), COMMIT_CALLS)
@pytest.mark.parametrize("force", [False, True])
def test_a_run_after_a_kill_in_the_commit_ends_like_one_run(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    after: bool,
    force: bool,
) -> None:
    journal, target = world.root / "job.jsonl", world.lost if force else world.made
    before = files_of(target) if force else {}
    world.clock.set(LATER_MS)
    kills = 0
    for call in range(10):
        wrapped = killed_at(call, getattr(owner, name), after=after)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, wrapped)
                world.rebuild(target, journal=journal, force=force)
            break
        except Killed:
            kills += 1
            # At every moment there is whole metadata, old or new, if there was any.
            assert not force or facts_of(target)["segments"]
            if not journal.exists():
                break
    assert kills or (name == "hardlink_to" and not force)
    after_all = files_of(target)
    assert after_all.pop(METADATA_FILE) == after_all.pop(f"{METADATA_FILE}.bak")
    assert after_all == {f"{file}.replaced-{LATER_MS}": data for file, data in before.items()}
    world.rebuild(world.root / "whole")
    assert facts_of(target) == facts_of(world.root / "whole")


def test_what_changed_after_a_kill_is_looked_at_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_TASK_QUEUES", 1)
    journal = world.root / "job.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record", killed_at(2, Journal.record, after=True))
        with pytest.raises(Killed):
            world.rebuild(journal=journal)
    with world.opened(world.lost, writing=True) as store:
        fill(store.get_or_create("TopicA", 1), 20, 5, queue_id=1)
    report = world.rebuild(journal=journal)
    assert report["messages"] == 45
    assert report["stages"][0]["resumed"] == 1
    assert facts_of(world.made)["segments"] == facts_of(world.lost)["segments"]


# Topic ids


def test_ids_are_those_of_the_index_and_new_ones_are_new(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    gone = [f"gone-{n}" for n in range(3)]
    for topic in (*gone, "orders", "refunds"):
        builder.queue(topic, 0, [message(topic, 0, n) for n in range(6)])
    builder.index()
    builder.queue("quiet", 4, [message("quiet", 4, n) for n in range(3)])  # not in the index
    built = builder.built
    for topic in gone[:2]:
        shutil.rmtree(next((tmp_path / "tier").rglob(topic)))

    report = rebuilt(built, tmp_path / "made")

    topics = facts_of(tmp_path / "made")["topics"]
    assert {name: value[0] for name, value in topics.items()} == {
        "gone-2": 2,
        "orders": 3,
        "refunds": 4,
        "quiet": 5,
    }
    assert kinds(report) == [("note", "topic-id-assigned")]
    assert [topic["id_from"] for topic in report["found_topics"]].count("index") == 3


def test_an_id_that_only_the_index_has_is_not_given_again(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    for topic in ("orders", "gone"):
        builder.queue(topic, 0, [message(topic, 0, n) for n in range(6)])
    builder.index()
    shutil.rmtree(next((tmp_path / "tier").rglob("gone")))
    rebuilt(builder.built, tmp_path / "made")
    metadata = DefaultMetadataStore(tmp_path / "made" / METADATA_FILE, "broker-a")
    metadata.load()
    assert [topic.topic for topic in metadata.topics()] == ["orders"]
    assert metadata.add_topic("new").topic_id == 2


def test_messages_in_the_middle_are_asked_where_the_ends_are_not_in_the_index(
    tmp_path: Path,
) -> None:
    builder = TierBuilder(tmp_path, messages_per_segment=50)
    builder.queue("other", 0, [message("other", 0, n) for n in range(3)])
    silent: dict[str, Any] = {"keys": [], "uniq_key": None}
    mixed = [message("orders", 1, n, **({} if 10 < n < 20 else silent)) for n in range(30)]
    builder.queue("orders", 1, mixed)
    builder.index()
    report = rebuilt(builder.built, tmp_path / "made")
    assert [stage["stage"] for stage in report["stages"]] == [
        "queues",
        "index",
        "queues again",
        "index again",
    ]
    assert kinds(report) == []
    assert facts_of(tmp_path / "made") == facts_of(builder.built.state)


@pytest.mark.parametrize("item_bytes", [0, 1])
def test_index_files_that_the_state_has_kept_are_asked_too(tmp_path: Path, item_bytes: int) -> None:
    """A rebuild also looks up keys in the index files of the state directory. `item_bytes` is how
    much larger these files are than the configured size."""
    builder = TierBuilder(tmp_path)
    for topic in ("b", "a"):
        builder.queue(topic, 0, [message(topic, 0, n) for n in range(6)])
    made = tmp_path / "made"
    unsealed = bytearray(unsealed_size(SLOTS, MAX_ITEMS))
    unsealed[:28] = pack_header(IndexHeader(START_MS))
    for (topic, queue_id), stored in builder.built.stored.items():
        entry = builder.built.metadata.topic(topic)
        assert entry is not None
        key_hash = tiered_key_hash(topic, stored[0].message.uniq_key or "")
        at, size = stored[0].offset, len(stored[0].record)
        put_item(unsealed, SLOTS, key_hash, entry.topic_id, queue_id, at, size, START_MS)
    (made / "tiered_index_file").mkdir(parents=True)
    (made / "tiered_index_file" / str(START_MS)).write_bytes(unsealed + b"0" * item_bytes)
    report = rebuilt(
        builder.built,
        made,
        tieredStoreIndexFileMaxHashSlotNum=SLOTS,
        tieredStoreIndexFileMaxIndexNum=MAX_ITEMS,
    )
    ids = {name: value[0] for name, value in facts_of(made)["topics"].items()}
    assert ids == ({"a": 0, "b": 1} if item_bytes else {"b": 0, "a": 1})
    assert report["topic_ids_assigned"] == (2 if item_bytes else 0)


# The index


def index_tier(root: Path) -> tuple[Any, SegmentId]:
    built = small_tier(root)
    return built, SegmentId("broker-a/rmq_sys_INDEX/0", FileSegmentType.INDEX, 0)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    "change", [cut, lambda path: path.write_bytes(b""), lambda path: flip(path, 26)]
)
def test_an_upload_of_the_index_that_did_not_end_is_written_anew(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    built, name = index_tier(tmp_path)
    change(built.path(name))
    report = rebuilt(built, tmp_path / "made")
    assert kinds(report)[0] == ("note", "index-torn")
    metadata = DefaultMetadataStore(tmp_path / "made" / METADATA_FILE, "broker-a")
    metadata.load()
    entry = metadata.segment(name)
    assert entry is not None
    assert entry.size == 0


def test_a_damaged_index_segment_that_is_not_the_last_is_left_out(tmp_path: Path) -> None:
    built, name = index_tier(tmp_path)
    first = built.path(name)
    data = first.read_bytes()
    later = SegmentId(name.path, name.type, len(data))
    segment = built.provider.open(later)
    segment.write(0, [data])
    segment.close()
    cut(first)
    report = rebuilt(built, tmp_path / "made")
    assert report["damage"] == 1
    assert kinds(report) == [("damage", "index-damaged")]
    entries = facts_of(tmp_path / "made")["segments"]
    assert str(later) in entries
    assert str(name) not in entries


# The command


def test_the_command_writes_a_state_that_verify_accepts(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    built = small_tier(tmp_path)
    made, report = tmp_path / "made", tmp_path / "report.json"
    arguments = [
        "rebuild", "metadata", "--tier", built.url, "--state", str(made), "--work",
        str(tmp_path / "work"), "--workers", "1", "--report", str(report), "--output", "json",
    ]  # fmt: skip
    assert command([*arguments, "--dry-run"]) == 0
    assert not made.exists()
    capfdbinary.readouterr()
    assert command(arguments) == 0
    printed = json.loads(capfdbinary.readouterr().out)
    assert printed == json.loads(report.read_bytes())
    assert printed["metadata"] == str(made / METADATA_FILE)
    assert command(arguments) == 2
    assert command(["verify", "--tier", built.url, "--state", str(made)]) == 0


def test_damage_is_the_exit_code(tmp_path: Path) -> None:
    built = small_tier(tmp_path)
    folder = next((tmp_path / "tier").rglob("orders/0/COMMIT_LOG"))
    for path in sorted(folder.iterdir(), key=lambda path: path.name[-20:])[-2:]:
        path.unlink()
    arguments = ["rebuild", "metadata", "--tier", built.url, "--state", str(tmp_path / "made")]
    work = ["--work", str(tmp_path / "work"), "--workers", "1", "--quiet"]
    assert command([*arguments, *work]) == 1
    assert (tmp_path / "made" / METADATA_FILE).exists()
