"""Tests of copying a tier while it is written and while its segments expire."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.jobs.copy import (
    PIECE_BYTES,
    contents,
    copy,
    entries,
    findings,
    posix,
    state,
    tables,
)
from tests.kit.jobs.live_source import QUEUES, LiveWriter, WatchedProvider
from tests.kit.tier.wrappers import AppendOnlyProvider
from tests.kit.tier_builder import BROKER, BuiltTier, TierBuilder, message
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.jobs.copying.job import copy_tier
from tieredstore.jobs.copying.report import CopyReport
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.options import CopyOptions
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify

MOST_STEPS = 60
"""Maximum number of the writer's steps in a run. At each call of the copy, the writer makes a step
that adds messages, and more messages cause more calls."""


def damage(provider: SegmentProvider, root: Path) -> list[Finding]:
    return [found for found in findings(provider, root) if found.severity is Severity.DAMAGE]


def check_prefix(target: SegmentProvider, root: Path, source: SegmentProvider) -> int:
    """Check that the target is consistent, and that its segments are prefixes of the source's.
    Return the number of index items in the target."""
    whole = contents(source)
    for segment, data in contents(target).items():
        assert whole[segment].startswith(data), segment
    metadata = state(root, read_only=True)
    found: list[Finding] = []
    report = verify(target, load_catalogue(target, metadata), found.append)
    assert found == []
    return report.index_items


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize("every", [1, 3])
def test_what_is_copied_while_the_source_is_written_is_a_consistent_prefix(
    every: int, with_state: bool, tmp_path: Path
) -> None:
    """A copy made while the source is being written is a consistent prefix."""
    tier = posix(tmp_path / "source")
    writer = LiveWriter(tmp_path / "source", tier)
    writer.step()
    target = posix(tmp_path / "target")

    def run(watched: SegmentProvider) -> CopyReport:
        metadata = state(tmp_path / "target")
        known = state(tmp_path / "source", read_only=True) if with_state else None
        try:
            return copy(watched, known, target, metadata, CopyOptions(workers=2))
        finally:
            metadata.close()

    items = []
    for _ in range(3):
        watched = WatchedProvider(
            tier, lambda call: writer.step() if call % every == 0 and call <= MOST_STEPS else None
        )
        report = run(watched)
        assert report.queues == len(QUEUES)
        assert report.copied_bytes > 0
        items.append(check_prefix(target, tmp_path / "target", tier))
    assert items == sorted(items)
    writer.close()

    run(tier)

    assert contents(target) == contents(tier)
    source, copied = (state(tmp_path / name, read_only=True) for name in ("source", "target"))
    source.load()
    copied.load()
    assert tables(copied) == tables(source)
    with_bytes = [entry for entry in entries(source) if entry[1]]
    assert [entry for entry in entries(copied) if entry[1]] == with_bytes
    assert run(tier).segments == 0


def two_queues(root: Path) -> BuiltTier:
    builder = TierBuilder(root, messages_per_segment=4)
    builder.queue("orders", 0, [message("orders", 0, n) for n in range(12)])
    builder.queue("orders", 1, [message("orders", 1, n) for n in range(8)])
    builder.index()
    builder.built.metadata.flush()
    return builder.built


def expire(built: BuiltTier, queue_id: int, segments: int) -> None:
    """Expire segments as a writer does: the commit log first, and metadata entries before
    objects."""
    path = f"{BROKER}/orders/{queue_id}"
    for kind in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE):
        for entry in list(built.metadata.segments(path, kind))[:segments]:
            built.metadata.delete_segment(entry.id)
            built.provider.open(entry.id).delete()


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["posix", "append-only"])
@pytest.mark.parametrize("segments", [1, 2, 3])
def test_segments_that_expire_in_the_source_at_any_moment_are_no_error(
    segments: int, kind: str, every: int, tmp_path: Path
) -> None:
    number = calls = 0
    while number <= calls:
        number += every
        root = tmp_path / str(number)
        built = two_queues(root / "source")

        def before(call: int, at: int = number, built: BuiltTier = built) -> None:
            if call == at:
                expire(built, 0, segments)

        watched = WatchedProvider(built.provider, before)
        target: SegmentProvider = (
            posix(root / "target") if kind == "posix" else AppendOnlyProvider()
        )
        metadata, known = state(root / "target"), state(built.root, read_only=True)
        (root / "target").mkdir(exist_ok=True)
        copy(watched, known, target, metadata, CopyOptions(workers=1))
        metadata.close()
        calls = max(calls, watched.calls)

        assert damage(target, root / "target") == [], number
        if segments < 3 or number > calls:
            again, known = state(root / "target"), state(built.root, read_only=True)
            copy(built.provider, known, target, again)
            again.close()
            assert damage(target, root / "target") == [], number
    assert calls > 20


def test_a_queue_that_has_lost_messages_since_the_last_run_fails_alone_and_names_them(
    tmp_path: Path,
) -> None:
    """If the source has expired messages that were not copied yet, the copy of their queue fails
    and names them. Other queues are copied."""
    young = TierBuilder(tmp_path / "young", messages_per_segment=4)
    young.queue("orders", 0, [message("orders", 0, n) for n in range(4)])
    target, metadata = posix(tmp_path / "target"), state(tmp_path / "target")
    copy(young.built.provider, young.built.metadata, target, metadata)
    old = two_queues(tmp_path / "old")
    expire(old, 0, 2)
    before = {s: data for s, data in contents(target).items() if s.path.endswith("orders/0")}

    report = copy_tier(
        old.provider,
        state(old.root, read_only=True),
        CopyTarget(target, metadata, BROKER, ManualClock()),
        BROKER,
        CopyOptions(),
        piece_bytes=PIECE_BYTES,
    )

    [(path, error)] = report.failed
    assert path == f"{BROKER}/orders/0"
    assert isinstance(error, Invalid)
    assert "has expired before it was copied. --force replaces" in str(error)
    now = contents(target)
    assert {s: data for s, data in now.items() if s.path.endswith("orders/0")} == before
    queue = f"{BROKER}/orders/1"
    whole = {s: data for s, data in contents(old.provider).items() if s.path == queue}
    assert {s: data for s, data in now.items() if s.path == queue} == whole

    copy(old.provider, state(old.root, read_only=True), target, metadata, CopyOptions(replace=True))

    assert contents(target) == contents(old.provider)
    metadata.close()


def test_what_the_source_has_expired_since_stays_in_the_target(tmp_path: Path) -> None:
    built = two_queues(tmp_path / "source")
    target, metadata = posix(tmp_path / "target"), state(tmp_path / "target")
    copy(built.provider, built.metadata, target, metadata)
    before = contents(target)
    expire(built, 0, 2)
    expire(built, 1, 2)

    report = copy(built.provider, built.metadata, target, metadata)

    assert report.segments == 0
    assert contents(target) == before
    metadata.close()
    assert damage(target, tmp_path / "target") == []
