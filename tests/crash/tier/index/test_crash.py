"""Tests of the index after the process or the machine stopped between any two steps."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.index import Node, find, header_of, offsets_of, put
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.disk.sync import sync_file
from tieredstore.errors import Unavailable
from tieredstore.testing.faults import (
    CrashPoint,
    Faults,
    FaultyMetadataStore,
    FaultyProvider,
    crash_points,
    run_until_crash,
)
from tieredstore.tier.index import (
    IndexStoreService,
    local_file,
    segments,
    service,
    writer,
)
from tieredstore.tier.index.watermarks import save_watermarks

QUEUES = [(1, 0), (1, 1), (2, 0)]
BATCH = 11
BATCHES = 5
SECTOR = 512


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace syncs by no-ops. The tests simulate what syncs do, so real ones would only take
    time."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


class CrashingNode(Node):
    """A node whose provider, metadata and local files share one count of operations and crash
    together."""

    def __init__(self, root: Path, faults: Faults, **rest: Any) -> None:
        super().__init__(root, **rest)
        self.faults = faults
        self.synced: dict[Path, bytes] = {}

    def metadata(self) -> Any:
        return FaultyMetadataStore(super().metadata(), self.faults)

    @contextmanager
    def patched(self) -> Iterator[None]:
        def changing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **rest: Any) -> Any:
                return self.faults.change(name, lambda: real(*args, **rest))

            return call

        def sync(fd: int) -> None:
            def action() -> None:
                sync_file(fd)
                path = Path(f"/proc/self/fd/{fd}").readlink()
                self.synced[path] = path.read_bytes()

            self.faults.change("sync", action)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segments, "PIECE_BYTES", 300)
            patch.setattr(service, "CHECKPOINT_BATCHES", 4)
            patch.setattr(local_file, "sync_file", sync)
            patch.setattr(writer, "save_watermarks", changing("watermarks", save_watermarks))
            patch.setattr(segments, "sync_file", changing("sync compacted", sync_file))
            made = local_file.LocalIndexStoreFile
            patch.setattr(made, "destroy", changing("destroy", made.destroy))
            patch.setattr(made, "put", changing("put", made.put))
            real_create = made.create
            patch.setattr(made, "create", staticmethod(changing("create", real_create)))
            yield


def keys_of(number: int) -> tuple[tuple[int, int], list[str], int]:
    """Return the queue, the keys and the first offset of batch `number`. Each queue's offsets are
    contiguous."""
    queue = QUEUES[number % len(QUEUES)]
    first = number // len(QUEUES) * BATCH * 100
    return queue, [f"key-{number}-{row}" for row in range(BATCH)], first


def put_batch(index: IndexStoreService, number: int) -> None:
    (topic_id, queue_id), keys, first = keys_of(number)
    put(index, keys, topic_id=topic_id, queue_id=queue_id, first_offset=first)


def mark_first(index: IndexStoreService) -> None:
    """Write a watermark for each queue, as the dispatcher does before it writes a queue's first
    byte."""
    for queue in QUEUES:
        if index.find_indexed_end(*queue) is None:
            index.mark_indexed(*queue, 0)
    index.checkpoint()


def found_in(index: IndexStoreService, number: int) -> list[bool]:
    (topic_id, _), keys, first = keys_of(number)
    return [
        offsets_of(find(index, key, topic_id=topic_id)) == [first + row * 100]
        for row, key in enumerate(keys)
    ]


class Scenario:
    """A process that puts keys, makes checkpoints, uploads and stops. `done`: number of batches
    that were put before the crash."""

    def __init__(self, root: Path, sketch: bool) -> None:
        self.root = root
        self.provider = chunk_provider() if sketch else None
        self.done = 0
        self.node: CrashingNode | None = None

    def run(self, faults: Faults) -> None:
        node = self.node = CrashingNode(self.root, faults, provider=self.provider)
        node.provider = FaultyProvider(node.provider, faults)
        with node.patched():
            index = node.open()
            mark_first(index)
            for number in range(BATCHES):
                put_batch(index, number)
                self.done = number + 1
                if number == 2:
                    index.tick()
            index.stop()


def redispatch(index: IndexStoreService) -> None:
    """Put all messages above the watermarks again, as the dispatcher does."""
    mark_first(index)
    for number in range(BATCHES):
        (topic_id, queue_id), _, first = keys_of(number)
        mark = index.find_indexed_end(topic_id, queue_id)
        assert mark is not None
        if first >= mark:
            put_batch(index, number)
        else:
            assert mark >= first + BATCH * 100, "a watermark inside a batch"


def items_in(node: Node) -> int:
    """Return the items of all index files, local and uploaded."""
    total = 0
    for entry in node.metadata().segments("broker-a/rmq_sys_INDEX/0", FileSegmentType.INDEX):
        if entry.size == 0:
            continue  # announced, nothing recorded
        segment = node.provider.open(entry.id)
        total += int.from_bytes(segment.read(24, 4), "big")
    return total + sum(header_of(node.directory / name)[4] for name in node.local_names())


def check_segments(node: Node) -> None:
    """Check that the segments are contiguous and not empty, that each was uploaded from a different
    file, and that each has the size in the metadata."""
    end, begins = 0, []
    for entry in node.metadata().segments("broker-a/rmq_sys_INDEX/0", FileSegmentType.INDEX):
        assert entry.base_offset == end
        assert entry.size > 28 + 80
        assert node.provider.open(entry.id).size() == entry.size
        begins.append(entry.begin_timestamp_ms)
        end += entry.size
    assert begins == sorted(set(begins))


def lose_power(node: CrashingNode, seed: int) -> None:
    """Simulate a power loss. Any subset of the unsynced sectors may have reached the disk."""
    choice = random.Random(seed)
    for name in node.local_names():
        path = node.directory / name
        current = path.read_bytes()
        old = node.synced.get(path, b"").ljust(len(current), b"\0")
        mixed = bytearray()
        for start in range(0, len(current), SECTOR):
            source = choice.choice((current, old))
            mixed += source[start : start + SECTOR]
        path.write_bytes(mixed)


EVERY = [3, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the crash points. The daily run tests every third point, the slow run all."""
TORN = [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 40))]
"""Seeds of the random choices of torn sectors."""


def points(tmp_path_factory: pytest.TempPathFactory, sketch: bool) -> list[CrashPoint]:
    return crash_points(Scenario(tmp_path_factory.mktemp("dry"), sketch).run)


def recovered(scenario: Scenario) -> Node:
    """Return a node without faults on the same directories."""
    return Node(scenario.root, provider=scenario.provider)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("sketch", [False, True])
def test_l01_a_killed_process_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, sketch: bool, every: int
) -> None:
    for point in points(tmp_path_factory, sketch)[::every]:
        scenario = Scenario(tmp_path_factory.mktemp("run"), sketch)
        run_until_crash(scenario.run, point)
        node = recovered(scenario)
        index = node.open()
        for number in range(scenario.done):
            assert all(found_in(index, number)), f"{point}: batch {number}"
        redispatch(index)
        assert items_in(node) == BATCHES * BATCH, point
        index = node.open()  # killed again
        redispatch(index)
        assert items_in(node) == BATCHES * BATCH, point
        index.stop()
        index = node.open()
        for number in range(BATCHES):
            assert all(found_in(index, number)), f"{point}: batch {number}"
        assert node.local_names() == [], point
        check_segments(node)


@pytest.mark.parametrize("every", EVERY)
def test_l01_power_loss_keeps_what_is_below_the_watermarks(
    tmp_path_factory: pytest.TempPathFactory, every: int
) -> None:
    for seed, point in enumerate(points(tmp_path_factory, False)[::every]):
        scenario = Scenario(tmp_path_factory.mktemp("run"), False)
        run_until_crash(scenario.run, point)
        assert scenario.node is not None
        lose_power(scenario.node, seed)
        node = recovered(scenario)
        index = node.open()
        for number in range(scenario.done):
            (topic_id, queue_id), _, first = keys_of(number)
            if first < (index.find_indexed_end(topic_id, queue_id) or 0):
                assert all(found_in(index, number)), f"{point}: batch {number}"
        redispatch(index)
        for _ in range(2):
            for number in range(BATCHES):
                assert all(found_in(index, number)), f"{point}: batch {number}"
            index.stop()
            index = node.open()
        check_segments(node)


def test_l05_a_disk_that_fails_at_any_step_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A disk that fails once at any step loses no key. The process continues after the failure, and
    a new process starts later."""
    from tieredstore.testing.faults import Fault

    dry = Faults()
    Scenario(tmp_path_factory.mktemp("dry"), False).run(dry)
    for failing in range(1, len(dry.calls) + 1):
        scenario = Scenario(tmp_path_factory.mktemp("run"), False)
        with suppress(Unavailable):
            scenario.run(Faults({failing: Fault.FAIL}))
        node = recovered(scenario)
        index = node.open()
        redispatch(index)
        index.stop()
        index = node.open()
        for number in range(BATCHES):
            assert all(found_in(index, number)), f"{dry.calls[failing - 1]}: batch {number}"
        check_segments(node)


@pytest.mark.parametrize("seed", TORN)
def test_l02_a_large_file_torn_at_any_sectors_is_made_right(tmp_path: Path, seed: int) -> None:
    """A large index file is repaired after a torn write, of which only some sectors reached the
    disk. Synced items are found, and unsynced items can be put again."""
    node = Node(tmp_path, slots=97, max_items=2000)
    index = node.open()
    choice = random.Random(seed)
    synced = choice.randrange(0, 900)
    index.mark_indexed(1, 0, 0)
    put(index, [f"key-{number}" for number in range(synced)])
    index.checkpoint()
    [name] = node.local_names() or ["none"]
    path = node.directory / name
    old = path.read_bytes() if path.exists() else b""
    total = synced + choice.randrange(1, 900)
    put(index, [f"key-{number}" for number in range(synced, total)], first_offset=synced * 100)
    [name] = node.local_names()
    path = node.directory / name
    current = path.read_bytes()
    old = old.ljust(len(current), b"\0")
    mixed = b"".join(
        choice.choice((current, old))[start : start + SECTOR]
        for start in range(0, len(current), SECTOR)
    )
    path.write_bytes(mixed)
    index = node.open()
    assert index.problems == []
    for number in range(synced):
        assert offsets_of(find(index, f"key-{number}")) == [number * 100]
    mark = (index.find_indexed_end(1, 0) or 0) // 100
    assert mark == synced
    put(index, [f"key-{number}" for number in range(mark, total)], first_offset=mark * 100)
    for _ in range(2):
        for number in range(total):
            assert offsets_of(find(index, f"key-{number}")) == [number * 100]
        index.stop()
        index = node.open()
