"""In-process broker for application tests, with free ports, a tier, and a clock that tests control.

    with Broker() as broker:
        producer = MyProducer(broker.namesrv)
        ...
        broker.flush_tier()
        broker.advance(seconds=60)

For a pytest fixture, put `pytest_plugins = ["tieredstore.testing.pytest_plugin"]` into a
`conftest.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from tieredstore.broker import broker as served
from tieredstore.broker.development import development_properties
from tieredstore.broker.remoting.connection import RemotingLimits
from tieredstore.broker.services import BrokerServices
from tieredstore.disk.user_folders import make_temporary_folder
from tieredstore.errors import Unavailable
from tieredstore.testing.moving_time import MovingClock, MovingLoop

START_SECONDS: Final = 60
"""Time limit of a start, in seconds. A shared disk may be slow."""
STOP_SECONDS: Final = 60
"""Time limit for stopping the parts of a broker whose start took too long, in seconds. Parts that
do not stop in time are abandoned."""
_NEVER_MS: Final = 1000 * 365 * 86_400_000
_T = TypeVar("_T")


class _Served(served.Broker):
    """Broker whose clock a test can move. A clock jump removes no clients, because they had no time
    to send a heartbeat."""

    limits = RemotingLimits(idle_timeout_ms=_NEVER_MS)

    async def remove_silent(self) -> None:
        """Do nothing."""


class Broker:
    """Broker with its own thread and event loop. Calls block and may be made from any thread.

    `folder`: location of the store and its tier. The default is a temporary folder that is deleted
    with the broker. `properties`: broker.conf keys that override the defaults of `tieredstore dev`.
    `start` restarts a stopped broker in the same folder, on new ports."""

    def __init__(
        self, folder: Path | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        self.clock = MovingClock()
        self._given_folder = folder
        self._properties = dict(properties or {})
        self._closing = ExitStack()
        self._loop: MovingLoop | None = None
        self._thread: threading.Thread | None = None
        self._broker: served.Broker | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Start and stop

    @property
    def folder(self) -> Path:
        """Folder that contains the store and its tier."""
        if self._given_folder is None:
            temporary = make_temporary_folder("tieredstore-broker-")
            self._given_folder = self._closing.enter_context(temporary)
        return self._given_folder

    def start(self) -> None:
        """Start the broker, and return when it serves requests. Raises Unavailable if this takes
        longer than START_SECONDS, and the errors of the start. After an error, the parts already
        started are stopped."""
        assert self._loop is None, "the broker runs"
        properties = development_properties(self.folder, port=0) | self._properties
        loop = MovingLoop(self.clock)
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name="broker", daemon=True)
        self._thread.start()
        self._loop = loop
        broker = _Served.from_properties(properties, origin="testing.Broker", clock=self.clock)
        work = broker.start()
        starting = self.call(lambda: loop.create_task(work))
        try:
            self.run(asyncio.wait({starting}), START_SECONDS)
            starting.result()
        except TimeoutError:
            if starting.done():
                self._end_loop()
                raise
            where = _find_wait(work)
            self._give_up(starting)
            raise Unavailable(
                f"{self.folder}: expected a broker that serves after {START_SECONDS} s, found one "
                f"that starts: it waits in {where}",
                path=str(self.folder),
            ) from None
        except BaseException:
            self._end_loop()
            raise
        self._broker = broker

    def stop(self) -> None:
        """Stop the broker like SIGTERM does. Acknowledged messages are readable after the next
        `start`. Idempotent."""
        broker, self._broker = self._broker, None
        if broker is not None:
            try:
                self.run(broker.stop())
            finally:
                self._end_loop()

    def close(self) -> None:
        """Stop the broker and delete its temporary folder."""
        try:
            self.stop()
        finally:
            self._closing.close()

    def _give_up(self, starting: asyncio.Task[None]) -> None:
        """Cancel a start and cleanly stop the parts that have already started."""

        async def cancel() -> None:
            starting.cancel()
            await asyncio.wait({starting})

        with suppress(TimeoutError):
            self.run(cancel(), STOP_SECONDS)
        self._end_loop(STOP_SECONDS)

    def _end_loop(self, timeout: float | None = None) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(timeout)

    # Addresses

    @property
    def broker(self) -> served.Broker:
        """Running broker. Use only on its event loop (`run`, `call`)."""
        assert self._broker is not None, "the broker does not run"
        return self._broker

    @property
    def services(self) -> BrokerServices:
        """Parts of the broker."""
        return self.broker.services

    @property
    def addresses(self) -> Mapping[str, str]:
        """`ip:port` by protocol: `remoting`, `namesrv`, `grpc`, `metrics`."""
        return self.broker.addresses

    @property
    def remoting(self) -> str:
        """Address of the remoting protocol."""
        return self.addresses["remoting"]

    @property
    def namesrv(self) -> str:
        """Name server address for remoting clients."""
        return self.addresses["namesrv"]

    @property
    def grpc(self) -> str:
        """Endpoints for gRPC clients."""
        return self.addresses["grpc"]

    # Helpers of tests

    def run(self, work: Coroutine[object, object, _T], timeout: float | None = None) -> _T:
        """Run a coroutine on the broker's event loop and return its result."""
        assert self._loop is not None, "the broker does not run"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function on the broker's event loop and return its result."""

        async def run() -> _T:
            return function()

        return self.run(run())

    def advance(self, *, seconds: float) -> None:
        """Advance the broker's clock, which controls delays, invisible times and leases."""
        self.clock.advance(round(seconds * 1000))
        self.call(lambda: None)  # The loop checks its timers.

    def flush_tier(self) -> int:
        """Upload all messages of the local store, and return how many were uploaded."""
        store = cast(Any, self.services.store)
        store.next_store.wait_until_dispatched()
        count = 0
        while True:
            outcomes = store.dispatcher.scan(force=True)
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            if errors:
                raise errors[0]
            sent = sum(outcome.messages for outcome in outcomes)
            if not sent:
                return count
            count += sent


def _find_wait(work: Coroutine[object, object, object]) -> str:
    """Return the call stack of a waiting coroutine, innermost call last."""
    calls = []
    awaited: object = work
    while inspect.iscoroutine(awaited) and (frame := awaited.cr_frame) is not None:
        file = Path(frame.f_code.co_filename).name
        calls.append(f"{awaited.__qualname__} ({file}:{frame.f_lineno})")
        awaited = awaited.cr_await
    return ", ".join(calls)


def _run_loop(loop: MovingLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
