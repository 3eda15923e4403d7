"""Tests of two objects that contain the same bytes. A writer that deletes one of them and its
successor must keep the same object."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kit.chunks import GRACE_MS, LOG, UNITS, Process, Store
from tests.kit.gathered import attempt
from tieredstore.contracts.segment import Written

TEXT = b"0123456789" * 4


@pytest.fixture
def store() -> Store:
    return Store()


def collect_while_another_begins(store: Store, writer: Process) -> Process:
    """Delete a writer's garbage. Before the deletion takes effect, a new writer lists the tier and
    writes another segment. Return the new writer."""
    store.clock.advance(GRACE_MS + 1)
    delete = writer.client.delete
    heirs: list[Process] = []

    def stand_still(keys: Sequence[str]) -> None:
        if not heirs:
            heirs.append(store.process().take_over())
            assert heirs[0].open(UNITS).write(0, [b"u" * 20]) == Written(20)
        delete(keys)

    writer.client.delete = stand_still  # type: ignore[method-assign]
    attempt(lambda: writer.tier.run_maintenance(sweep=False))
    [heir] = heirs
    return heir


def test_a_sealed_segment_that_was_one_run_before(store: Store) -> None:
    writer = store.process().take_over()
    segment = writer.append(*[TEXT] * 4)
    writer.tier.run_maintenance(sweep=False)
    segment.seal()
    assert writer.tier.run_maintenance(sweep=False).sealed_count == 1
    assert [name[0] for name in store.names()] == [*"ccccc", "m", "s"]
    heir = collect_while_another_begins(store, writer)
    assert [name[0] for name in store.names()] == ["c", "s"]
    assert store.process().content() == TEXT * 4
    assert heir.content() == TEXT * 4
    listed = {found.id: found for found in heir.tier.list("broker-a")}
    assert (listed[LOG].size_bytes, listed[LOG].sealed) == (160, True)
