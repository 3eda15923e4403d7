"""One way of sending requests to S3: a boto3 client with its limits, seen by meter and clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Busy, TieredStoreError, Unavailable
from tieredstore.providers.s3.dialects.dialect import S3, Dialect
from tieredstore.providers.s3.dialects.speaking import speak
from tieredstore.providers.s3.errors import (
    CONFLICTS,
    EXPIRED,
    THROTTLES,
    Answer,
    is_not_sent,
    make_answer_error,
    make_library_error,
    read_answer,
)
from tieredstore.providers.s3.limits import Gate, TokenBucket
from tieredstore.providers.s3.meter import Meter, find_file_type

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client as BotoClient


class S3Failure(Exception):
    """A request that did not succeed; never leaves the client.

    answer: the server's refusal, None without one. uncertain: an attempt may have been applied.
    """

    def __init__(self, error: TieredStoreError, answer: Answer | None, *, uncertain: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.answer = answer
        self.uncertain = uncertain

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
    """A request under way in a thread, over all of its attempts."""

    file_type: str
    wave: int
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
    The client then speaks `dialect`."""

    make: Callable[[], BotoClient]
    gate: Gate
    request_rate: TokenBucket
    byte_rate: TokenBucket
    meter: Meter
    server_clock: ServerClock
    clock: Clock = SYSTEM_CLOCK
    dialect: Dialect = S3
    _client: BotoClient | None = None
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
        """Make one request of boto3's client, with its retries. Raises S3Failure.

        what: operation and object, for messages; key: for the meter; size_bytes: of the body, for
        the limits. consume: reads an answer's body while the request still counts as running; its
        result is returned. Credentials that have expired are looked up again, once.
        """
        self.request_rate.take(1)
        self.byte_rate.take(size_bytes)
        client = self._open_client()
        try:
            return self._attempt(client, method, what, key, consume, params)
        except S3Failure as failure:
            if not _may_have_expired(failure, method):
                raise
            first = failure
        try:
            return self._attempt(self._renew_client(client), method, what, key, consume, params)
        except S3Failure as failure:
            failure.uncertain = failure.uncertain or first.uncertain
            raise

    def facts(self) -> ClientFacts:
        """Open the client and return its endpoint and region; send nothing."""
        meta = self._open_client().meta
        return ClientFacts(meta.endpoint_url, meta.region_name or "")

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _attempt(
        self,
        client: BotoClient,
        method: str,
        what: str,
        key: str,
        consume: Callable[[Any], Any] | None,
        params: dict[str, Any],
    ) -> Any:
        with self.gate.permit() as wave:
            call = _Call(find_file_type(key), wave)
            self._current.call = call
            try:
                answer = getattr(client, method)(**params)
            except ClientError as error:
                refusal = self.dialect.translate_refusal(read_answer(error))
                failed = make_answer_error(refusal, what)
                raise S3Failure(failed, refusal, uncertain=call.uncertain) from None
            except Exception as error:
                failed = make_library_error(error, what, sent=call.began > 0)
                raise S3Failure(failed, None, uncertain=call.uncertain) from None
            finally:
                self._current.call = None
            self.gate.note_success()
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
        speak(client, self.dialect)
        events = client.meta.events
        events.register("before-send.s3", self._before_send)
        events.register("response-received.s3", self._note_answer)
        return client

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
        if throttled or status == "503":
            self.gate.note_refusal(call.wave)
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


def _may_have_expired(failure: S3Failure, method: str) -> bool:
    """The answer to a HEAD has no body that could say so: it is 400 alone."""
    return failure.code in EXPIRED or (method == "head_object" and failure.status == 400)


def _may_have_arrived(status: str, exception: Exception | None) -> bool:
    return status == "none" and not is_not_sent(exception)
