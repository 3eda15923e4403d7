"""Tests of how a job finds the tier to write, and opens it as the only writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.kit.tier_builder import BROKER, CLUSTER, BuiltTier, small_tier
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Fenced, Invalid, Unnamed
from tieredstore.jobs.index.tier import open_index_tier
from tieredstore.jobs.target import (
    TierTarget,
    find_only_broker,
    own_tier,
    refuse_slave,
    resolve_target,
)
from tieredstore.local.recovery.store_lock import StoreLock
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.scan.location import METADATA_FILE
from tieredstore.tier.state_files import StateLock


@pytest.fixture
def built(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path)


def target_of(built: BuiltTier) -> TierTarget:
    return resolve_target(built.url, built.state, cluster=CLUSTER, broker=BROKER)


def open_target(target: TierTarget) -> None:
    provider = target.open_provider(create=False)
    assert provider is not None
    with own_tier(provider, target.config, target.state) as writer:
        target.check_state(provider, writer.metadata)


def test_the_state_of_another_broker_is_refused(built: BuiltTier) -> None:
    """A state directory of another broker is rejected. Otherwise the queues and indexes of two
    brokers would be mixed."""
    target = resolve_target(built.url, built.state, cluster=CLUSTER, broker="broker-z")
    with pytest.raises(Invalid, match=f"is that of broker '{BROKER}', not of 'broker-z'"):
        open_target(target)
    with (
        pytest.raises(Invalid, match=f"is that of broker '{BROKER}', not of 'broker-z'"),
        open_index_tier(target.location),
    ):
        pass


def test_names_may_come_from_the_file_or_from_the_options(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\nbrokerClusterName=c\n")
    url = f"file://{tmp_path}/tier"
    from_file = resolve_target(url, tmp_path / "state", config=conf)
    given = resolve_target(url, tmp_path / "state", config=conf, broker="other")
    assert (from_file.config.broker_name, from_file.config.broker_cluster_name) == ("b", "c")
    assert (given.config.broker_name, given.config.broker_cluster_name) == ("other", "c")
    assert from_file.folder == tmp_path / "tier"
    assert Path(from_file.config.store_path_root_dir) == from_file.state == tmp_path / "state"
    assert from_file.location.broker == "b"
    with pytest.raises(Invalid, match=r"give --broker .* and --cluster"):
        resolve_target(url, tmp_path / "state")
    with pytest.raises(Invalid, match="not a directory"):
        resolve_target(url, conf, config=conf)
    assert from_file.open_provider(create=False) is None
    assert not (tmp_path / "tier").exists()
    for create in (False, True):
        with pytest.raises(Invalid, match=r"tier .*broker\.conf: not a directory"):
            resolve_target(f"file://{conf}", tmp_path / "state", config=conf).open_provider(
                create=create
            )


def test_a_slave_never_uploads(built: BuiltTier) -> None:
    config = target_of(built).config
    refuse_slave(config)
    with pytest.raises(Invalid, match="SLAVE"):
        refuse_slave(msgspec.structs.replace(config, broker_role="SLAVE"))


@contextmanager
def broker(state: Path) -> Iterator[None]:
    lock = StoreLock(state)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def other_job(state: Path) -> Iterator[None]:
    lock = StateLock(state)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def test_whoever_has_the_state_directory_keeps_jobs_out(built: BuiltTier) -> None:
    target = target_of(built)
    before = (built.state / METADATA_FILE).read_bytes()
    for owner in (broker, other_job):
        with owner(built.state):
            with pytest.raises(Fenced, match="top it"):
                open_target(target)
            with pytest.raises(Fenced, match="top it"), open_index_tier(target.location):
                pass
        assert (built.state / METADATA_FILE).read_bytes() == before
        built.provider.acquire_writer(BROKER).release()  # no process kept the epoch ownership
    open_target(target)


def test_a_tier_and_a_state_that_do_not_belong_together_are_refused(
    built: BuiltTier, tmp_path: Path
) -> None:
    target = target_of(built)
    other = resolve_target(built.url, tmp_path / "other", cluster=CLUSTER, broker=BROKER)
    with pytest.raises(Invalid, match="does not know"):
        open_target(other)
    (tmp_path / "empty").mkdir()
    elsewhere = resolve_target(
        f"file://{tmp_path}/empty", built.state, cluster=CLUSTER, broker=BROKER
    )
    with pytest.raises(Invalid, match="lacks"):
        open_target(elsewhere)
    open_target(target)


def test_what_a_configuration_is_warned_of_is_logged_for_who_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("tieredStoreCommitLogMaxSiz=1\naccountStatsEnable=true\n")
    resolve_target(
        f"file://{tmp_path}/tier", tmp_path / "s", cluster=CLUSTER, broker=BROKER, config=conf
    )
    first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith(
        "key tieredStoreCommitLogMaxSiz; did you mean tieredStoreCommitLogMaxSize?"
    )
    assert second.endswith("keys of Java without effect here: accountStatsEnable")


def test_the_only_broker_of_a_tier_is_meant_and_of_several_one_must_be_named() -> None:
    provider = MemoryProvider()
    with pytest.raises(Unnamed, match=r"brokers in the tier: none\. No broker has uploaded"):
        find_only_broker(provider)
    for broker in ("b", "a"):
        segment = SegmentId(f"{broker}/T/0", FileSegmentType.COMMIT_LOG, 0)
        provider.open(segment).write(0, [b"x"])
        if broker == "b":
            assert find_only_broker(provider) == "b"
    with pytest.raises(Unnamed, match=r"brokers in the tier: a, b\. Choose one with --broker"):
        find_only_broker(provider)
