"""Tests of the merge policy: when objects are merged, and how they are divided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.contracts.objects import ClientLimits
from tieredstore.errors import Invalid
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.names import Generation, chunk_name, make_merged_name
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.upkeep.compaction import Copied, plan_parts
from tieredstore.providers.chunks.upkeep.policy import MergePolicy

POLICY = MergePolicy(fan_in=4, target_bytes=160, part_bytes=100, free_bytes=10)
HOUR_MS = 3_600_000
KIB, MIB = 1 << 10, 1 << 20


def extents(*lengths: int, merged: int = 0) -> list[Extent]:
    """Return extents of the given sizes. The first `merged` are merged runs."""
    found = []
    position = 0
    for number, length in enumerate(lengths):
        end = position + length
        name = make_merged_name(position, end) if number < merged else chunk_name(position)
        found.append(Extent(position, end, name))
        position = end
    return found


def next_lengths(*lengths: int, merged: int = 0) -> list[int] | None:
    run = POLICY.next_run(extents(*lengths, merged=merged))
    return None if run is None else [extent.length for extent in run]


def test_few_small_writes_stay() -> None:
    assert next_lengths() is None
    assert next_lengths(1, 2, 3) is None
    assert next_lengths(90) is None


def test_as_many_writes_as_the_fan_in_are_merged() -> None:
    assert next_lengths(1, 2, 3, 4) == [1, 2, 3, 4]


def test_as_many_bytes_as_the_target_are_merged() -> None:
    assert next_lengths(90, 80) == [90, 80]
    assert next_lengths(90, 60) is None


def test_what_is_merged_at_once_is_bounded() -> None:
    assert next_lengths(*[50] * 100) == [50, 50, 50, 50]


def test_a_run_so_small_that_its_bytes_cost_nothing_goes_into_the_next_one() -> None:
    assert next_lengths(20, 9, 1, 1, 1, 1, merged=2) == [9, 1, 1, 1, 1]
    assert next_lengths(20, 11, 1, 1, 1, 1, merged=2) == [1, 1, 1, 1]


def test_runs_go_up_a_tier_together() -> None:
    assert next_lengths(12, 12, 12, merged=3) is None
    assert next_lengths(12, 12, 12, 12, merged=4) == [12] * 4
    assert next_lengths(48, 12, 12, 12, 12, merged=5) == [12] * 4


def test_large_objects_are_merged_once_they_are_older_than_the_newest() -> None:
    """Large objects are merged only when they are an hour older than the newest object. So the
    segment of a fast queue is copied only when it is sealed."""
    new = [found._replace(modified_ms=1_000) for found in extents(150, 150, 150)]
    assert POLICY.next_run(new) is None
    for last_ms, is_merged in ((1_000 + HOUR_MS - 1, False), (1_000 + HOUR_MS, True)):
        extra = Extent(450, 455, chunk_name(450), last_ms)
        run = POLICY.next_run([*new, extra])
        assert run == (tuple(new) if is_merged else None)


def test_very_many_large_objects_are_merged_in_any_case() -> None:
    assert next_lengths(*[150] * 63) is None
    assert next_lengths(*[150] * 64) == [150] * 64


def test_small_writes_shut_in_by_a_large_one_become_one() -> None:
    assert next_lengths(150, 5, 6, 150) == [5, 6]
    assert next_lengths(150, 5, 150) is None


@dataclass
class Merged:
    """Result of a policy over a series of writes. Each of the `merge_count` merges makes at least
    two requests."""

    manifest: SegmentManifest
    merge_count: int = 0
    sent_bytes: int = 0
    copied_bytes: int = 0
    most_objects: int = 0


def merge_all(policy: MergePolicy, writes: Iterable[tuple[int, int]]) -> Merged:
    """Append writes, given as (bytes, preceding pause in ms), and merge whenever the policy
    requests it."""
    found = Merged(SegmentManifest())
    now_ms = 0
    for length, pause_ms in writes:
        now_ms += pause_ms
        found.manifest = found.manifest.append(length, now_ms, Generation(1, 1))
        found.sent_bytes += length
        for _ in range(1_000):
            run = policy.next_run(found.manifest.extents)
            if run is None:
                break
            assert len(run) > 1
            start, end = run[0].start, run[-1].end
            merged = found.manifest.with_merged(start, end, now_ms, Generation(1, 1))
            assert merged is not None
            found.manifest = replace(merged, garbage=())
            found.merge_count += 1
            if any(extent.length >= policy.part_bytes for extent in run):
                found.copied_bytes += end - start
            else:
                found.sent_bytes += end - start
        else:
            raise AssertionError("merging does not come to an end")
        found.most_objects = max(found.most_objects, len(found.manifest.extents))
    return found


def seal(policy: MergePolicy, found: Merged) -> None:
    """Seal the segment. The seal rewrites the whole segment as one object, so its bytes are counted
    again as sent or copied."""
    size_bytes = found.manifest.size_bytes
    if size_bytes <= policy.target_bytes:
        found.sent_bytes += size_bytes
    else:
        found.copied_bytes += size_bytes


@st.composite
def policies(draw: st.DrawFn) -> MergePolicy:
    part_bytes = draw(st.integers(1, 200))
    return MergePolicy(
        fan_in=draw(st.integers(2, 40)),
        part_bytes=part_bytes,
        target_bytes=part_bytes + draw(st.integers(0, 400)),
        free_bytes=draw(st.integers(0, 300)),
        settle_ms=draw(st.sampled_from([0, 1, 10, 10_000])),
    )


@given(
    policies(), st.lists(st.tuples(st.integers(1, 600), st.sampled_from([0, 1, 100])), max_size=300)
)
def test_no_setting_makes_a_loop_of_requests(
    policy: MergePolicy, writes: list[tuple[int, int]]
) -> None:
    found = merge_all(policy, writes)
    assert found.manifest.size_bytes == sum(length for length, _ in writes)
    # Each merge makes at least one object less, so there are fewer merges than writes.
    assert found.merge_count < max(1, len(writes))
    tiers = 6  # of small and of large objects, at these sizes and a fan-in of 2 or more
    assert found.most_objects <= policy.fan_in * (16 + 2 * tiers) + 2 * tiers


@given(
    st.integers(2, 1000),
    st.integers(5 << 20, 1 << 30),
    st.lists(st.integers(1, 64 << 20), min_size=1, max_size=100),
)
def test_no_configuration_makes_a_loop_of_requests(
    merge_count: int, merge_bytes: int, lengths: list[int]
) -> None:
    policy = MergePolicy(fan_in=merge_count, target_bytes=merge_bytes)
    found = merge_all(policy, [(length, 30_000) for length in lengths])
    assert found.merge_count < len(lengths)


@pytest.mark.parametrize("write_bytes", [20 * KIB, 100 * KIB, 700 * KIB, 3 * MIB])
@pytest.mark.parametrize("target_bytes", [8 * MIB, 64 * MIB, 1024 * MIB])
def test_however_much_is_merged_at_once_a_chain_has_few_objects(
    write_bytes: int, target_bytes: int
) -> None:
    policy = MergePolicy(target_bytes=target_bytes)
    found = merge_all(policy, [(write_bytes, 30_000)] * 2_000)
    assert found.most_objects <= 100
    assert found.sent_bytes <= 5 * found.manifest.size_bytes


@given(
    policies(), st.lists(st.sampled_from([1, 2, 5, 20, 99, 120, 900]), max_size=6), st.booleans()
)
def test_what_is_little_is_left_as_all_the_rules_would(
    policy: MergePolicy,
    lengths: list[int],
    closed: bool,
) -> None:
    found = extents(*lengths)
    told_at_once = policy.next_run(found, is_closed=closed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MergePolicy, "_is_little", lambda *_: False)
        assert policy.next_run(found, is_closed=closed) == told_at_once


@pytest.mark.parametrize(
    ("changes", "told"), [({"fan_in": 1}, "fan_in"), ({"target_bytes": 99}, "target_bytes")]
)
def test_a_policy_that_would_not_end_is_refused(changes: dict[str, int], told: str) -> None:
    with pytest.raises(Invalid, match=told):
        replace(POLICY, **changes)


@pytest.mark.parametrize(
    ("write_bytes", "total_bytes", "most_sent", "most_in_all"),
    [
        pytest.param(6 * KIB, 8 * MIB, 4, 5, id="6 KiB"),
        pytest.param(6 * KIB, 53 * MIB, 4, 5, id="6 KiB, for a day"),
        pytest.param(120 * KIB, 1024 * MIB, 3, 5, id="120 KiB"),
        pytest.param(1 * MIB, 1024 * MIB, 2, 4, id="1 MiB"),
        pytest.param(8 * MIB, 1024 * MIB, 1, 2, id="8 MiB"),
        pytest.param(11 * MIB, 1024 * MIB, 1, 2, id="11 MiB"),
    ],
)
def test_a_byte_is_written_a_few_times_only(
    write_bytes: int, total_bytes: int, most_sent: float, most_in_all: float
) -> None:
    """Each byte is written only a few times. `most_sent` limits the bytes sent by the client.
    `most_in_all` also counts bytes copied by the server. Both are multiples of the segment's
    size."""
    policy = MergePolicy()
    count = -(-total_bytes // write_bytes)
    found = merge_all(policy, [(write_bytes, 30_000)] * count)
    seal(policy, found)
    assert found.sent_bytes <= most_sent * found.manifest.size_bytes
    assert found.sent_bytes + found.copied_bytes <= most_in_all * found.manifest.size_bytes


@given(
    st.lists(st.integers(1, 250), min_size=1, max_size=40),
    st.integers(100, 300),
)
def test_parts_are_the_content_within_what_a_store_allows(lengths: list[int], most: int) -> None:
    run = extents(*lengths)
    limits = ClientLimits(min_part_bytes=50, max_part_bytes=most)
    parts = plan_parts(run, limits)
    assert parts[0].start == 0
    assert parts[-1].end == run[-1].end
    assert all(left.end == right.start for left, right in pairwise(parts))
    for part in parts[:-1]:
        assert 50 <= part.end - part.start <= most
    assert parts[-1].end - parts[-1].start <= most
    for part in parts:
        if isinstance(part, Copied):
            assert part.extent.start <= part.start < part.end <= part.extent.end


def test_what_is_long_enough_is_copied() -> None:
    limits = ClientLimits(min_part_bytes=50)
    parts = plan_parts(extents(60, 10, 10, 200, 5), limits)
    assert [(isinstance(part, Copied), part.start, part.end) for part in parts] == [
        (True, 0, 60),
        (False, 60, 110),
        (True, 110, 280),
        (False, 280, 285),
    ]


def test_more_parts_than_an_upload_can_have_are_refused() -> None:
    with pytest.raises(Invalid, match="3 parts"):
        plan_parts(extents(60, 60, 60), ClientLimits(min_part_bytes=50, max_parts=2))
