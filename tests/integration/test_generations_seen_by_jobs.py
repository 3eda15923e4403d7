"""Jobs run over a tier with deleted topics, recreated topics, or completely expired topics."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import tieredstore
from tests.kit.generations import Refused, expire_all, keep_topics, make_world
from tests.kit.tiered_local import TieredLocal
from tieredstore import jobs, registry
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.errors import Invalid
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.offloading.standby import learn_tier
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.jobs.target import resolve_target
from tieredstore.scan.listing import list_again, load_catalogue

OLD = [b"old%d" % number for number in range(6)]
NEW = [b"new%d" % number for number in range(4)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    world = make_world(tmp_path)
    keep_topics(world)
    world.put("T", *OLD, key="old")
    world.upload()
    yield world
    world.close()


def copy(world: TieredLocal) -> list[tuple[int, bytes]]:
    """Copy the tier. Return the content of topic T in the copy."""
    tier = tieredstore.open(f"file://{world.root / 'tier'}", state=world.root / "store")
    target = f"file://{world.root / 'copy'}"
    jobs.copy(tier, to=target, to_state=world.root / "copy-state", replace=True)
    copied = tieredstore.open(target, state=world.root / "copy-state")
    rows = copied.scan("T", columns=["queue_offset", "body"]).to_arrow().to_pylist()
    return [(row["queue_offset"], bytes(row["body"])) for row in rows]


@pytest.mark.parametrize("count", [0, 2, 30])
def test_w90_a_copy_that_a_broker_has_continued_is_not_written_over(
    world: TieredLocal, count: int
) -> None:
    """A copy of a tier is not overwritten after a broker has continued it. `count` is the number of
    messages that the origin gets after the copy."""
    copy(world)
    root = world.root / "promoted"
    root.mkdir()
    (world.root / "copy").rename(root / "tier")
    shutil.copytree(world.root / "copy-state", root / "store")
    keys: dict[str, object] = {"tieredStoreAdopt": True, "messageIndexEnable": False}
    promoted = make_world(root, **keys)
    offsets = promoted.put("T", *NEW)
    promoted.upload()
    promoted.close()
    (root / "tier").rename(world.root / "copy")
    world.put("T", *[b"later%d" % number for number in range(count)])
    world.upload()
    world.store.flat_files.metadata.flush()
    tier = tieredstore.open(f"file://{world.root / 'tier'}", state=world.root / "store")
    copy_again = partial(
        jobs.copy, to=f"file://{world.root / 'copy'}", to_state=world.root / "copy-state"
    )
    if count < 30:
        with pytest.raises(Invalid, match=r"holds something else .* bytes, in the origin"):
            copy_again(tier)
    else:  # there are as many bytes, but others
        [failed] = copy_again(tier)["failed"]
        assert "is not that of the origin" in failed["error"]
    (world.root / "copy").rename(root / "tier")
    promoted.open(messageIndexEnable=False)
    assert promoted.read("T") == [*enumerate(OLD), *zip(offsets, NEW, strict=True)]
    promoted.close()
    (root / "tier").rename(world.root / "copy")
    assert copy(world) == world.read("T")


@pytest.mark.parametrize("is_refused", [False, True])
def test_t77_a_copy_follows_a_topic_that_was_deleted_and_made_again(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """A copy follows a topic that was deleted and recreated. With `is_refused`, the origin cannot
    delete the earlier segments yet."""
    assert copy(world) == list(enumerate(OLD))
    refused = Refused(monkeypatch)
    if is_refused:
        refused.__enter__()
    world.store.delete_topics({"T"})
    world.put("T", *NEW, key="new")
    world.upload()
    world.store.backup.run_once(is_last=True)
    world.store.flat_files.metadata.flush()
    if is_refused:
        refused.__exit__()
    assert copy(world) == list(enumerate(NEW, 6))
    assert copy(world) == list(enumerate(NEW, 6))


def test_t77_a_copy_without_a_state_knows_the_present_generation(tmp_path: Path) -> None:
    """The index has no message of the recreated topic. Its id is in the newest backup."""
    world = make_world(tmp_path, messageIndexEnable=False)
    keep_topics(world)
    for topic, body in (("T", b"old"), ("U", b"1"), ("T", b"new"), ("V", b"2")):
        if body == b"new":
            world.store.delete_topics({topic})
        world.put(topic, body)
        world.upload()
    world.store.backup.run_once(is_last=True)
    ids = {entry.topic: entry.topic_id for entry in world.store.flat_files.metadata.topics()}
    world.close()
    state = tmp_path / "copy-state"
    for _ in range(2):
        jobs.copy(f"file://{tmp_path / 'tier'}", f"file://{tmp_path / 'copy'}", to_state=state)
    copied = tieredstore.open(f"file://{tmp_path / 'copy'}", state=state)
    assert copied.catalogue().topic_ids == ids
    rows = copied.scan("T", columns=["queue_offset", "body"]).to_arrow().to_pylist()
    assert [(row["queue_offset"], bytes(row["body"])) for row in rows] == [(1, b"new")]


def test_t77_a_queue_that_is_listed_again_has_no_segment_of_a_deleted_topic(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = world.store.flat_files.provider
    [queue] = load_catalogue(provider, broker="broker-a").queues
    with Refused(monkeypatch):
        world.store.delete_topics({"T"})
        again = list_again(provider, queue)
        assert (again.commit_log, again.consume_queue) == ((), ())


def test_t77_a_standby_learns_the_ends_of_queues_that_have_expired(world: TieredLocal) -> None:
    world.store.backup.run_once(is_last=True)
    expire_all(world)
    assert world.tier_files("T") == []
    world.close()
    target = resolve_target(
        f"file://{world.root / 'tier'}",
        world.root / "standby",
        cluster="DefaultCluster",
        broker="broker-a",
    )
    learn_tier(JobRun("standby", LocalRunner(1), Journal(None, {})), target, SYSTEM_CLOCK)
    known: MetadataStore = registry.metadata_store(target.config, read_only=True)
    known.load()
    ends = {entry.type.name: entry.base_offset for entry in known.segments("broker-a/T/0")}
    known.close()
    assert ends["CONSUME_QUEUE"] == 6 * 20
    assert ends["COMMIT_LOG"] > 0
    world.open()
