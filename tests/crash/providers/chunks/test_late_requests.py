"""Requests of a fenced writer take effect while its successor continues, or later. Each test is a
case in which an object store could lose or mix bytes. The second writer takes over and writes
during each request of the first writer in turn. This request takes effect before the switch, after
it, last of all, or twice. During the switch, some or all of the clocks advance by one second to
twenty minutes. Every reader and every later writer finds exactly the bytes that the second writer
acknowledged."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from tests.kit.late_requests import CHANGING, HOWS
from tests.kit.lives import GRACE_MS, QUEUE, SWITCH_MS, WHICH, Broker, Tier
from tieredstore.errors import Fenced, TieredStoreError
from tieredstore.testing.provider.samples import content

OLD = [content(20, seed) for seed in range(1, 5)]
NEW = [content(20, seed) for seed in range(11, 17)]
EVERY = [4, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the tested combinations of switch and request. The slow run tests every combination.
The daily run tests every fourth combination. These still include each request, each length of the
pause and each set of clocks."""


@dataclass(frozen=True)
class Scenario:
    """Work of two writers. `prepare`: work of the first writer before the second one takes over.
    `act`: work of the first writer in which one request takes effect late. `succeed`: work of the
    second writer. `is_made_anew`: the segment is recreated, so the first writer's bytes must not
    exist afterwards. `looks`: the first writer makes a fence check before it counts bytes as
    written."""

    prepare: Callable[[Broker, Tier], object]
    act: Callable[[Broker], object]
    succeed: Callable[[Broker], object]
    stamps_beginning: bool = False
    ahead_ms: int = 0
    is_made_anew: bool = True
    looks: bool = True


def requests_of(scenario: Scenario) -> list[str]:
    tier = Tier(stamps_beginning=scenario.stamps_beginning)
    first = tier.writer("zombie", looks=scenario.looks).begin()
    scenario.prepare(first, tier)
    first.client.watch()
    scenario.act(first)
    return [*first.client.requests]


def run(scenario: Scenario, number: int, how: str, switch_ms: int, which: tuple[str, ...]) -> None:
    tier = Tier(stamps_beginning=scenario.stamps_beginning)
    zombie = tier.writer("zombie", looks=scenario.looks).begin()
    scenario.prepare(zombie, tier)
    successor = tier.writer("successor", ahead_ms=scenario.ahead_ms)
    clocks = {"server": tier.server, "zombie": zombie.clock, "successor": successor.clock}

    def switch() -> None:
        for name in which:
            clocks[name].advance(switch_ms)
        try:
            successor.begin()
            scenario.succeed(successor)
        except TieredStoreError as error:
            raise AssertionError(f"the successor failed: {error}") from error

    zombie.client.watch(number, how, switch)
    with suppress(TieredStoreError):
        scenario.act(zombie)
    assert zombie.client.is_over, f"there is no request {number}"
    zombie.client.deliver()
    if not scenario.is_made_anew:
        told = zombie.told[QUEUE]
        assert successor.told[QUEUE][: len(told)] == told, "the zombie acknowledged other bytes"
    assert_holds(tier, successor)
    successor.append(b"behind that")
    assert_holds(tier, successor)
    successor.collect(tier)
    assert_holds(tier, successor)
    third = tier.writer("third").begin()
    assert third.told == successor.told
    third.append(b"and that")
    third.collect(tier)
    assert_holds(tier, third)
    with pytest.raises(Fenced):
        zombie.epoch.confirm()


def assert_holds(tier: Tier, writer: Broker) -> None:
    told = writer.told[QUEUE]
    for who, found in (("a reader", tier.content()), (writer.name, writer.content())):
        assert found == told, f"{writer.name} acknowledged {told!r}, but {who} gets {found!r}"


def run_all(scenario: Scenario, how: str, every: int) -> None:
    requests = requests_of(scenario)
    turns = itertools.count()
    for number, request in enumerate(requests, 1):
        if how in {"late", "twice"} and request.partition(" ")[0] not in CHANGING:
            continue
        for switch_ms in SWITCH_MS:
            for which in WHICH:
                if next(turns) % every:
                    continue
                try:
                    run(scenario, number, how, switch_ms, which)
                except (AssertionError, TieredStoreError) as error:
                    where = f"{how} request {number} of {len(requests)}, {request}"
                    raise AssertionError(
                        f"{where}, {switch_ms} ms of {'+'.join(which)}: {error}"
                    ) from error


def delete_and(*pieces: bytes) -> Callable[[Broker], object]:
    return lambda broker: broker.delete().append(*pieces)


def prepare_sealed(broker: Broker, _: Tier) -> None:
    broker.append(content(120, 1), content(120, 2)).seal()


def prepare_garbage(broker: Broker, tier: Tier) -> None:
    broker.append(*OLD).keep(sweep=False)
    for clock in (tier.server, broker.clock):
        clock.advance(2 * GRACE_MS)


def prepare_write(broker: Broker, _: Tier) -> None:
    broker.append(OLD[0])


def prepare_writes(broker: Broker, _: Tier) -> None:
    broker.append(*OLD)


def merge(broker: Broker) -> None:
    broker.keep(sweep=False)


def append_new(broker: Broker) -> None:
    broker.append(*NEW)


def append_and_merge(broker: Broker) -> None:
    broker.append(*NEW).keep()
    broker.restart().keep()


@pytest.mark.parametrize("stamps_beginning", [False, True], ids=["end", "beginning"])
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("how", HOWS)
def test_w08_the_whole_of_a_sealed_segment_is_not_that_of_the_next_life(
    how: str, stamps_beginning: bool, every: int
) -> None:
    """A sealed segment's object that is created late does not become part of the segment's next
    generation. The object may be a multipart upload, whose creation time is the beginning of the
    upload."""
    run_all(Scenario(prepare_sealed, merge, delete_and(*NEW), stamps_beginning), how, every)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("how", HOWS)
def test_w08_a_merged_run_is_not_one_of_the_next_life(how: str, every: int) -> None:
    """A late merged run does not become part of the segment's next generation, although the writes
    of both generations have the same lengths and boundaries."""
    run_all(Scenario(prepare_writes, merge, delete_and(*NEW)), how, every)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("how", HOWS)
def test_w08_garbage_that_goes_late_is_not_the_next_life(how: str, every: int) -> None:
    """A late deletion of garbage deletes no object of the segment's next generation. A client can
    cause late deletions: it repeats a deletion after each time-out, minutes after the fence
    check."""
    run_all(Scenario(prepare_garbage, merge, delete_and(*NEW)), how, every)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("how", HOWS)
def test_w01_a_late_seal_does_not_close_what_the_successor_writes(how: str, every: int) -> None:
    run_all(Scenario(prepare_write, Broker.seal, append_new, is_made_anew=False), how, every)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("how", HOWS)
def test_w01_a_late_deletion_takes_nothing_of_what_the_successor_writes(
    how: str, every: int
) -> None:
    run_all(Scenario(prepare_writes, Broker.delete, append_new), how, every)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("how", HOWS)
def test_w08_a_late_deletion_takes_nothing_of_the_next_life(how: str, every: int) -> None:
    run_all(Scenario(prepare_writes, Broker.delete, delete_and(*NEW)), how, every)


AHEAD = Scenario(
    prepare_write,
    lambda broker: broker.append(OLD[1]),
    append_and_merge,
    ahead_ms=GRACE_MS + 10_000,
    is_made_anew=False,
)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("how", HOWS)
def test_w07_gateways_whose_clocks_differ_lose_no_write_of_a_paused_writer(
    how: str, every: int
) -> None:
    """Gateways with different clocks lose no write of a paused writer. By the clock of the
    successor's gateway, every object is immediately old enough for garbage collection."""
    run_all(AHEAD, how, every)


def test_w07_with_the_reply_alone_the_same_write_would_be_lost() -> None:
    with pytest.raises(AssertionError, match="the zombie acknowledged other bytes"):
        run_all(replace(AHEAD, looks=False), "before", every=1)
