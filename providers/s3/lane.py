"""One way of sending requests to S3: a boto3 client with its limits and retries, seen by meter and
clock."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Busy, TieredStoreError, Unavailable
from tieredstore.providers.chunks.retries import take_retry
from tieredstore.providers.s3.connections import Connections
from tieredstore.providers.s3.dialects.dialect import S3, Dialect
from tieredstore.providers.s3.dialects.speaking import speak
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
from tieredstore.providers.s3.limits import Gate, RetryQuota, TokenBucket
from tieredstore.providers.s3.meter import Meter, find_file_type

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client as BotoClient


RETRY_PAUSE_MS = 250
_LONGEST_PAUSE_MS = 10_000


class S3Failure(Exception):
    """A request that did not succeed; never leaves the client.

    answer: the server's refusal, None without one. uncertain: an attempt may have been applied.
    is_passing: the same request may succeed a little later.
    """

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
        """Make the error of a conditional write: Busy when surely nothing was done and it may be
        tried again, Unavailable when it may have been done."""
        again = self.code in CONFLICTS or self.code in THROTTLES or self.status in {409, 429}
        if self.uncertain:
            return Unavailable(f"{self.error}; an earlier attempt may have been applied")
        return Busy(str(self.error)) if again else self.error


class ServerClock:
    """The server's time as its answers told it, moved on by this machine's monotonic clock."""

    def __init__(self, monotonic_ms: Callable[[], float] | None = None) -> None:
        self._monotonic_ms = monotonic_ms or (lambda: time.monotonic() * 1000)
        self._known: tuple[int, float] | None = None

    def tell(self, date: str) -> None:
        """Take the time of a `Date` header; whole seconds, so the time is late by up to one."""
        try:
            told_ms = int(parsedate_to_datetime(date).timestamp() * 1000)
        except (ValueError, OverflowError):
            return
        self._known = told_ms, self._monotonic_ms()

    def now_ms(self) -> int | None:
        """Return the server's time, epoch milliseconds; None before the first answer."""
        if self._known is None:
            return None
        told_ms, then = self._known
        return told_ms + int(self._monotonic_ms() - then)


@dataclass(slots=True)
class _Call:
    """A request under way in a thread, over all of its attempts. wave: of the first."""

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
    """What boto3 found out: the endpoint's URL and the region to sign for."""

    endpoint: str
    region: str


@dataclass(slots=True)
class Lane:
    """`make` gives a client with fresh credentials; it is called again when they have expired.
    The client then speaks `dialect`.

    read_gate: of GETs; `gate` of all else, so that a commit waits for no read. The rates are common
    to both, and there too a read waits for commits, and not the other way round.
    """

    make: Callable[[], BotoClient]
    gate: Gate
    request_rate: TokenBucket
    byte_rate: TokenBucket
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
        size_bytes: int = 0,
        consume: Callable[[Any], Any] | None = None,
        **params: Any,
    ) -> Any:
        """Make one request of boto3's client, and again as long as its failure may pass and the
        operation's budget allows. Raises S3Failure.

        what: operation and object, for messages; key: for the meter; size_bytes: of the body, for
        the limits. consume: reads an answer's body while the request still counts as running; its
        result is returned. Credentials that have expired are looked up again, once. A lane that is
        closed sends nothing: Unavailable.
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
                with self.permit(size_bytes, call.gate) as wave:
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
        """Take one retry out of the operation's budget, and out of the quota of all requests."""
        return take_retry() and self._quota.take()

    def pause(self, attempt: int) -> None:
        """Wait behind the failed attempt of that number, from 1, with jitter: twice as long each
        time, and not once the lane is closed."""
        longest_ms = min(RETRY_PAUSE_MS << (attempt - 1), _LONGEST_PAUSE_MS)
        self.clock.wait(self._closed, random.randint(longest_ms // 2, longest_ms))  # noqa: S311

    def find_gate(self, *, is_read: bool) -> Gate:
        return self.gate if self.read_gate is None or not is_read else self.read_gate

    @contextmanager
    def permit(self, size_bytes: int, gate: Gate) -> Iterator[int]:
        """Wait until one request of `size_bytes` may be sent, and hold its place. The value is for
        `gate.note_refusal`."""
        is_urgent = gate is not self.read_gate
        self.request_rate.take(1, urgent=is_urgent)
        self.byte_rate.take(size_bytes, urgent=is_urgent)
        with gate.permit() as wave:
            yield wave

    def facts(self) -> ClientFacts:
        """Open the client and return its endpoint and region; send nothing. Raises Unavailable when
        closed."""
        meta = self._open_client().meta
        return ClientFacts(meta.endpoint_url, meta.region_name or "")

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Send nothing any more, and end what is under way, with an error for who waits for it.
        Idempotent; waits for nobody."""
        self._closed.set()
        self.request_rate.close()
        self.byte_rate.close()
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
        consume: Callable[[Any], Any] | None,
        params: dict[str, Any],
    ) -> Any:
        self._current.call = call
        try:
            answer = getattr(client, method)(**params)
        except ClientError as error:
            refusal = self.dialect.translate_refusal(read_answer(error))
            raise S3Failure(
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
        """A client with credentials that were looked up again, by the first who asks."""
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
        """Each attempt, retries and followed redirects too."""
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
    """The answer to a HEAD has no body that could say so: it is 400 alone."""
    return failure.code in EXPIRED or (method == "head_object" and failure.status == 400)


def _may_have_arrived(status: str, exception: Exception | None) -> bool:
    return status == "none" and not is_not_sent(exception)
