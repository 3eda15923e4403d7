"""A broker for the tests of an application: in this process, on free ports, with a tier, and with a
clock that tests move.

    with Broker() as broker:
        producer = MyProducer(broker.namesrv)
        ...
        broker.flush_tier()
        broker.advance(seconds=60)

As a pytest fixture: `pytest_plugins = ["tieredstore.testing.pytest_plugin"]` in a `conftest.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from tieredstore.broker import broker as served
from tieredstore.broker.development import development_properties
from tieredstore.broker.remoting.limits import RemotingLimits
from tieredstore.broker.services import BrokerServices
from tieredstore.errors import Unavailable
from tieredstore.testing.moving_time import MovingClock, MovingLoop

START_SECONDS: Final = 60
"""How long a start may take: a disk that others write to stands still at times."""
STOP_SECONDS: Final = 60
"""How long a start that took too long may take to stop what it began; then it is left alone."""
_NEVER_MS: Final = 1000 * 365 * 86_400_000
_T = TypeVar("_T")


class _Served(served.Broker):
    """Time that a test lets pass at once makes nobody silent: clients had no chance to speak."""

    limits = RemotingLimits(idle_timeout_ms=_NEVER_MS)

    async def remove_silent(self) -> None:
        """Take nobody for gone."""


class Broker:
    """A broker of its own thread and loop. Its calls block and may be made from any thread.

    folder: where the store and its tier are; by default a temporary folder that goes with the
    broker. properties: keys of a broker.conf that beat those of `tieredstore dev`. A broker that
    was stopped is started again by `start`, on the same folder and on other ports.
    """

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Life

    @property
    def folder(self) -> Path:
        """Where the store and its tier are."""
        if self._given_folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="tieredstore-broker-")
            self._given_folder = Path(self._closing.enter_context(temporary))
        return self._given_folder

    def start(self) -> None:
        """Start, and return once the broker serves. Raises what the start raises, and Unavailable
        when it takes longer than START_SECONDS; what was started is stopped again then."""
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
        """Stop as SIGTERM does; what was acknowledged is there after the next `start`.
        Idempotent."""
        broker, self._broker = self._broker, None
        if broker is not None:
            try:
                self.run(broker.stop())
            finally:
                self._end_loop()

    def close(self) -> None:
        """Stop, and remove the temporary folder."""
        try:
            self.stop()
        finally:
            self._closing.close()

    def _give_up(self, starting: asyncio.Task[None]) -> None:
        """Cancel a start, which stops in order what it began."""

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

    # Where it is

    @property
    def broker(self) -> served.Broker:
        """What runs; its parts belong to its loop (`run`, `call`)."""
        assert self._broker is not None, "the broker does not run"
        return self._broker

    @property
    def services(self) -> BrokerServices:
        """The parts of the broker."""
        return self.broker.services

    @property
    def addresses(self) -> Mapping[str, str]:
        """`ip:port` by what is spoken there: `remoting`, `namesrv`, `grpc`, `metrics`."""
        return self.broker.addresses

    @property
    def remoting(self) -> str:
        """Where it speaks remoting."""
        return self.addresses["remoting"]

    @property
    def namesrv(self) -> str:
        """The name server for remoting clients."""
        return self.addresses["namesrv"]

    @property
    def grpc(self) -> str:
        """The endpoints for gRPC clients."""
        return self.addresses["grpc"]

    # Helpers of tests

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine on the broker's loop, and return what it returns."""
        assert self._loop is not None, "the broker does not run"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call something on the broker's loop, and return what it returns."""

        async def run() -> _T:
            return function()

        return self.run(run())

    def advance(self, *, seconds: float) -> None:
        """Let time pass at once, for all of the broker: delays, invisible times, leases."""
        self.clock.advance(round(seconds * 1000))
        self.call(lambda: None)  # the loop looks at its timers

    def flush_tier(self) -> int:
        """Upload every message that is in the local store; returns how many went."""
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


def _find_wait(work: Coroutine[Any, Any, object]) -> str:
    """Return the calls that a coroutine is in, the innermost last."""
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
