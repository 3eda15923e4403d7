"""Another store or a job takes the epoch of a broker's tier."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from tests.kit.belonging import SharedTier, Stopped
from tieredstore.broker.operations.health import DOWN, describe_health
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Fenced


@pytest.fixture
def shared(tmp_path: Path) -> SharedTier:
    return SharedTier(tmp_path)


def take_over(shared: SharedTier, folder: Path) -> Stopped:
    """Start a copy of the store. It acquires the epoch while the first store still runs."""
    first = shared.open(folder / "first")
    first.put("A", b"a0", b"a1", b"a2")
    first.upload()
    shutil.copytree(
        folder / "first/store", folder / "second/store", ignore=shutil.ignore_patterns("lock")
    )
    shared.take_over_epoch = first.epoch_number
    return first


def test_w30_a_store_that_another_store_has_fenced_refuses_puts(
    shared: SharedTier, tmp_path: Path
) -> None:
    first = take_over(shared, tmp_path)
    second = shared.open(tmp_path / "second")
    assert first.put_one("A", b"within the interval").ok
    first.watch.run_once()  # an upload has looked since the last round
    assert first.put_one("A", b"within the interval, too").ok
    first.watch.run_once()
    refused = first.put_one("A", b"too late")
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "another store has the right to write" in refused.reason
    assert f"epoch {first.epoch_number + 1}" in refused.reason
    health = describe_health(first.store.health(), first.store.describe_tier())
    assert health["status"] == DOWN
    assert "another store" in str(health["services"])
    assert [body for _, body in first.read("A")][:3] == [b"a0", b"a1", b"a2"]
    assert second.put("A", b"b3") == [3]
    second.close()
    first.close()


def test_w30_an_upload_that_finds_it_out_stops_puts_at_once(
    shared: SharedTier, tmp_path: Path
) -> None:
    first = take_over(shared, tmp_path)
    second = shared.open(tmp_path / "second")
    assert first.put_one("A", b"within the interval").ok
    first.local.flush()
    with contextlib.suppress(Fenced):
        first.store.dispatcher.scan(force=True)
    assert not first.put_one("A", b"too late").ok
    second.close()
    first.close()


def test_w31_a_store_that_a_job_has_fenced_goes_on(shared: SharedTier, tmp_path: Path) -> None:
    first = take_over(shared, tmp_path)
    job = shared.run_job(tmp_path / "job", take_over=True)
    assert first.put_one("A", b"a3").ok
    first.watch.run_once()
    assert first.put_one("A", b"a4").ok
    assert first.watch.refusal is None
    job.release()
    second = shared.open(tmp_path / "second")
    first.watch.run_once()
    assert not first.put_one("A", b"too late").ok, "a store took the right after the job"
    second.close()
    first.close()


def test_w32_a_backend_that_does_not_answer_fences_nobody(
    shared: SharedTier, tmp_path: Path
) -> None:
    first = shared.open(tmp_path / "first")
    first.put("A", b"a0")
    shared.is_away = True
    assert first.put_one("A", b"a1").ok
    first.try_watch()
    assert first.put_one("A", b"a2").ok
    assert first.watch.refusal is None
    shared.is_away = False
    first.close()


def test_a_right_is_not_looked_at_while_nothing_comes(shared: SharedTier, tmp_path: Path) -> None:
    first = shared.open(tmp_path / "first")
    first.put("A", b"a0")
    first.watch.run_once()
    first.watch.run_once()
    before = shared.count_requests()
    for _ in range(5):
        first.watch.run_once()
    assert shared.count_requests() == before
    first.put("A", b"a1")
    first.watch.run_once()
    assert shared.count_requests() == before + 1
    first.close()
