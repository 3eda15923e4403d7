"""`tieredstore restore` recreates a broker's store from its tier."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import Ran, files_of, one_line, tieredstore
from tests.kit.jobs.operating import K, T, make_world
from tests.kit.tiered_local import TieredLocal
from tieredstore.disk.locks import lock_file, unlock_file
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.operating import adopt as adopting
from tieredstore.jobs.restoring.target import RESTORING_FILE

ENDS = {("K", 0): 4, ("T", 0): 9, ("T", 1): 4}
ADOPT = adopting._adopt
TOPICS = '{"topicConfigTable":{}}'


def write_config(world: TieredLocal, **offsets: dict[str, int]) -> None:
    """Write the topic table and the offsets of group g. Each file is replaced atomically."""
    config = world.root / "store" / "config"
    table = {f"{topic}@g": queues for topic, queues in offsets.items()}
    texts = {"topics.json": TOPICS, "consumerOffset.json": json.dumps({"offsetTable": table})}
    for name, text in texts.items():
        (config / f"{name}.tmp").write_text(text)
        (config / f"{name}.tmp").replace(config / name)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    """A tier with three queues, some of whose messages were consumed. The store's directory is
    deleted by the tests."""
    world = make_world(tmp_path)
    world.open()
    write_config(world, T={"0": 5, "1": 4}, K={"0": 2})
    yield world
    world.close()


def lose_all(world: TieredLocal) -> None:
    world.close()
    shutil.rmtree(world.root / "store")


def restore(world: TieredLocal, *more: object) -> Ran:
    return tieredstore(
        "restore", "--tier", f"file://{world.root / 'tier'}", "--store", world.root / "store",
        "--output", "json", *more,
    )  # fmt: skip


def offsets_of(world: TieredLocal) -> dict[str, dict[str, int]]:
    path = world.root / "store" / "config" / "consumerOffset.json"
    table: dict[str, dict[str, int]] = json.loads(path.read_text())["offsetTable"]
    return table


def backups_of(world: TieredLocal, kind: str) -> list[Path]:
    return sorted((world.root / "tier").rglob(f".backups/*.{kind}"))


def test_h02_l16_all_that_was_uploaded_is_there_and_offsets_go_on(world: TieredLocal) -> None:
    lose_all(world)
    ran = restore(world)
    assert ran.code == 0, ran.err
    report = ran.record
    ends = {(row["topic"], row["queue_id"]): row["end_offset"] for row in report["queue_ends"]}
    assert ends == ENDS
    assert report["files"] == ["consumerOffset.json", "topics.json"]
    assert (report["offsets_kept"], report["offsets_lowered"], report["findings"]) == (3, [], [])
    assert report["metadata_backup"].endswith(".metadata")
    world.open()
    assert world.local.commit_log.min_offset == report["log_begin"]
    assert world.read("T") == list(enumerate(T))
    assert world.put("T", b"new") == [9]
    world.upload()
    assert world.read("T") == [*enumerate(T), (9, b"new")]
    assert world.read("K") == list(enumerate(K))
    assert offsets_of(world) == {"T@g": {"0": 5, "1": 4}, "K@g": {"0": 2}}
    assert (world.root / "store" / "config" / "topics.json").read_text() == TOPICS


def test_the_store_has_the_shape_that_it_had(world: TieredLocal) -> None:
    lose_all(world)
    assert restore(world).code == 0
    [log] = (world.root / "store" / "commitlog").iterdir()
    assert log.stat().st_size == world.keys["mappedFileSizeCommitLog"]


def test_no_consumer_is_behind_the_end_of_its_queue(world: TieredLocal) -> None:
    """After a restore, no consumer offset is above the end of its queue. Otherwise the consumer
    would miss new messages with the offsets of lost ones."""
    write_config(
        world,
        T={"0": 12, "1": 3},
        local_only={"0": 7},
        RMQ_SYS_TRANS_OP_HALF_TOPIC={"0": 3},
    )
    lose_all(world)
    ran = restore(world)
    assert ran.code == 0, ran.err
    assert offsets_of(world) == {"T@g": {"0": 9, "1": 3}, "local_only@g": {"0": 0}}
    assert (ran.record["offsets_kept"], ran.record["offsets_dropped"]) == (1, 1)
    assert [(row["offset"], row["to_offset"]) for row in ran.record["offsets_lowered"]] == [
        (12, 9),
        (7, 0),
    ]


@pytest.mark.parametrize("name", ["commitlog/x", "config/topics.json", "somebody's notes"])
def test_h02_a_directory_with_something_in_it_is_refused(world: TieredLocal, name: str) -> None:
    lose_all(world)
    path = world.root / "store" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("there")
    before = files_of(world.root)
    ran = restore(world)
    assert (ran.code, "expected an empty directory" in one_line(ran)) == (2, True)
    assert files_of(world.root) == before


def test_h02_files_of_a_start_without_the_disk_are_told_what_to_do_with(
    world: TieredLocal, tmp_path: Path
) -> None:
    lose_all(world)
    with pytest.raises(Corrupt, match="move its new store directory away and run `tieredstore"):
        world.open()
    world.close()
    store = world.root / "store"
    assert "move them away" in one_line(restore(world))
    store.rename(tmp_path / "away")
    assert restore(world).code == 0


def test_h02_a_store_that_was_restored_is_not_restored_again(world: TieredLocal) -> None:
    lose_all(world)
    assert restore(world).code == 0
    assert restore(world).code == 2


def test_h02_another_restore_is_refused_while_one_runs(world: TieredLocal) -> None:
    lose_all(world)
    (world.root / "store").mkdir()
    fd = lock_file(world.root / "store" / RESTORING_FILE)
    ran = restore(world)
    unlock_file(fd)
    assert (ran.code, "another restore runs" in one_line(ran)) == (5, True)


@pytest.mark.parametrize(
    ("call", "has_metadata"),
    [
        ("tieredstore.jobs.restoring.job.run_rebuild_metadata", False),
        ("tieredstore.jobs.restoring.job._write_config", True),
        ("tieredstore.jobs.operating.adopt._adopt", True),
    ],
)
def test_h02_a_restore_that_was_cut_off_goes_on(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch, call: str, has_metadata: bool
) -> None:
    lose_all(world)

    def fail(*_args: object, **_keys: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(call, fail)
        assert restore(world).code == 130
    assert (world.root / "store" / RESTORING_FILE).exists()
    if has_metadata:  # no broker starts on it before
        with pytest.raises(Invalid, match="tieredStoreAdopt"):
            world.open()
    assert restore(world).code == 0
    assert not (world.root / "store" / RESTORING_FILE).exists()
    world.open()
    assert world.put("T", b"new") == [9]
    assert world.read("T") == [*enumerate(T), (9, b"new")]


def cut_off_behind_the_log(world: TieredLocal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncate the restored store like a kill before the end of the restore."""

    def adopt(*args: Any, **keys: Any) -> int:
        ADOPT(*args, **keys)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tieredstore.jobs.operating.adopt._adopt", adopt)
        assert restore(world).code == 130
    assert list((world.root / "store" / "commitlog").iterdir())


def test_h02_a_restore_that_was_cut_off_behind_its_last_step_goes_on(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_all(world)
    cut_off_behind_the_log(world, monkeypatch)
    ran = restore(world)
    assert ran.code == 0, ran.err
    assert not (world.root / "store" / RESTORING_FILE).exists()
    world.open()
    assert world.local.commit_log.min_offset == ran.record["log_begin"]
    assert world.put("T", b"new") == [9]
    assert world.read("T") == [*enumerate(T), (9, b"new")]


def test_h02_what_a_broker_has_put_in_a_store_of_a_restore_that_was_cut_off_stays(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_all(world)
    cut_off_behind_the_log(world, monkeypatch)
    world.open()
    assert world.put("T", b"new") == [9]
    world.close()
    ran = restore(world)
    assert (ran.code, "the local store is not new" in one_line(ran)) == (2, True)
    world.open()
    assert world.read("T") == [*enumerate(T), (9, b"new")]


def test_a_broker_that_runs_is_left_alone(world: TieredLocal) -> None:
    world.store.backup.run_once()
    target = world.root / "another"
    arguments = ("restore", "--tier", world.root / "tier", "--store", target)
    ran = tieredstore(*arguments)
    assert (ran.code, "live writer" in ran.err) == (5, True)
    assert not list(target.rglob("commitlog/*"))
    world.close()
    assert tieredstore(*arguments).code == 0
    world.open()


def test_a_restore_that_was_cut_off_goes_on_with_its_own_tier_only(world: TieredLocal) -> None:
    lose_all(world)
    (world.root / "store").mkdir()
    (world.root / "store" / RESTORING_FILE).write_text('{"tier":"file:///another"}')
    ran = restore(world)
    assert (ran.code, "file:///another" in one_line(ran)) == (2, True)


def test_a_damaged_backup_gives_way_to_the_one_before(world: TieredLocal) -> None:
    world.store.backup.run_once()
    write_config(world, T={"0": 6})
    lose_all(world)
    older, newest = backups_of(world, "config")
    newest.write_bytes(newest.read_bytes()[:-10])
    ran = restore(world)
    assert ran.code == 1
    assert newest.name in ran.record["damaged_backups"][0]
    assert ran.record["backup"] == older.name
    assert offsets_of(world) == {"T@g": {"0": 5, "1": 4}, "K@g": {"0": 2}}


def test_nothing_is_begun_when_every_backup_is_damaged(world: TieredLocal) -> None:
    lose_all(world)
    for path in backups_of(world, "config"):
        path.write_bytes(b"rubbish")
    ran = restore(world)
    assert (ran.code, "no backup of config is whole" in one_line(ran)) == (1, True)
    assert not (world.root / "store").exists()


def test_a_tier_without_backups_is_told_what_else_helps(world: TieredLocal) -> None:
    lose_all(world)
    for path in backups_of(world, "*"):
        path.unlink()
    ran = restore(world)
    assert (ran.code, "`tieredstore tier adopt`" in one_line(ran)) == (2, True)
    assert not (world.root / "store").exists()


@pytest.mark.parametrize("damage", [b"rubbish", None])
def test_metadata_that_has_no_backup_is_made_from_the_tier(
    world: TieredLocal, damage: bytes | None
) -> None:
    lose_all(world)
    for path in backups_of(world, "metadata"):
        path.unlink() if damage is None else path.write_bytes(damage)
    ran = restore(world)
    assert (ran.code, ran.record["metadata_backup"]) == (0 if damage is None else 1, "")
    assert len(ran.record["damaged_backups"]) == (damage is not None)
    world.open()
    assert world.put("T", b"new") == [9]
    assert world.read("T") == [*enumerate(T), (9, b"new")]


def test_a_queue_whose_messages_have_all_expired_goes_on_where_it_was(world: TieredLocal) -> None:
    file = world.store.flat_files.get("K", 0)
    assert file is not None
    world.clock.advance(1)
    file.expire(world.clock.now_ms() + 1, lambda: False)
    write_config(world, K={"0": 4})
    lose_all(world)
    ran = restore(world)
    assert ran.code == 0, ran.err
    assert {"topic": "K", "queue_id": 0, "end_offset": 4} in ran.record["queue_ends"]
    assert offsets_of(world) == {"K@g": {"0": 4}}
    world.open()
    assert world.put("K", b"new") == [4]
    world.upload()
    assert world.read("K") == [(4, b"new")]


def test_a_tier_whose_messages_are_all_gone_is_as_one_that_never_had_any(
    world: TieredLocal,
) -> None:
    lose_all(world)
    for path in backups_of(world, "metadata"):
        path.unlink()
    for topic in ("T", "K"):
        shutil.rmtree(next((world.root / "tier").rglob(topic)))
    ran = restore(world, "--broker", "broker-a")
    assert ran.code == 0, ran.err
    assert ran.record["log_begin"] is None
    assert offsets_of(world) == {"T@g": {"0": 0, "1": 0}, "K@g": {"0": 0}}
    world.open()
    assert world.put("K", b"new") == [0]


def test_a_queue_that_cannot_be_opened_keeps_its_offsets_and_no_other_from_going_on(
    world: TieredLocal,
) -> None:
    lose_all(world)
    for path in (world.root / "tier").rglob("K/0/CONSUME_QUEUE/[!.]*"):
        path.write_bytes(b"x" * path.stat().st_size)
    ran = restore(world)
    assert ran.code == 1
    assert offsets_of(world)["K@g"] == {"0": 2}
    world.open()
    assert world.put("T", b"new") == [9]


def test_a_broker_without_a_message_in_the_tier_gets_its_topics(tmp_path: Path) -> None:
    world = TieredLocal(tmp_path)
    write_config(world, A={"0": 3})
    lose_all(world)
    ran = restore(world, "--broker", "broker-a")
    assert ran.code == 0, ran.err
    assert ran.record["log_begin"] is None
    assert offsets_of(world) == {"A@g": {"0": 0}}
    world.open()
    assert world.put("A", b"new") == [0]
    world.close()
