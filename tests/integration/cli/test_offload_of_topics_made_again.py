"""`offload` reads a topic that a Java broker deleted and recreated. The topic's offsets begin at 0
again, and the log has no record of the deletion."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.followed import Steps, fill, options, tiered_bodies
from tieredstore.errors import Corrupt
from tieredstore.jobs.offloading.following import follow_store
from tieredstore.jobs.offloading.job import offload_store
from tieredstore.jobs.operating.delete import delete_topic
from tieredstore.jobs.stopping import StopSignal
from tieredstore.message.encoding import Message
from tieredstore.scan.location import locate

OLD = [*(Message("A", b"old%d" % number) for number in range(3)), Message("B", b"a")]


def make_again(store: Path, count: int) -> None:
    """Recreate the topic as Java does: delete its queue files, and leave its old records in the
    log."""
    shutil.rmtree(store / "consumequeue" / "A")
    fill(store, *[Message("A", b"new%d" % number) for number in range(count)], Message("B", b"b"))


def check_refused(tmp_path: Path, failed: Sequence[tuple[object, object]]) -> None:
    [(_, error)] = failed
    assert isinstance(error, Corrupt)
    assert "`tieredstore tier delete A`" in str(error)
    assert tiered_bodies(tmp_path, "A") == ["old0", "old1", "old2"]


def check_way_on(tmp_path: Path, store: Path, count: int) -> None:
    """Follow the procedure in the error. Check that no message is lost, and that no queue has
    messages of both the old and the new topic."""
    location = locate(f"file://{tmp_path / 'tier'}", state=options(store).state_path)
    delete_topic(location, "A", yes=True)
    assert offload_store(options(store)).failed == []
    assert tiered_bodies(tmp_path, "A") == [f"new{number}" for number in range(count)]
    assert offload_store(options(store)).messages == 0


@pytest.mark.parametrize("count", [1, 3, 7])
def test_t76_a_topic_made_again_is_not_mixed_with_the_one_in_the_tier(
    tmp_path: Path, count: int
) -> None:
    store = tmp_path / "store"
    fill(store, *OLD)
    assert offload_store(options(store)).messages == 4
    make_again(store, count)
    report = offload_store(options(store))
    check_refused(tmp_path, report.failed)
    assert tiered_bodies(tmp_path, "B") == ["a", "b"]
    check_way_on(tmp_path, store, count)


@pytest.mark.parametrize("count", [1, 7])  # as many as before: the next run finds out
def test_t76_a_topic_made_again_between_two_rounds_is_not_mixed_with_the_one_in_the_tier(
    tmp_path: Path, count: int
) -> None:
    store = tmp_path / "store"
    fill(store, *OLD)
    stop = StopSignal()
    clock = Steps([lambda: make_again(store, count), lambda: None, stop.set])
    report = follow_store(options(store), stop=stop, clock=clock)
    check_refused(tmp_path, report.failed)
    assert tiered_bodies(tmp_path, "B") == ["a", "b"]
    check_way_on(tmp_path, store, count)
