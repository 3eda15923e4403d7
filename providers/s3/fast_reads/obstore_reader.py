"""ObstoreReader: small ranges of S3 objects by obstore, for a fraction of boto3's processor time
(`docs/adr/0004-obstore.md`).

Only a fast path: one attempt, and an answer counts only when it is the range that was asked for, as
far as the object has it, or that there is no such object. Everything else is NO_ANSWER: the caller
asks again through boto3, which tells what is the matter.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tieredstore.providers.s3.errors import THROTTLES

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

MAX_FAST_BYTES = 1 << 20
"""Longest range worth it: from about 2 MiB on copying outweighs what a request costs."""


class NoAnswer(enum.Enum):
    """ASKED_FOR_LESS: the endpoint said that it gets too many requests."""

    NO_ANSWER = enum.auto()
    ASKED_FOR_LESS = enum.auto()


NO_ANSWER = NoAnswer.NO_ANSWER

_STATUS = re.compile(r"status code: (\d{3})(?:[^\n]*?<Code>(\w+)</Code>)?", re.ASCII)
_FAILURES_IN_A_ROW = 3
_CALLS_LEFT_OUT = 1000
"""After so many failures one after another, so many ranges are not tried this way: an endpoint
that obstore cannot talk to must not cost each read a second request."""

_CREDENTIALS_FOR = timedelta(minutes=5)
"""How long obstore keeps credentials: less than the ten minutes for which botocore, which renews
them, promises that they stay valid."""


Count: TypeAlias = Callable[[str, str, int, float], None]
"""Told key, HTTP status (`none` without an answer), bytes received and milliseconds."""


class Credentials(Protocol):
    """botocore's credentials: static ones, or a role's that it renews."""

    def get_frozen_credentials(self) -> Any:
        """Return `access_key`, `secret_key` and `token`."""
        ...


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """What boto3's client was made with. ca_bundle and proxy: obstore has no equal of botocore's,
    so with either of them there is no reader."""

    bucket: str
    region: str
    endpoint: str
    path_style: bool
    credentials: Credentials = field(repr=False)
    connect_timeout_ms: int = 2000
    read_timeout_ms: int = 10_000
    verify_tls: bool = True
    ca_bundle: str = ""
    proxy: str = field(default="", repr=False)


class ObstoreReader:
    """Thread-safe; one connection pool. `count` is told each request; `failed` is called after
    one that the server refused, or that it did not answer."""

    def __init__(
        self, store: S3Store, count: Count, failed: Callable[[], None] = lambda: None
    ) -> None:
        import obstore

        self._store = store
        self._count = count
        self._tell_failed = failed
        self._get: Callable[..., Any] = obstore.get
        self._failures = 0  # not exact among threads, and need not be
        self._calls_to_leave_out = 0

    @classmethod
    def make(
        cls, settings: ReaderSettings, count: Count, failed: Callable[[], None] = lambda: None
    ) -> ObstoreReader | None:
        """Make a reader; None where obstore is not installed or cannot do what the settings ask
        for."""
        if settings.ca_bundle or settings.proxy:
            return None
        try:
            from obstore.store import S3Store
        except ImportError:
            return None
        # All that obstore would otherwise take from the environment, where it beats `endpoint`.
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
                    "connect_timeout": timedelta(milliseconds=settings.connect_timeout_ms),
                    "timeout": timedelta(milliseconds=settings.read_timeout_ms),
                },
                retry_config={"max_retries": 0},
            ),
            count,
            failed,
        )

    def get_range(self, key: str, position: int, length: int) -> bytes | NoAnswer | None:
        """Read the bytes of [position, position + length) that the object has; None when it is not
        there; a NoAnswer when boto3 should be asked.

        key: the whole key in the bucket.
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
    """With virtual-host addressing obstore wants the bucket in the endpoint."""
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
