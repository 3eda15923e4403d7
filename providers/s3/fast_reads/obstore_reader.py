"""Reads of small ranges of S3 objects through obstore, in a fraction of boto3's processor time
(`docs/adr/0004-obstore.md`). The reader makes one attempt. It returns the bytes, or None if the
object certainly does not exist. Otherwise it returns NO_ANSWER, and the caller repeats the read
with boto3, which reports the error."""

from __future__ import annotations

import enum
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from botocore.credentials import RefreshableCredentials

from tieredstore.errors import Invalid, Unavailable
from tieredstore.providers.chunks.settings import CLOSE_TIMEOUT_MS
from tieredstore.providers.s3.errors import THROTTLES
from tieredstore.providers.s3.meter import find_file_type
from tieredstore.providers.s3.session import CONNECT_TIMEOUT_MS, addressing_style, open_session

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

    from tieredstore.providers.s3.lane import Lane
    from tieredstore.providers.s3.place import S3Place
    from tieredstore.providers.s3.settings import S3Settings


MAX_FAST_BYTES = 1 << 20
"""Longest range that is read through obstore. From about 2 MiB, copying costs more than the
request."""


class NoAnswer(enum.Enum):
    """Reason for a missing answer. ASKED_FOR_LESS: the endpoint refused because of load."""

    NO_ANSWER = enum.auto()
    ASKED_FOR_LESS = enum.auto()


NO_ANSWER = NoAnswer.NO_ANSWER

_STATUS = re.compile(r"status code: (\d{3})(?:[^\n]*?<Code>(\w+)</Code>)?", re.ASCII)
_FAILURES_IN_A_ROW = 3
_CALLS_LEFT_OUT = 1000
"""Number of ranges that are read without obstore after some consecutive failures. Otherwise each
read from an endpoint that obstore cannot use would cost a second request."""

_CREDENTIALS_FOR = timedelta(minutes=5)
"""Time for which obstore caches credentials. It is below ten minutes, the time for which botocore's
credentials are at least still valid."""


Count: TypeAlias = Callable[[str, str, int, float], None]
"""Function that counts a request: key, HTTP status (`none` without an answer), received bytes and
milliseconds."""


class Credentials(Protocol):
    """Credentials from botocore. Those of a role are renewed by botocore."""

    def get_frozen_credentials(self) -> Any:
        """Return `access_key`, `secret_key` and `token`."""


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Settings of boto3's client. obstore does not support botocore's `ca_bundle` and `proxy`, so
    with either of them there is no reader."""

    bucket: str
    region: str
    endpoint: str
    path_style: bool
    credentials: Credentials = field(repr=False)
    read_timeout_ms: int = 10_000
    verify_tls: bool = True
    ca_bundle: str = ""
    proxy: str = field(default="", repr=False)


class ObstoreReader:
    """Reader with one connection pool. Thread-safe. `count`: called for each request. `failed`:
    called after a request that was refused or got no answer."""

    def __init__(
        self, store: S3Store, count: Count, failed: Callable[[], None] = lambda: None
    ) -> None:
        import obstore

        self._store = store
        self._count = count
        self._tell_failed = failed
        self._get: Callable[..., Any] = obstore.get
        self._failures = 0  # need not be exact among threads
        self._calls_to_leave_out = 0

    @classmethod
    def make(
        cls, settings: ReaderSettings, count: Count, failed: Callable[[], None] = lambda: None
    ) -> ObstoreReader | None:
        """Create a reader, or return None if obstore is missing or does not support the
        settings."""
        if settings.ca_bundle or settings.proxy:
            return None
        try:
            from obstore.store import S3Store
        except ImportError:
            return None
        # Settings that obstore would otherwise take from the environment, where they override
        # `endpoint`.
        return cls(
            S3Store(
                settings.bucket,
                endpoint=_bucket_endpoint(settings),
                aws_endpoint_url_s3=_bucket_endpoint(settings),
                region=settings.region,
                virtual_hosted_style_request=not settings.path_style,
                skip_signature=False,
                request_payer=False,
                s3_express=False,
                credential_provider=_provider(settings.credentials),
                client_options={
                    "allow_http": settings.endpoint.startswith("http://"),
                    "allow_invalid_certificates": not settings.verify_tls,
                    "connect_timeout": timedelta(milliseconds=CONNECT_TIMEOUT_MS),
                    "timeout": timedelta(milliseconds=settings.read_timeout_ms),
                },
                retry_config={"max_retries": 0},
            ),
            count,
            failed,
        )

    def get_range(self, key: str, position: int, length: int) -> bytes | NoAnswer | None:
        """Read up to `length` bytes from `position`. Return None if the object does not exist, and
        a NoAnswer if the caller should ask boto3.

        `key`: the whole key in the bucket.
        """
        if not 0 < length <= MAX_FAST_BYTES:
            return NO_ANSWER
        if self._calls_to_leave_out > 0:
            self._calls_to_leave_out -= 1
            return NO_ANSWER
        end = position + length
        answer: bytes | NoAnswer | None = NO_ANSWER
        status, received = "none", 0
        began = time.monotonic()
        try:
            result = self._get(self._store, key, options={"range": (position, end)})
            data = bytes(result.bytes())
            status, received = "206", len(data)
            expected = (position, min(end, result.meta["size"]))
            if result.range == expected and received == expected[1] - position > 0:
                answer = data
            self._failures = 0
        except FileNotFoundError as error:
            status = "404"
            if "NoSuchKey" in str(error):  # and not: no such bucket
                answer = None
        except Exception as error:
            told = _STATUS.search(str(error))
            status = told[1] if told is not None else "none"
            if status in {"429", "503"} or (told is not None and told[2] in THROTTLES):
                answer = NoAnswer.ASKED_FOR_LESS
            else:
                self._note_failure()
        self._count(key, status, received, (time.monotonic() - began) * 1000)
        return answer

    def _note_failure(self) -> None:
        self._tell_failed()
        self._failures += 1
        if self._failures >= _FAILURES_IN_A_ROW:
            self._failures = 0
            self._calls_to_leave_out = _CALLS_LEFT_OUT


def _bucket_endpoint(settings: ReaderSettings) -> str:
    """Return the endpoint with the bucket, as obstore requires for virtual-host addressing."""
    if settings.path_style:
        return settings.endpoint
    scheme, _, host = settings.endpoint.partition("://")
    return f"{scheme}://{settings.bucket}.{host}"


def _provider(credentials: Credentials) -> Callable[[], S3Credential]:
    def current() -> S3Credential:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_FOR,
        }

    return current


_HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", re.ASCII)
_KEPT_S = 300
_log = logging.getLogger(__name__)


class FreshCredentials:
    """Cache of credentials, because looking them up takes longer than many reads. They are looked
    up again after some minutes and after a failure, unless botocore renews them."""

    def __init__(
        self,
        look_up: Callable[[], Credentials | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._monotonic = monotonic
        self._found: Credentials | None = None
        self._found_at = 0.0
        self._lock = threading.Lock()

    def get_frozen_credentials(self) -> Any:
        with self._lock:
            found = self._found
            is_old = self._monotonic() - self._found_at > _KEPT_S
            if found is None or (is_old and not isinstance(found, RefreshableCredentials)):
                found = self._found = self._look_up()
                self._found_at = self._monotonic()
        if found is None:
            raise Invalid("there are no credentials to sign requests with")
        return found.get_frozen_credentials()

    def doubt(self) -> None:
        """Look up the credentials again before the next request, because one failed. No-op for
        credentials that botocore renews."""
        with self._lock:
            if not isinstance(self._found, RefreshableCredentials):
                self._found = None


class FastPath:
    """Reads through obstore. The reader is created by the first read, because it needs boto3's
    endpoint and region."""

    def __init__(self, settings: S3Settings, lane: Lane, place: S3Place) -> None:
        self._settings = settings
        self._lane = lane
        self._place = place
        self._lock = threading.Lock()
        self._is_open = False
        self._reader: ObstoreReader | None = None

    def get_range(self, key: str, position: int, length: int) -> bytes | NoAnswer | None:
        """Read like `ObstoreReader.get_range`. `key`: key in the tier."""
        if length > MAX_FAST_BYTES or self._lane.is_closed:
            return NO_ANSWER
        reader = self._reader if self._is_open else self._open_reader()
        if reader is None:
            return NO_ANSWER
        gate = self._lane.find_gate(is_read=True)
        with gate.permit() as wave:
            found = reader.get_range(self._place.add_prefix(key), position, length)
            if found is NoAnswer.ASKED_FOR_LESS:
                gate.note_refusal(wave)
            elif found is not NoAnswer.NO_ANSWER:
                gate.note_success()
        if found is NoAnswer.ASKED_FOR_LESS:
            if not self._lane.may_retry():
                what = self._place.describe_operation("GetObject", key)
                raise Unavailable(f"{what}: the endpoint asks for fewer requests", path=key)
            self._lane.pause(1)  # boto3 makes the next attempt
        return found

    def _open_reader(self) -> ObstoreReader | None:
        with self._lock:
            if not self._is_open:
                self._reader = self._make_reader()
                self._is_open = True
            return self._reader

    def _make_reader(self) -> ObstoreReader | None:
        facts = self._lane.facts()
        path_style = _path_style(self._settings)
        if path_style is None or not facts.region:
            return None
        settings = self._settings
        credentials = FreshCredentials(lambda: open_session(settings).get_credentials())
        reader_settings = ReaderSettings(
            settings.bucket,
            facts.region,
            facts.endpoint,
            path_style,
            credentials,
            # obstore's requests cannot be ended, and a stop waits for them
            read_timeout_ms=min(settings.read_timeout_ms, CLOSE_TIMEOUT_MS // 2),
            verify_tls=settings.verify_tls,
            ca_bundle=settings.ca_bundle,
            proxy=settings.proxy,
        )
        try:
            return ObstoreReader.make(reader_settings, self._count, credentials.doubt)
        except Exception as error:
            _log.warning("obstore is not used: %s", type(error).__name__)
            return None

    def _count(self, key: str, status: str, received_bytes: int, elapsed_ms: float) -> None:
        self._lane.meter.count(
            "GetObject",
            find_file_type(key),
            status,
            sent_bytes=0,
            received_bytes=received_bytes,
            elapsed_ms=elapsed_ms,
        )


def _path_style(settings: S3Settings) -> bool | None:
    """Return whether URLs contain the bucket in the path. Return None if only boto3 can decide, for
    `auto` with an endpoint that is neither Amazon's nor an IP address."""
    style = addressing_style(settings)
    if style != "auto":
        return style == "path"
    host = urlsplit(settings.endpoint).hostname
    if host is not None and not host.endswith(".amazonaws.com"):
        return None
    return _HOST_LABEL.fullmatch(settings.bucket) is None
