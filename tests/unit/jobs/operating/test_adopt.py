"""`tieredstore tier adopt` lets a broker whose disk was lost continue at the end of its tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, files_of, one_line, tieredstore
from tests.kit.configured_broker import properties
from tests.kit.jobs.operating import K, T, break_queue, make_world, place
from tests.kit.tiered_local import TieredLocal
from tieredstore.errors import Invalid
from tieredstore.local.recovery.store_lock import StoreLock


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    world = make_world(tmp_path)
    yield world
    world.close()


def adopt(world: TieredLocal, *more: object, **keys: object) -> Ran:
    conf = world.root / "broker.conf"
    settings = properties(world.root, **{**world.keys, **keys})
    conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return tieredstore("tier", "adopt", *place(world), "--config", conf, "--output", "json", *more)


def test_l16_a_broker_whose_disk_was_lost_goes_on_where_it_was(world: TieredLocal) -> None:
    world.lose_disk()
    with pytest.raises(Invalid, match="tieredStoreAdopt"):
        world.open()
    before = files_of(world.root / "store")
    said = adopt(world)
    assert said.code == 0, said.err
    ends = {(row["topic"], row["queue_id"]): row["end_offset"] for row in said.record["queues"]}
    assert ends == {("K", 0): 4, ("T", 0): 9, ("T", 1): 4}
    assert (said.record["done"], said.record["log_begin"]) == (False, None)
    assert files_of(world.root / "store") == before
    done = adopt(world, "--yes")
    assert done.code == 0, done.err
    assert done.record["done"]
    begin = done.record["log_begin"]
    assert begin >= 1 << 31
    assert begin % (1 << 16) == 0
    world.open()
    assert world.local.commit_log.min_offset == begin
    assert world.put("T", b"new") == [9]
    world.upload()
    assert world.read("T") == [*enumerate(T), (9, b"new")]
    assert world.read("K") == list(enumerate(K))


def test_a_store_that_has_a_log_adopts_nothing(world: TieredLocal) -> None:
    before = files_of(world.root)
    for more in ((), ("--yes",)):
        ran = adopt(world, *more)
        assert (ran.code, "the local store is not new" in one_line(ran)) == (2, True)
    (world.root / "broker.conf").unlink()
    assert files_of(world.root) == before


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"brokerRole": "SLAVE"}, "brokerRole is SLAVE"),
        ({"tieredStorageLevel": "DISABLE"}, "has no tier"),
        ({"brokerName": "another"}, "another"),
    ],
)
def test_another_broker_adopts_nothing(
    world: TieredLocal, keys: dict[str, object], text: str
) -> None:
    world.lose_disk()
    ran = adopt(world, "--yes", **keys)
    assert ran.code == 2
    assert text in one_line(ran)
    assert not list((world.root / "store").rglob("commitlog/*"))


def test_metadata_that_is_lost_too_is_made_first(world: TieredLocal) -> None:
    world.lose_disk()
    for path in (world.root / "store" / "config").iterdir():
        path.unlink()
    ran = adopt(world, "--yes")
    assert ran.code == 2
    assert "`tieredstore rebuild metadata` makes it" in one_line(ran)


def test_a_broker_that_runs_is_left_alone(world: TieredLocal) -> None:
    world.lose_disk()
    lock = StoreLock(world.root / "store")
    lock.acquire()
    try:
        ran = adopt(world, "--yes")
    finally:
        lock.release()
    assert (ran.code, "a broker runs on it" in one_line(ran)) == (5, True)


def test_a_queue_that_cannot_be_opened_is_named(world: TieredLocal) -> None:
    break_queue(world)
    world.lose_disk()
    ran = adopt(world)
    assert ran.code == 1
    assert [row["path"] for row in ran.record["problems"]] == ["broker-a/T/0"]
