"""Process of a broker: event loop, signals, logging and exit."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tieredstore.broker.ports import raise_limit
from tieredstore.server_process import end_cycle_search_of_objects, tune_server_process

if TYPE_CHECKING:
    from tieredstore.broker.broker import Broker

STOP_SECONDS: Final = 20.0
"""Time limit of a stop, in seconds."""
STOP_START_SECONDS: Final = 8.0
"""Time limit for the rest of a start after a stop signal, in seconds. A signal cannot interrupt a
start that waits for another writer's epoch or recovers a large store."""
_log = logging.getLogger("tieredstore.broker")


class LogLines(logging.Formatter):
    """Formats a record as one line: time (UTC), level, message. Unexpected exceptions add a
    traceback."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        text = "%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s"
        super().__init__(text, "%Y-%m-%dT%H:%M:%S")


def log_to_stderr(level: int = logging.INFO, lines: logging.Formatter | None = None) -> None:
    """Log records of this project to stderr, starting at a level. `lines`: formatter, LogLines by
    default."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines or LogLines())
    logger = logging.getLogger("tieredstore")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def run_broker(make_broker: Callable[[], Broker], announce: Callable[[Broker], object]) -> None:
    """Run a broker until SIGINT, SIGTERM or SIGHUP, and then let current work finish. `announce`:
    called when the broker serves. Raises the errors of the start.

    A second signal ends the process immediately, and the next start recovers the store as after a
    crash. A closed terminal sends SIGHUP twice, which counts as one signal. Under `nohup`, SIGHUP
    is ignored."""
    tune_server_process()
    raise_limit()
    with asyncio.Runner(loop_factory=_find_loop_factory()) as runner:
        runner.run(_serve(make_broker, announce))


def _find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(make_broker: Callable[[], Broker], announce: Callable[[Broker], object]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        for number in numbers:  # the next one is the system's own
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    broker = await _start(make_broker, stop)
    try:
        if not stop.is_set():
            places = ", ".join(f"{name} {place}" for name, place in broker.addresses.items())
            _log.info("%s serves: %s", broker.settings.broker_name, places)
            announce(broker)
        await stop.wait()
    finally:
        begin = time.monotonic()
        _log.info("stopping")
        await broker.stop()
        seconds = time.monotonic() - begin
        level = logging.WARNING if seconds > STOP_SECONDS else logging.INFO
        _log.log(level, "stopped in %.1f s", seconds)
        if broker.is_abandoned:  # a thread still waits for the tier
            _end_at_once()


async def _start(make_broker: Callable[[], Broker], stop: asyncio.Event) -> Broker:
    """Create and start a broker. After a stop signal, the start has STOP_START_SECONDS to finish
    before the process exits. Raises the errors of the creation and the start."""
    starting = asyncio.ensure_future(_make_and_start(make_broker))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
    elif not starting.done():
        _log.info("told to stop during the start, which has %d s to end", STOP_START_SECONDS)
        await asyncio.wait({starting}, timeout=STOP_START_SECONDS)
        if not starting.done():
            _log.warning(
                "the start has not ended in time: the process exits, and its next start recovers"
            )
            _end_at_once()
    return await starting


async def _make_and_start(make_broker: Callable[[], Broker]) -> Broker:
    broker = await asyncio.to_thread(make_broker)  # which may have to read a tier
    await broker.start(before_serving=end_cycle_search_of_objects)
    return broker


def _end_at_once() -> None:
    """End the process without waiting for its threads. The next start recovers the store as after a
    crash."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)
