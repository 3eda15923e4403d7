"""A writer never deletes a group object that a new writer may start to use after the fence
check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.kit.chunks import GRACE_MS, Store
from tests.kit.gathered import (
    REGROUP_MS,
    Gathering,
    attempt,
    list_groups,
    queue_ids,
    read_queue,
)
from tests.kit.object_faults import ObjectFault
from tieredstore.contracts.segment import Companion, UnknownWrite
from tieredstore.errors import Unavailable

TEXT = b"0123456789"


class LateRuns:
    """A writer whose first group object of merged runs is created late, by `deliver`. Its first
    write to queue A also gets no reply. `at_next` is called before the next group object of merged
    runs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writer = Gathering(store)
        self.client = self.writer.process.client
        self.late: list[Callable[[], object]] = []
        self.at_next: Callable[[], object] | None = None
        self._make = self.client._make
        self.client._make = self._make_late  # type: ignore[method-assign]
        self.writer.write("A", "B")
        assert attempt(lambda: self.writer.keep(store)) == "Unavailable"
        self._leave_life()

    def _make_late(self, key: str, content: bytes, metadata: Mapping[str, str]) -> bool:
        if "/.groups/1." in key:
            if self.at_next is not None:
                self.at_next()
            elif not self.late:
                self.late.append(lambda: self._make(key, content, metadata))
            if self.at_next is None:
                raise Unavailable(f"{key}: no reply")
        return self._make(key, content, metadata)

    def _leave_life(self) -> None:
        self.client.fault_of = lambda _, key: ObjectFault.FAIL if "/u." in key else None
        log, queue = (self.writer.segment(id) for id in queue_ids("A"))  # noqa: A001
        place = Companion(queue, 2, [b"22"])
        result, _ = log.write_with(11, [b"more"], place)
        assert isinstance(result, UnknownWrite)
        self.client.fault_of = None
        self.look()

    def look(self) -> None:
        for id in queue_ids("A"):  # noqa: A001
            self.writer.segment(id).size()

    def deliver(self) -> None:
        for act in self.late:
            act()
        assert any(name.startswith("1.") for name in list_groups(self.store))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.mark.parametrize("when", ["before the next", "while the next is made"])
def test_no_group_goes_that_a_successor_begins_to_need_meanwhile(store: Store, when: str) -> None:
    """A paused deletion never removes a group object that the next writer has started to use."""
    runs = LateRuns(store)
    if when == "before the next":
        runs.deliver()
        runs.at_next = lambda: None
    else:

        def take_up() -> None:
            if runs.late:
                runs.deliver()
                runs.late.clear()
                for id in queue_ids("A"):  # noqa: A001
                    runs.writer.segment(id).state.manifest = None
                runs.look()

        runs.at_next = take_up
    runs.writer.keep(store)
    assert [name[0] for name in list_groups(store)] == ["0", "1", "1"]
    delete = runs.client.delete
    heirs: list[Gathering] = []

    def stand_still(keys: Sequence[str]) -> None:
        if not heirs:
            heirs.append(Gathering(store))
        delete(keys)

    runs.client.delete = stand_still  # type: ignore[method-assign]
    attempt(lambda: runs.writer.keep(store, GRACE_MS + REGROUP_MS))
    assert heirs
    for topic in "AB":
        assert read_queue(store, topic) == (topic.encode() + TEXT, b"01")
    for _ in range(3):
        heirs[0].keep(store, GRACE_MS + REGROUP_MS)
    for topic in "AB":
        assert read_queue(store, topic) == (topic.encode() + TEXT, b"01")


def test_such_groups_go_when_the_queue_has_longer_runs(store: Store) -> None:
    runs = LateRuns(store)
    runs.deliver()
    runs.at_next = lambda: None
    for _ in range(3):
        runs.writer.keep(store, GRACE_MS + REGROUP_MS)
    assert [name[0] for name in list_groups(store)] == ["1"]
    for topic in "AB":
        assert read_queue(store, topic) == (topic.encode() + TEXT, b"01")
