"""Tests of deliveries with a wrong broker clock, and of requests that change delivery times."""

from __future__ import annotations

from pathlib import Path

from tests.kit.receiving import Receiving, bodies, drive
from tieredstore.broker.receive.progress import MAX_AHEAD_MS
from tieredstore.broker.receive.requests import Received
from tieredstore.broker.receive.service import Popped

YEARS_MS = 10 * 365 * 86_400_000


def popped(one: Received, pop_ms: int) -> Popped:
    return Popped("G", "T", one.receipt.queue_id, one.receipt.offset, pop_ms)


def test_p86_changes_of_one_message_do_not_date_other_deliveries_ahead(tmp_path: Path) -> None:
    """Changing the invisible time of one message many times does not affect the times of other
    deliveries. A Java client would treat a delivery with a time in the future as expired."""

    async def test(on: Receiving) -> None:
        on.put(2)
        (one,) = await on.receive(max_count=1)
        pop_ms, used = one.receipt.pop_ms, set[int]()
        for _ in range(10 * MAX_AHEAD_MS):
            used.add(pop_ms)
            changed = on.service.change_popped(popped(one, pop_ms), 1_000)
            assert changed is not None
            pop_ms = changed.pop_ms
            assert pop_ms not in used
            assert changed.invisible_until_ms - pop_ms >= 1_000 - MAX_AHEAD_MS
        (other,) = await on.receive()
        assert other.receipt.pop_ms == on.clock.now_ms()
        on.clock.advance(1_000)
        (again,) = await on.receive()
        assert again.receipt.pop_ms == on.clock.now_ms()

    drive(tmp_path, test)


def test_p86_no_delivery_is_dated_ahead_after_the_clock_was_years_ahead(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        on.put(3)
        on.clock.set(on.clock.now_ms() + YEARS_MS)
        (first,) = await on.receive(max_count=1)
        on.clock.set(on.clock.now_ms() - YEARS_MS)
        handles = {first.handle}
        for _ in range(3):
            received = await on.receive()
            (pop_ms,) = {one.receipt.pop_ms for one in received}
            assert on.clock.now_ms() - 200_000 < pop_ms <= on.clock.now_ms()
            handles.update(one.handle for one in received)
            await on.kill()
            await on.start()
            on.clock.advance(60_000)
        assert len(handles) == 1 + 3 * 3 - 1  # the first one comes again after the restart

    drive(tmp_path, test)


def test_c02_what_was_delivered_while_the_clock_was_ahead_comes_again(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(2)
        await on.service._keep_up()
        on.clock.set(on.clock.now_ms() + YEARS_MS)
        await on.service._keep_up()
        (first,) = await on.receive(max_count=1, invisible_ms=30_000)
        on.clock.set(on.clock.now_ms() - YEARS_MS)
        await on.service._keep_up()
        on.clock.advance(29_999)
        assert bodies(await on.receive(max_count=1)) == [1]
        assert await on.receive() == []
        on.clock.advance(1)
        assert bodies(await on.receive(max_count=1)) == [0]
        assert (await on.service.ack("G", "T", first.handle)).name == "INVALID_RECEIPT_HANDLE"

    drive(tmp_path, test)


def test_c02_what_was_delivered_while_the_clock_was_ahead_comes_again_after_a_restart(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        on.clock.set(on.clock.now_ms() + YEARS_MS)
        assert bodies(await on.receive()) == [0]
        await on.kill()
        on.clock.set(on.clock.now_ms() - YEARS_MS)
        await on.start()
        assert await on.receive() == []
        on.clock.advance(60_000)
        assert bodies(await on.receive()) == [0]

    drive(tmp_path, test)


def test_p86_a_delivery_is_suspended_once(tmp_path: Path) -> None:
    """A delivery can be suspended only once. Otherwise a consumer could reset the number of
    delivery attempts."""

    async def test(on: Receiving) -> None:
        on.put(1)
        for attempt in (1, 2, 2, 2):
            (one,) = await on.receive()
            assert one.delivery_attempt == attempt
            handle: str | None = one.handle
            for number in range(5 if attempt > 1 else 0):
                assert handle is not None
                handle = await on.service.change_invisible(
                    "G", "T", handle, 1_000, is_suspended=True
                )
                if number == 2:
                    await on.state.rotate()
                    await on.kill()
                    await on.start()
            on.clock.advance(60_000)

    drive(tmp_path, test)
