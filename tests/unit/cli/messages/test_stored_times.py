"""`--since` and `--until` work on a store whose broker's clock was moved back and forth."""

from __future__ import annotations

import struct
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.local_stores import plain, running, small_config
from tieredstore.clock import SYSTEM_CLOCK

NOON_MS = 1_700_000_000_000
TIMES = [
    -86_400_000, -1, 0, 5,  # in 1969, and at the begin of 1970
    *range(NOON_MS, NOON_MS + 40_000, 1_000),
    *range(NOON_MS - 7_200_000, NOON_MS - 7_195_000, 1_000),  # set back
    -5,
    *range(NOON_MS + 40_000, NOON_MS + 50_000, 1_000),
]  # fmt: skip
WRITTEN_MS = NOON_MS + 86_400_000
BORDERS = [None, -86_400_000, -5, 0, 5, NOON_MS - 7_198_000, NOON_MS, NOON_MS + 45_000]


class SetClock:
    """A wall clock that tests can set, and a monotonic clock that advances."""

    def __init__(self, now_ms: int) -> None:
        self.set_ms = now_ms

    def now_ms(self) -> int:
        return self.set_ms

    def monotonic_ms(self) -> int:
        return SYSTEM_CLOCK.monotonic_ms()

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return SYSTEM_CLOCK.wait(event, timeout_ms)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose store times step back, as in Java. The test edits the log, because our broker
    never writes such times."""
    root = tmp_path_factory.mktemp("stepped") / "store"
    clock = SetClock(WRITTEN_MS)
    with running(small_config(root), clock) as store:
        for number in range(len(TIMES)):
            clock.set_ms = WRITTEN_MS + number
            store.put_message(plain("orders", number % 2, number))
        store.wait_until_dispatched()
        store.flush()
    for log in (root / "commitlog").iterdir():
        data = log.read_bytes()
        for number, time_ms in enumerate(TIMES):
            written = struct.pack(">q", WRITTEN_MS + number)
            data = data.replace(written, struct.pack(">q", time_ms))
        log.write_bytes(data)
    return root


def write(time_ms: int) -> str:
    """Return a time in ISO 8601. A negative time in ms would look like an option."""
    time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    return time.isoformat(timespec="milliseconds")


@pytest.mark.parametrize("until", BORDERS)
@pytest.mark.parametrize("since", BORDERS)
def test_j84_a_store_is_searched_by_the_time_of_each_message(
    store: Path, since: int | None, until: int | None
) -> None:
    bounds = {"--since": since, "--until": until}
    asked = [f"{name}={write(time)}" for name, time in bounds.items() if time is not None]
    ran = tieredstore("cat", "--store", store, "--topic", "orders", *asked, "--output", "ndjson")
    wanted = {
        (number % 2, number // 2)
        for number, time_ms in enumerate(TIMES)
        if (since is None or time_ms >= since) and (until is None or time_ms < until)
    }
    if since is not None and until is not None and since > until:
        assert (ran.code, ran.rows) == (2, []), ran.err
    else:
        assert ran.code == 0, ran.err
        assert {(row["queue_id"], row["queue_offset"]) for row in ran.rows} == wanted
