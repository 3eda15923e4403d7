"""The queue checker reports each fault that a test adds to a recorded history of clients, and
nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.queue_checker.checker import (
    LATEST_MS,
    Delivered,
    History,
    Outage,
    Place,
    Pop,
    Sent,
    check_history,
)

SENT = [
    *(Sent("a", number, True, Place(0, number * 2)) for number in range(3)),
    *(Sent("b", number, True, Place(0, number * 2 + 1)) for number in range(3)),
    *(Sent("c", number, True, Place(1, number)) for number in range(2)),
    Sent("c", 2, False),
]
READ = {
    0: [Delivered(f"{'ab'[offset % 2]}-{offset // 2}", Place(0, offset)) for offset in range(6)],
    1: [Delivered(f"c-{offset}", Place(1, offset)) for offset in range(2)],
}
GOOD = History(SENT, READ, [*READ[0], *READ[0][2:], *READ[1]])
IN_DOUBT = Delivered("c-2", Place(1, 2))


def with_queue(queue_id: int, *queue: Delivered) -> History:
    return replace(GOOD, read={**READ, queue_id: list(queue)})


def swapped(queue: list[Delivered]) -> list[Delivered]:
    """Swap the bodies of the first two messages of group a."""
    first, second = queue[0], queue[2]
    new = {0: Delivered(second.body, first.place), 2: Delivered(first.body, second.place)}
    return [new.get(at, one) for at, one in enumerate(queue)]


def without_places(queue: list[Delivered]) -> list[Delivered]:
    return [Delivered(one.body) for one in queue]


def test_a_queue_that_keeps_its_promises_passes_with_duplicates_and_doubts() -> None:
    assert check_history(GOOD) == []
    assert check_history(with_queue(1, *READ[1], IN_DOUBT)) == []
    assert check_history(replace(GOOD, consumed=None)) == []
    assert check_history(replace(GOOD, consumed=without_places([*READ[1], *READ[0]]))) == []


@pytest.mark.parametrize(
    ("history", "found"),
    [
        (with_queue(1, READ[1][0]), "c-1: acknowledged"),
        (replace(GOOD, consumed=READ[0]), "c-0: acknowledged at Place(queue_id=1, queue_offset=0)"),
        (with_queue(1, *READ[1], Delivered("d-0", Place(1, 2))), "d-0: .* sent by nobody"),
        (with_queue(1, *READ[1], Delivered("c-1", Place(1, 2))), "c-1: at .* and at"),
        (with_queue(1, READ[1][0], Delivered("c-1", Place(1, 2))), "expected offset 1"),
        (with_queue(1, READ[1][0], READ[1][0], READ[1][1]), "expected offset 1"),
        (with_queue(0, *swapped(READ[0])), "a-0: behind a-1 in queue 0"),
        (with_queue(0, *swapped(READ[0])), "has a-1, had a-0"),
        (
            with_queue(1, *READ[1], Delivered("a-2", Place(1, 2))),
            "a-2: in queue 1, others of a in 0",
        ),
        (
            replace(GOOD, consumed=[READ[0][2], READ[0][0], *READ[0][1:], *READ[1]]),
            "a-0: first given after a-1",
        ),
    ],
)
def test_each_broken_promise_is_told(history: History, found: str) -> None:
    import re

    pattern = found.replace("(", r"\(").replace(")", r"\)") if "Place" in found else found
    assert any(re.search(pattern, line) for line in check_history(history)), check_history(history)


LEFT = Pop("a-0", 1_000, 5_000, False)
DOWN = Outage(4_000, 90_000)


def done(popped_ms: int) -> Pop:
    return Pop("a-0", popped_ms, popped_ms + 4_000, True)


@pytest.mark.parametrize(
    ("pops", "outages", "found"),
    [
        ([LEFT, done(5_000)], (), ""),
        ([LEFT._replace(is_done=None)], (), ""),
        ([LEFT, done(4_499)], (), "due at 5000, popped again at 4499"),
        ([LEFT, done(4_499)], (Outage(2_000, 3_000),), ""),
        ([LEFT], (), "never popped again"),
        ([done(1_000), done(9_000)], (), "acknowledged, and popped again"),
        ([LEFT, done(5_001 + LATEST_MS)], (), "only at"),
        ([LEFT, done(90_000 + LATEST_MS)], (DOWN,), ""),
        ([LEFT, done(90_001 + LATEST_MS)], (DOWN,), "only at"),
    ],
)
def test_deliveries_of_popped_messages(
    pops: list[Pop], outages: tuple[Outage, ...], found: str
) -> None:
    lines = check_history(replace(GOOD, pops=pops, outages=outages))
    assert [found in line for line in lines] == [True] * bool(found), lines


def test_a_consumer_that_pops_needs_no_order() -> None:
    late = [READ[0][2], READ[0][0], *READ[0][1:], *READ[1]]
    assert check_history(replace(GOOD, consumed=late, is_orderly=False)) == []
