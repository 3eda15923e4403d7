"""The segments of a tier have checksums. Every flipped byte is detected, no damaged message is
served, and all intact messages are served."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.block_checksums import checksums_of, forget_checksums
from tests.kit.tier.flat import Tier, bodies, fill
from tests.kit.tier_builder import BROKER, BuiltTier, TierBuilder, message, small_tier
from tieredstore import jobs
from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Corrupt, Fenced
from tieredstore.providers.posix.block_sums import BLOCK_BYTES
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.findings import Finding
from tieredstore.tier.fetch.block_reading import read_block
from tieredstore.tier.reading import run

FLIPS = [15, pytest.param(1_000, marks=pytest.mark.slow)]


def flip(path: Path, position: int, bits: int = 1) -> None:
    """Flip bits of a byte without the store's knowledge, as a disk fault does."""
    before = path.stat()
    fd = os.open(path, os.O_RDWR)
    try:
        [byte] = os.pread(fd, 1, position)
        os.pwrite(fd, bytes([byte ^ bits]), position)
    finally:
        os.close(fd)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def seal(tier: BuiltTier, **options: Any) -> dict[str, Any]:
    opened = tieredstore.open(tier.url, state=tier.state)
    return dict(jobs.verify(opened, seal=True, **options))


def segments_of(tier: BuiltTier) -> dict[SegmentId, int]:
    return {one.id: one.size_bytes for one in tier.provider.list()}


@pytest.fixture
def sealed(tmp_path: Path) -> BuiltTier:
    """A tier that was written without checksums. `verify --seal` has added them."""
    tier = small_tier(tmp_path)
    tier.metadata.flush()
    done = seal(tier)["sealed"]
    sizes = segments_of(tier)
    assert done == {
        "segments": len(sizes), "size_bytes": sum(sizes.values()), "timed_segments": 0,
        "left_alone": 0, "deleted": 0,
    }  # fmt: skip
    return tier


def test_every_flipped_byte_of_a_sealed_tier_is_found(sealed: BuiltTier) -> None:
    missed = []
    for segment, size in segments_of(sealed).items():
        path = sealed.path(segment)
        for position in range(size):
            bits = 1 + (position * 7) % 255
            flip(path, position, bits)
            if not sealed.provider.check_blocks(segment).damaged:
                missed.append((segment, position))
            flip(path, position, bits)
        assert not sealed.provider.check_blocks(segment).damaged
    assert not missed


def rows_of(tier: BuiltTier, topic: str, **given: Any) -> dict[tuple[int, int], Any]:
    found = tieredstore.open(tier.url, state=tier.state).scan(topic, **given).to_arrow().to_pylist()
    return {(row["queue_id"], row["queue_offset"]): row for row in found}


@pytest.mark.parametrize("flips", FLIPS)
def test_readers_serve_nothing_as_it_was_not_and_tell(sealed: BuiltTier, flips: int) -> None:
    whole = {topic: rows_of(sealed, topic) for topic in ("orders", "over6")}
    sizes = [it for it in segments_of(sealed).items() if "rmq_sys_INDEX" not in it[0].path]
    chance = random.Random(16)
    for _ in range(flips):
        segment, size = chance.choice(sizes)
        position = chance.randrange(size)
        flip(sealed.path(segment), position)
        topic = segment.path.split("/")[1]
        what = f"{segment} at {position}"
        told: list[Finding] = []
        rows = rows_of(sealed, topic, on_finding=told.append)
        assert rows.items() <= whole[topic].items(), what
        assert sum(one.messages for one in told) >= len(whole[topic]) - len(rows), what
        assert any(one.kind == "block-checksum" for one in told), what
        with pytest.raises(Corrupt):
            rows_of(sealed, topic)
        _, findings = sealed.verify(with_state=True)
        blocks = [one for one in findings if one.kind == "block-checksum"]
        assert [(one.segment, one.position) for one in blocks] == [(segment, 0)], what
        assert blocks[0].expected != blocks[0].found
        flip(sealed.path(segment), position)
    assert sealed.damage(with_state=True) == []


def test_a_flipped_unit_costs_no_message_but_its_own(sealed: BuiltTier) -> None:
    """A changed bit in a unit affects no other message. The reader checks each unit against its
    record, and restores a changed tags code from the record."""
    whole = rows_of(sealed, "orders")
    of_queue = [it for it in segments_of(sealed) if it.path.endswith("orders/0") and it.type == 1]
    units = min(of_queue, key=lambda it: it.base_offset)
    for byte, lost in ((7, 1), (10, 1), (19, 0)):
        flip(sealed.path(units), 20 + byte)
        told: list[Finding] = []
        assert len(rows_of(sealed, "orders", on_finding=told.append)) == len(whole) - lost
        tagged = rows_of(sealed, "orders", tags="Tag1", on_finding=told.append)
        assert len(tagged) == sum(row["tags"] == "Tag1" for row in whole.values()) - lost
        flip(sealed.path(units), 20 + byte)


class TestSeal:
    def test_what_is_damaged_is_left_alone(self, tmp_path: Path) -> None:
        tier = small_tier(tmp_path)
        tier.metadata.flush()
        damaged = next(it for it in segments_of(tier) if it.path.endswith("orders/0"))
        flip(tier.path(damaged), 8)
        report = seal(tier)
        alone = [it for it in segments_of(tier) if it.path == damaged.path]
        assert report["sealed"]["left_alone"] == len(alone)
        assert report["damage"] > 0
        for segment in segments_of(tier):
            assert checksums_of(tier.path(segment)).exists() == (segment not in alone)

    def test_it_is_done_once_and_for_what_is_new(self, sealed: BuiltTier) -> None:
        assert seal(sealed)["sealed"]["segments"] == 0
        segment = next(iter(segments_of(sealed)))
        checksums_of(sealed.path(segment)).unlink()
        assert seal(sealed)["sealed"]["segments"] == 1
        assert seal(sealed)["uncovered_bytes"] == 0

    def test_a_topic_alone(self, tmp_path: Path) -> None:
        tier = small_tier(tmp_path)
        seal(tier, topic="over6")
        has = {it.path for it in segments_of(tier) if checksums_of(tier.path(it)).exists()}
        assert has == {f"{BROKER}/over6/0"}

    def test_no_writer_may_be_at_work(self, sealed: BuiltTier) -> None:
        with closing(PosixProvider(sealed.root / "tier", "cluster-a")) as other:
            epoch = other.acquire_writer(BROKER)
            with pytest.raises(Fenced, match="live writer"):
                seal(sealed)
            epoch.release()
        seal(sealed)

    def test_a_tier_that_keeps_its_checksums_elsewhere_needs_none(self, tmp_path: Path) -> None:
        tier = small_tier(tmp_path / "a")
        tier.metadata.flush()
        url = f"fsspec+file://{tmp_path / 'b'}?fencing=none"
        jobs.copy(tieredstore.open(tier.url), url, to_state=tmp_path / "s")
        done = jobs.verify(tieredstore.open(url), seal=True)["sealed"]
        assert (done["segments"], done["left_alone"]) == (0, 0)

    def test_checksums_of_other_bytes_are_noted(self, sealed: BuiltTier) -> None:
        units = next(it for it in segments_of(sealed) if it.type == 1)
        path = sealed.path(units)
        data = bytearray(path.read_bytes())
        data[19] ^= 1
        path.write_bytes(data)  # as somebody who made the file again
        _, findings = sealed.verify(with_state=True)
        assert "checksums-set-aside" in {one.kind for one in findings}


def test_a_copy_has_checksums_and_takes_over_no_damage(sealed: BuiltTier, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    tier = tieredstore.open(sealed.url, state=sealed.state)
    jobs.copy(tier, f"file://{target}", to_state=tmp_path / "state of copy")
    assert forget_checksums(target) == len(segments_of(sealed))
    log = next(it for it in segments_of(sealed) if it.type == 0)
    flip(sealed.path(log), 50)  # the port of a host: no checksum of Java's covers it
    report = jobs.copy(tier, f"file://{tmp_path / 'other'}", to_state=tmp_path / "another")
    assert "expected CRC-32" in str(report)
    again = tmp_path.glob(f"other/*/{log.path}/COMMIT_LOG/*{log.base_offset:020d}")
    assert all(path.read_bytes() == b"" for path in again)


class TestLargeBlocks:
    """Tests with queues of several blocks. Reads omit only the messages in a damaged block."""

    COUNT = 300

    def test_a_scan_leaves_out_what_touches_a_damaged_block(self, tmp_path: Path) -> None:
        builder = TierBuilder(tmp_path, messages_per_segment=self.COUNT, checksums=True)
        messages = [message("T", 0, n, properties={"p": "x" * 900}) for n in range(self.COUNT)]
        stored = builder.queue("T", 0, messages)
        builder.built.metadata.flush()
        whole = rows_of(builder.built, "T")
        log = next(it for it in segments_of(builder.built) if it.type == 0)
        flip(builder.built.path(log), BLOCK_BYTES + 5_000)
        told: list[Finding] = []
        rows = rows_of(builder.built, "T", on_finding=told.append)
        left_out = {
            (0, one.queue_offset)
            for one in stored
            if one.offset < 2 * BLOCK_BYTES and one.offset + len(one.record) + 16 > BLOCK_BYTES
        }
        assert rows == {place: row for place, row in whole.items() if place not in left_out}
        assert [(one.kind, one.position) for one in told] == [("block-checksum", BLOCK_BYTES)]
        assert sum(one.messages for one in told) == len(left_out)

    def test_the_fetcher_serves_the_rest(self, tmp_path: Path) -> None:
        (tmp_path / "tier").mkdir()
        with closing(PosixProvider(tmp_path / "tier", "C", fsync=False)) as provider:
            tier = Tier(provider=provider)
            fill(tier.queue(), 0, self.COUNT, body_size=900)
            file = tier.queue()
            whole = dict(bodies(file))
            log = next(one for one in provider.list() if one.id.type == 0)
            path = next((tmp_path / "tier").rglob("COMMIT_LOG/[!.]*"))
            assert log.size_bytes > 4 * BLOCK_BYTES
            flip(path, 2 * BLOCK_BYTES + 10)
            block = run(read_block(file, 0, self.COUNT, 1 << 30))
            assert (block.start, block.end) == (0, self.COUNT)
            found = dict(zip(block.offsets, block.messages, strict=True))
            assert all(bytes(one.body) == whole[offset] for offset, one in found.items())
            lost = sorted(set(whole) - set(found))
            assert block.bad_count == len(lost)
            assert 60 < len(lost) < 80
            assert lost == list(range(lost[0], lost[-1] + 1))

    def test_the_fetcher_serves_what_damaged_units_name(self, tmp_path: Path) -> None:
        (tmp_path / "tier").mkdir()
        with closing(PosixProvider(tmp_path / "tier", "C", fsync=False)) as provider:
            tier = Tier(provider=provider)
            fill(tier.queue(), 0, self.COUNT, tags="TagA")
            file = tier.queue()
            path = next((tmp_path / "tier").rglob("CONSUME_QUEUE/[!.]*"))
            for byte, bad in ((3, [40]), (9, [40]), (18, [])):
                flip(path, 20 * 40 + byte)
                block = run(read_block(file, 0, self.COUNT, 1 << 30))
                assert list(block.offsets) == [n for n in range(self.COUNT) if n not in bad]
                assert {one.tags_code for one in block.messages} == {block.messages[0].tags_code}
                flip(path, 20 * 40 + byte)
            assert run(read_block(file, 0, self.COUNT, 1 << 30)).bad_count == 0
