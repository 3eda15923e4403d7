"""Lane: sends requests to S3 through one boto3 client, with limits, retries, a meter and a
clock."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from botocore.exceptions import ClientError

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Busy, TieredStoreError, Unavailable
from tieredstore.providers.chunks.retries import take_retry
from tieredstore.providers.s3.dialects.dialect import S3, Dialect, speak
from tieredstore.providers.s3.errors import (
    CONFLICTS,
    EXPIRED,
    THROTTLES,
    Answer,
    is_not_sent,
    is_passing_answer,
    is_passing_failure,
    make_answer_error,
    make_library_error,
    read_answer,
)
from tieredstore.providers.s3.meter import Meter, find_file_type

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client as BotoClient


class Gate:
    """Limit of concurrent requests, at most `most`. It is halved when the server refuses requests
    because of load. Refusals of concurrent requests count once. It grows by one after as many
    successful requests as it allows."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._running = 0
        self._wave = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        with self._changed:
            return int(self._limit)

    @contextmanager
    def permit(self) -> Iterator[int]:
        """Wait until one more request may run, and count it during the `with` block. Yields the
        argument for `note_refusal`."""
        with self._changed:
            while self._running >= int(self._limit):
                self._changed.wait()
            self._running += 1
            wave = self._wave
        try:
            yield wave
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def note_refusal(self, wave: int) -> None:
        """Halve the limit after a refusal. Refusals of concurrent requests count once."""
        with self._changed:
            if wave == self._wave:
                self._limit = max(1.0, self._limit / 2)
                self._wave += 1

    def note_success(self) -> None:
        with self._changed:
            if self._limit < self._most:
                self._limit = min(float(self._most), self._limit + 1 / self._limit)
                self._changed.notify()


class RetryQuota:
    """Quota that limits retries while most requests fail. It allows `most` consecutive retries, and
    one more for every `_SUCCESSES` successful requests. Without quota, each request has one
    attempt."""

    _SUCCESSES = 5

    def __init__(self, most: int = 100) -> None:
        self._most = self._left = most * self._SUCCESSES
        self._lock = threading.Lock()

    def take(self) -> bool:
        with self._lock:
            if self._left < self._SUCCESSES:
                return False
            self._left -= self._SUCCESSES
            return True

    def note_success(self) -> None:
        with self._lock:
            self._left = min(self._most, self._left + 1)


class Connections:
    """Sockets of the clients that were passed to `follow`."""

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()
        self._is_broken = False

    def follow(self, client: Any) -> None:
        """Record each connection that a client opens from now on. With an unknown version of
        botocore nothing is recorded, and running requests end by their timeouts."""
        with suppress(AttributeError):
            classes = client._endpoint.http_session._pool_classes_by_scheme  # noqa: SLF001
            for scheme, pool in list(classes.items()):
                classes[scheme] = self._noting(pool)

    def shut_down(self) -> None:
        """Abort all running and later requests with an error in their threads. Idempotent."""
        with self._lock:
            self._is_broken = True
            found = list(self._sockets)
        for opened in found:
            _shut_down(opened)

    def _noting(self, pool: Any) -> Any:
        """Return a connection pool class whose connections record their sockets."""
        base, note = pool.ConnectionCls, self._note

        def connect(connection: Any) -> None:
            base.connect(connection)
            note(connection.sock)

        kind = type(base.__name__, (base,), {"connect": connect})
        return type(pool.__name__, (pool,), {"ConnectionCls": kind})

    def _note(self, opened: object) -> None:
        if not isinstance(opened, socket.socket):
            return  # TLS to a proxy that uses TLS
        with self._lock:
            self._sockets.add(opened)
            is_broken = self._is_broken
        if is_broken:
            _shut_down(opened)


def _shut_down(opened: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)


RETRY_PAUSE_MS = 250
_LONGEST_PAUSE_MS = 10_000


class S3Failure(Exception):
    """Failed request. The client never raises it to its callers. `answer`: the server's refusal, or
    None without an answer. `uncertain`: an attempt may have been executed. `is_passing`: a retry
    may succeed."""

    def __init__(
        self,
        error: TieredStoreError,
        answer: Answer | None,
        *,
        uncertain: bool,
        is_passing: bool = False,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.answer = answer
        self.uncertain = uncertain
        self.is_passing = is_passing

    @property
    def status(self) -> int:
        return self.answer.status if self.answer is not None else 0

    @property
    def code(self) -> str:
        return self.answer.code if self.answer is not None else ""

    def make_write_error(self) -> TieredStoreError:
        """Return the error of a conditional write: Busy if it was certainly not executed and may be
        retried, Unavailable if it may have been executed."""
        again = self.code in CONFLICTS or self.code in THROTTLES or self.status in {409, 429}
        if self.uncertain:
            return Unavailable(f"{self.error}. An earlier attempt may have been applied")
        return Busy(str(self.error)) if again else self.error


class PreconditionFailed(S3Failure):
    """The condition of a request was not met (412): the key to create exists, or the object to read
    was replaced."""


class ServerClock:
    """The server's time, from the `Date` header of its answers and this machine's monotonic
    clock."""

    def __init__(self, monotonic_ms: Callable[[], float] | None = None) -> None:
        self._monotonic_ms = monotonic_ms or (lambda: time.monotonic() * 1000)
        self._known: tuple[int, float] | None = None

    def tell(self, date: str) -> None:
        """Store the time of a `Date` header. It is up to one second behind, because the header has
        whole seconds."""
        try:
            told_ms = int(parsedate_to_datetime(date).timestamp() * 1000)
        except (ValueError, OverflowError):
            return
        self._known = told_ms, self._monotonic_ms()

    def now_ms(self) -> int | None:
        """Return the server's time (epoch ms), or None before the first answer."""
        if self._known is None:
            return None
        told_ms, then = self._known
        return told_ms + int(self._monotonic_ms() - then)


@dataclass(slots=True)
class _Call:
    """Request that a thread is sending, with all of its attempts. `wave`: value that `Gate.permit`
    yielded."""

    file_type: str
    gate: Gate
    wave: int | None = None
    began: float = 0.0
    sent_bytes: int = 0
    uncertain: bool = False


class _Current(threading.local):
    call: _Call | None = None


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """Settings that boto3 has resolved: the endpoint's URL, and the region for signatures."""

    endpoint: str
    region: str


@dataclass(slots=True)
class Lane:
    """Path for requests. `make`: returns a client with new credentials, and is called again when
    they have expired. `dialect`: dialect of all clients.

    `read_gate`: limit of GETs. `gate`: limit of all other requests, so that a commit never waits
    for a read.
    """

    make: Callable[[], BotoClient]
    gate: Gate
    meter: Meter
    server_clock: ServerClock
    clock: Clock = SYSTEM_CLOCK
    dialect: Dialect = S3
    read_gate: Gate | None = None
    max_attempts: int = 4
    _quota: RetryQuota = field(default_factory=RetryQuota)
    _client: BotoClient | None = None
    _connections: Connections = field(default_factory=Connections)
    _closed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _current: _Current = field(default_factory=_Current)

    def call(
        self,
        method: str,
        what: str,
        *,
        key: str,
        consume: Callable[[object], object] | None = None,
        **params: Any,
    ) -> Any:
        """Send one request with boto3's client. Retry temporary failures within the operation's
        retry budget. Raises S3Failure, and Unavailable if the lane is closed.

        `what`: operation and object, for messages.
        `key`: for the meter.
        `consume`: reads an answer's body while the request still counts as running, and returns the
        result.
        """
        self._check_open(what)
        client = self._open_client()
        call = _Call(find_file_type(key), self.find_gate(is_read=method == "get_object"))
        is_renewed = False
        attempt = 1
        while True:
            if hasattr(params.get("Body"), "seek"):
                params["Body"].seek(0)
            try:
                with call.gate.permit() as wave:
                    self._check_open(what, uncertain=call.uncertain)
                    call.wave = wave if call.wave is None else call.wave
                    return self._attempt(call, client, method, what, consume, params)
            except S3Failure as failure:
                if _may_have_expired(failure, method) and not is_renewed:
                    is_renewed = True
                    client = self._renew_client(client)
                    continue
                if not failure.is_passing or attempt >= self.max_attempts or not self.may_retry():
                    raise
            self.pause(attempt)
            attempt += 1

    def may_retry(self) -> bool:
        """Take one retry from the operation's budget and from the quota of all requests. Return
        whether both allowed it."""
        return take_retry() and self._quota.take()

    def pause(self, attempt: int) -> None:
        """Wait after failed attempt number `attempt` (from 1), with jitter and exponential backoff.
        No-op if the lane is closed."""
        longest_ms = min(RETRY_PAUSE_MS << (attempt - 1), _LONGEST_PAUSE_MS)
        self.clock.wait(self._closed, random.randint(longest_ms // 2, longest_ms))  # noqa: S311

    def find_gate(self, *, is_read: bool) -> Gate:
        return self.gate if self.read_gate is None or not is_read else self.read_gate

    def facts(self) -> ClientFacts:
        """Open the client and return its endpoint and region. Sends no request. Raises Unavailable
        if closed."""
        meta = self._open_client().meta
        return ClientFacts(meta.endpoint_url, meta.region_name or "")

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Stop sending requests, and abort running ones with an error. Does not wait.
        Idempotent."""
        self._closed.set()
        self._connections.shut_down()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _attempt(
        self,
        call: _Call,
        client: BotoClient,
        method: str,
        what: str,
        consume: Callable[[object], object] | None,
        params: dict[str, object],
    ) -> object:
        self._current.call = call
        try:
            answer = getattr(client, method)(**params)
        except ClientError as error:
            refusal = self.dialect.translate_refusal(read_answer(error))
            failure = PreconditionFailed if refusal.status == 412 else S3Failure
            raise failure(
                make_answer_error(refusal, what),
                refusal,
                uncertain=call.uncertain,
                is_passing=is_passing_answer(refusal),
            ) from None
        except Exception as error:
            raise S3Failure(
                make_library_error(error, what, sent=call.began > 0),
                None,
                uncertain=call.uncertain,
                is_passing=is_passing_failure(error),
            ) from None
        finally:
            self._current.call = None
        call.gate.note_success()
        self._quota.note_success()
        return answer if consume is None else consume(answer)

    def _open_client(self) -> BotoClient:
        with self._lock:
            if self._client is None:
                self._client = self._make_client()
            return self._client

    def _renew_client(self, expired: BotoClient) -> BotoClient:
        """Return a client with new credentials. Concurrent callers look them up only once."""
        with self._lock:
            if self._client is expired or self._client is None:
                self._client = self._make_client()
            return self._client

    def _make_client(self) -> BotoClient:
        client = self.make()
        if self._closed.is_set():
            client.close()
            raise _make_closed_error("a client")
        speak(client, self.dialect)
        events = client.meta.events
        events.register("before-send.s3", self._before_send)
        events.register("response-received.s3", self._note_answer)
        self._connections.follow(client)
        return client

    def _check_open(self, what: str, *, uncertain: bool = False) -> None:
        if self._closed.is_set():
            raise S3Failure(_make_closed_error(what), None, uncertain=uncertain)

    def _before_send(self, request: Any, **_: Any) -> None:
        """Count each attempt, including retries and redirects."""
        call = self._current.call
        if call is not None:
            call.began = time.monotonic()
            call.sent_bytes = int(request.headers.get("Content-Length") or 0)

    def _note_answer(
        self,
        response_dict: dict[str, Any] | None,
        parsed_response: dict[str, Any] | None,
        exception: Exception | None,
        event_name: str,
        **_: Any,
    ) -> None:
        call = self._current.call
        if call is None:
            return
        status, received = "none", 0
        code = ((parsed_response or {}).get("Error") or {}).get("Code", "")
        if response_dict is not None:
            status = str(response_dict["status_code"])
            headers = response_dict["headers"]
            if not event_name.endswith(".HeadObject"):
                received = int(headers.get("Content-Length") or 0)
            self.server_clock.tell(headers.get("Date", ""))
        throttled = code in THROTTLES or status == "429"
        if (throttled or status == "503") and call.wave is not None:
            call.gate.note_refusal(call.wave)
        if not throttled and (status.startswith("5") or _may_have_arrived(status, exception)):
            call.uncertain = True
        self.meter.count(
            event_name.rpartition(".")[2],
            call.file_type,
            status,
            sent_bytes=call.sent_bytes,
            received_bytes=received,
            elapsed_ms=(time.monotonic() - call.began) * 1000,
        )


def _make_closed_error(what: str) -> Unavailable:
    return Unavailable(f"{what}: not asked for: the client is closed")


def _may_have_expired(failure: S3Failure, method: str) -> bool:
    """Return whether a failure may be due to expired credentials. A HEAD has no error code, so
    status 400 counts."""
    return failure.code in EXPIRED or (method == "head_object" and failure.status == 400)


def _may_have_arrived(status: str, exception: Exception | None) -> bool:
    return status == "none" and not is_not_sent(exception)
