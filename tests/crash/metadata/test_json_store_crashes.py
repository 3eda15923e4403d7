"""The process crashes at every step of every file operation of the JSON metadata store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import orjson
import pytest

from tests.kit.simulated_files import SimulatedFiles
from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.disk.file_operations import FileOperations
from tieredstore.metadata.json_format import Limits
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.testing.faults import SimulatedCrash

PATH = Path("/store/config/tieredStoreMetadata.json")
LIMITS = Limits(max_journal_bytes=500)

Fact: TypeAlias = tuple[object, ...]
"""A fact in the metadata: its kind, the key of the entry, and its value."""


def open_store(files: FileOperations, is_journaled: bool) -> DefaultMetadataStore:
    """Open the metadata store. `is_journaled`: whether the journal may contain creations and
    deletions."""
    store = DefaultMetadataStore(PATH, "broker-a", ManualClock(), operations=files, limits=LIMITS)
    store.load()
    store.journal_structure(is_wanted=is_journaled)
    return store


class Promises:
    """Changes that must exist because their calls completed, and changes that may exist because
    their calls were interrupted."""

    def __init__(self) -> None:
        self.structure: list[frozenset[Fact]] = [frozenset()]  # the last one is acknowledged
        self.next: frozenset[Fact] | None = None
        self.sizes: dict[int, set[int]] = {}
        self.last_size: dict[int, int] = {}
        self.next_size: tuple[int, int] | None = None

    def possible(self) -> list[frozenset[Fact]]:
        return [self.structure[-1], *([self.next] if self.next is not None else [])]


def structure(store: DefaultMetadataStore) -> frozenset[Fact]:
    return frozenset(
        [("topic", topic.topic, topic.topic_id) for topic in store.topics()]
        + [("segment", s.base_offset, s.status) for s in store.segments()]
        + [("queue", q.topic, q.queue_id) for t in "TU" for q in store.queues(t)]
    )


def segment(base: int, size: int = 0, status: int = 0) -> FileSegmentMetadata:
    return FileSegmentMetadata(
        "broker-a/T/0",
        FileSegmentType.COMMIT_LOG,
        base,
        status=status,
        size=size,
        create_timestamp_ms=1,
    )


def scenario(files: FileOperations, promises: Promises, is_journaled: bool) -> None:
    store = open_store(files, is_journaled)
    has: set[Fact] = set()

    def change(adds: Iterable[Fact], drops: Iterable[Fact], call: Callable[[], object]) -> None:
        nonlocal has
        promises.next = frozenset((has - set(drops)) | set(adds))
        call()
        has = set(promises.next)
        promises.structure.append(promises.next)
        promises.next = None

    def grow(base: int, size: int) -> None:
        promises.sizes.setdefault(base, {0}).add(size)
        promises.next_size = (base, size)
        store.put_segment(segment(base, size))
        promises.last_size[base] = size
        promises.next_size = None

    change([("topic", "T", 0)], [], lambda: store.add_topic("T"))

    def batch() -> None:
        with store.batch():
            store.add_queue("T", 0)
            store.put_segment(segment(0))

    change([("queue", "T", 0), ("segment", 0, 0)], [], batch)
    for size in (10, 20, 30):
        grow(0, size)
    change(
        [("segment", 0, 1)],
        [("segment", 0, 0)],
        lambda: store.put_segment(segment(0, 30, status=1)),
    )
    change([("segment", 30, 0)], [], lambda: store.put_segment(segment(30)))
    grow(30, 5)
    change([("topic", "U", 1)], [], lambda: store.add_topic("U"))
    for size in range(6, 12):  # past the journal's limit
        grow(30, size)
    change([], [("segment", 0, 1)], lambda: store.delete_segment(segment(0).id))
    store.flush()
    grow(30, 12)
    change([], [("topic", "U", 1)], lambda: store.delete_topic("U"))
    store.close()


def list_cases(each: int = 1) -> list[tuple[int, bool]]:
    """Return the tested cases: the step at which the process crashes, and whether the journal may
    contain creations and deletions. `each`: only every `each`-th step is tested."""
    cases = []
    for is_journaled in (False, True):
        files = SimulatedFiles()
        scenario(files, Promises(), is_journaled)
        cases += [(step, is_journaled) for step in range(1, files.steps + 1, each)]
    return cases


def crash_at(step: int, is_journaled: bool) -> tuple[SimulatedFiles, Promises]:
    files, promises = SimulatedFiles(crash_at=step), Promises()
    with pytest.raises(SimulatedCrash):
        scenario(files, promises, is_journaled)
    return files, promises


def check_structure(
    store: DefaultMetadataStore, promises: Promises, *, in_batch: bool = True
) -> None:
    found = structure(store)
    possible = promises.possible()
    if in_batch and promises.next is not None:
        # a batch groups writes, it is no transaction: it may be there in part
        assert possible[0] & possible[1] <= found <= possible[0] | possible[1]
    else:
        assert found in possible


@pytest.mark.parametrize(("step", "is_journaled"), list_cases())
def test_l01_after_a_kill_everything_acknowledged_is_there(step: int, is_journaled: bool) -> None:
    files, promises = crash_at(step, is_journaled)
    store = open_store(files.after_kill(), is_journaled)
    check_structure(store, promises)
    for found in store.segments():
        size = promises.last_size.get(found.base_offset, 0)
        assert found.size == size or (found.base_offset, found.size) == promises.next_size
    again = open_store(files.after_kill(), is_journaled)
    assert structure(again) == structure(store)


@pytest.mark.parametrize(("step", "is_journaled"), list_cases())
def test_l03_after_power_loss_what_was_created_is_there_and_nothing_is_invented(
    step: int, is_journaled: bool
) -> None:
    files, promises = crash_at(step, is_journaled)
    states = list(files.after_power_loss())
    assert states
    for state in states:
        # Java deletes a main file that it cannot read, so there must always be a good one
        assert PATH in state.names or len(promises.structure) == 1
        for name in (PATH, PATH.with_name(f"{PATH.name}.bak")):
            if state.size(name):
                orjson.loads(state.read(name))  # the former or the new one, never mixed
        store = open_store(state, is_journaled)
        check_structure(store, promises)
        for found in store.segments():
            assert found.size in promises.sizes.get(found.base_offset, {0})


@pytest.mark.parametrize(("step", "is_journaled"), list_cases(3))
def test_l01_recovery_goes_on_after_a_crash(step: int, is_journaled: bool) -> None:
    files, _ = crash_at(step, is_journaled)
    after = files.after_kill()
    store = open_store(after, is_journaled)
    store.add_topic("V")
    store.put_segment(segment(90))
    store.put_segment(segment(90, 7))
    again = open_store(after.after_kill(), is_journaled)
    assert structure(again) == structure(store)
    found = again.segment(segment(90).id)
    assert found is not None
    assert found == replace(segment(90, 7), create_timestamp_ms=1)


@pytest.mark.parametrize(("step", "is_journaled"), list_cases(5))
def test_l01_a_crash_of_the_recovery_is_survived_too(step: int, is_journaled: bool) -> None:
    files, promises = crash_at(step, is_journaled)
    for second in range(1, 12):
        after = files.after_kill()
        after.crash_at = second
        with contextlib.suppress(SimulatedCrash):
            open_store(after, is_journaled).flush()
        check_structure(open_store(after.after_kill(), is_journaled), promises)
