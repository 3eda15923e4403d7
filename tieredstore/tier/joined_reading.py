"""Several readings driven as one, so that what they read in a step goes out at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tieredstore.errors import TieredStoreError
from tieredstore.tier.reading import Reading, SegmentRead

T = TypeVar("T")

_Live = dict[int, tuple[Reading[T], list[SegmentRead]]]


def join_readings(readings: Sequence[Reading[T]]) -> Reading[list[T | TieredStoreError]]:
    """Join readings into one that gives the outcome of each, in order: its value, or the error that
    it raised.

    When a step fails, its readings go on one by one, so that each error meets the reading that it
    belongs to.
    """
    if len(readings) == 1:
        try:
            return [(yield from readings[0])]
        except TieredStoreError as error:
            return [error]
    outcomes: dict[int, T | TieredStoreError] = {}
    live: _Live[T] = {}
    for index, reading in enumerate(readings):
        _advance(index, reading, None, live, outcomes)
    while live:
        current, live = live, {}
        step = [read for _, reads in current.values() for read in reads]
        try:
            found = yield step
        except TieredStoreError:
            for index, (reading, reads) in current.items():
                outcomes[index] = yield from _do_alone(reading, reads)
            continue
        at = 0
        for index, (reading, reads) in current.items():
            _advance(index, reading, found[at : at + len(reads)], live, outcomes)
            at += len(reads)
    return [outcomes[index] for index in range(len(readings))]


def _advance(
    index: int,
    reading: Reading[T],
    found: list[memoryview] | None,
    live: _Live[T],
    outcomes: dict[int, T | TieredStoreError],
) -> None:
    try:
        step = next(reading) if found is None else reading.send(found)
        live[index] = reading, step
    except StopIteration as stop:
        outcomes[index] = stop.value
    except TieredStoreError as error:
        outcomes[index] = error


def _do_alone(reading: Reading[T], step: list[SegmentRead]) -> Reading[T | TieredStoreError]:
    try:
        while True:
            try:
                found = yield step
            except TieredStoreError as error:
                step = reading.throw(error)
            else:
                step = reading.send(found)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except TieredStoreError as error:
        return error
