"""A sweep lists a tier. Its process deletes and recreates a topic before the sweep uses the
listing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.kit.late_requests import CHANGING
from tests.kit.lives import GRACE_MS, QUEUE, Broker, Tier
from tieredstore.testing.provider.samples import content

OLD = [content(20, seed) for seed in range(1, 5)]
NEW = [content(20, seed) for seed in range(11, 14)]


def prepare() -> tuple[Tier, Broker]:
    """Create a topic that has garbage."""
    tier = Tier()
    writer = tier.writer("writer").begin()
    writer.append(*OLD).keep(sweep=False)
    for clock in (tier.server, writer.clock):
        clock.advance(2 * GRACE_MS)
    return tier, writer


def listings_of_sweep() -> list[int]:
    """Return the positions (from 1) of the LIST requests among the requests of one sweep. The last
    requests of a sweep, after its listing of old uploads, are not counted."""
    _, writer = prepare()
    writer.client.watch()
    writer.keep()
    names = [request.partition(" ")[0] for request in writer.client.requests]
    before = names[: names.index("LIST_UPLOADS")]
    return [number for number, name in enumerate(before, 1) if name == "LIST"]


def beside(work: Callable[[], object]) -> None:
    """Call a function in another thread, because only another thread is blocked by a reentrant lock
    that the caller holds."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "a lock is held that the next life needs"


def test_w08_a_sweep_that_listed_before_a_deletion_takes_nothing_of_the_next_life() -> None:
    listings = listings_of_sweep()
    assert listings
    for number in listings:
        tier, writer = prepare()
        sweep_while_made_again(writer, number)
        assert tier.content() == b"".join(NEW) == writer.content()
        writer.append(b"behind that").collect(tier)
        assert tier.content() == b"".join(NEW) + b"behind that"


def sweep_while_made_again(writer: Broker, number: int) -> None:
    """Delete the topic after the given request of the sweep. Recreate it before the sweep's first
    changing request."""
    hooks: list[Callable[[], None]] = []

    def make_again() -> None:
        beside(lambda: writer.append(*NEW))

    def delete() -> None:
        writer.delete()
        hooks.append(stop_at_change(writer, make_again))

    writer.client.watch(number, "after", delete)
    writer.keep()
    hooks[0]()
    if QUEUE not in writer.told:  # nothing was left to be collected
        make_again()


def stop_at_change(writer: Broker, meanwhile: Callable[[], None]) -> Callable[[], None]:
    """Call `meanwhile` before the next request that changes an object. Return a function that
    cancels this."""
    request = writer.client.request

    def stop(operation: str, key: str) -> None:
        if operation in CHANGING:
            go_on()
            meanwhile()
        request(operation, key)

    def go_on() -> None:
        writer.client.request = request  # type: ignore[method-assign]

    writer.client.request = stop  # type: ignore[method-assign]
    return go_on
