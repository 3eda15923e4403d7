"""Stateful model of a segment, a bytearray, that Hypothesis compares with a provider."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tieredstore.contracts.segment import (
    FencedWrite,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentProvider,
    UnknownWrite,
    Written,
)
from tieredstore.errors import Corrupt, Invalid

_buffers = st.lists(st.binary(max_size=40), max_size=4)
Reopen = Callable[[object], SegmentProvider]
"""Function that reopens the tier of a provider, as another process would."""


class SegmentMachine(RuleBasedStateMachine):
    """State machine of a segment, with a bytearray as its model."""

    def __init__(self, provider: SegmentProvider, reopen: Reopen, id: SegmentId) -> None:
        super().__init__()
        self.first = self.provider = provider
        self.reopen = reopen
        self.id = id
        self.segment: FileSegment = provider.open(id)
        self.model = bytearray()
        self.sealed = False

    @rule(buffers=_buffers)
    @precondition(lambda self: not self.sealed)
    def append(self, buffers: list[bytes]) -> None:
        data = b"".join(buffers)
        position = len(self.model)
        assert self.segment.write(position, buffers) == Written(position + len(data))
        self.model += data

    @rule(buffers=_buffers, share=st.floats(0, 1))
    @precondition(lambda self: not self.sealed and len(self.model) > 0)
    def write_again(self, buffers: list[bytes], share: float) -> None:
        position = int(share * (len(self.model) - 1))
        data = b"".join(buffers)
        result = self.segment.write(position, buffers)
        if self.provider.capabilities.rewritable:
            assert result == Written(position + len(data))
            self.model[position:] = data
        elif isinstance(result, Written):
            assert self.model[position : position + len(data)] == data
        else:
            assert isinstance(result, (FencedWrite, UnknownWrite))

    @rule(gap=st.integers(1, 100))
    @precondition(lambda self: not self.sealed)
    def write_beyond_the_end(self, gap: int) -> None:
        with pytest.raises(Invalid):
            self.segment.write(len(self.model) + gap, [b"x"])

    @rule(start=st.integers(0, 200), length=st.integers(0, 200))
    def read(self, start: int, length: int) -> None:
        expected = bytes(self.model[start : start + length])
        at_hand = self.segment.read_nowait(start, length)
        assert at_hand is None or at_hand == expected
        if len(expected) < length:
            with pytest.raises(Corrupt):
                self.segment.read(start, length)
        else:
            assert self.segment.read(start, length) == expected

    @rule()
    def open_again(self) -> None:
        if not self.sealed:
            self.segment = self.provider.open(self.id)

    @rule()
    def open_from_the_listing(self) -> None:
        if not self.sealed:
            for listing in self.provider.list(self.id.path):
                self.segment = self.provider.open(self.id, listing)

    @rule()
    def open_in_another_process(self) -> None:
        if not self.sealed:
            self.segment.close()
            self.leave()
            self.provider = self.reopen(self.first)
            self.segment = self.provider.open(self.id)

    @rule()
    def close(self) -> None:
        self.segment.close()

    @rule()
    def seal(self) -> None:
        self.segment.seal()
        self.sealed = True

    @rule()
    def delete(self) -> None:
        self.segment.delete()
        self.segment = self.provider.open(self.id)
        self.model.clear()
        self.sealed = False

    @invariant()
    def size_agrees(self) -> None:
        assert self.segment.size() == len(self.model)
        listed = {found.id: found.size_bytes for found in self.provider.list(self.id.path)}
        assert listed.get(self.id, 0) == len(self.model)

    def teardown(self) -> None:
        self.segment.delete()
        self.leave()

    def leave(self) -> None:
        if self.provider is not self.first:
            self.provider.close()


def check_against_model(
    provider: SegmentProvider, reopen: Reopen, *, max_examples: int = 50
) -> None:
    """Run sequences of calls on a provider and on the model, and compare the results. Each example
    uses its own segment. Raises AssertionError with the shortest sequence whose results differ."""
    numbers = itertools.count()

    class Machine(SegmentMachine):
        def __init__(self) -> None:
            path = f"model/Topic{next(numbers)}/0"
            super().__init__(provider, reopen, SegmentId(path, FileSegmentType.COMMIT_LOG, 0))

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
