"""FastPath: the small ranges of an S3 tier through obstore, with the limits, the meter and the
credentials of the boto3 client that it stands in front of."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.credentials import RefreshableCredentials

from tieredstore.errors import Invalid, Unavailable
from tieredstore.providers.s3.fast_reads.obstore_reader import (
    MAX_FAST_BYTES,
    NO_ANSWER,
    Credentials,
    NoAnswer,
    ObstoreReader,
    ReaderSettings,
)
from tieredstore.providers.s3.meter import find_file_type
from tieredstore.providers.s3.session import addressing_style, open_session

if TYPE_CHECKING:
    from tieredstore.providers.s3.lane import Lane
    from tieredstore.providers.s3.place import S3Place
    from tieredstore.providers.s3.settings import S3Settings

_HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", re.ASCII)
_KEPT_S = 300
_log = logging.getLogger(__name__)


class FreshCredentials:
    """Looked up again after some minutes and after a failure, except those that renew themselves:
    a look-up takes longer than many reads."""

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
        """Doubt the credentials, as a request failed: those that do not renew themselves are looked
        up when they are asked for next."""
        with self._lock:
            if not isinstance(self._found, RefreshableCredentials):
                self._found = None


class FastPath:
    """Opened by the first read, which needs what boto3 found out: endpoint and region."""

    def __init__(self, settings: S3Settings, lane: Lane, place: S3Place) -> None:
        self._settings = settings
        self._lane = lane
        self._place = place
        self._lock = threading.Lock()
        self._is_open = False
        self._reader: ObstoreReader | None = None

    def get_range(self, key: str, position: int, length: int) -> bytes | NoAnswer | None:
        """Read as `ObstoreReader.get_range` does; `key` is the tier's own."""
        if length > MAX_FAST_BYTES or self._lane.is_closed:
            return NO_ANSWER
        reader = self._reader if self._is_open else self._open_reader()
        if reader is None:
            return NO_ANSWER
        gate = self._lane.find_gate(is_read=True)
        with self._lane.permit(length, gate) as wave:
            found = reader.get_range(self._place.add_prefix(key), position, length)
            if found is NoAnswer.ASKED_FOR_LESS:
                gate.note_refusal(wave)
            elif found is not NoAnswer.NO_ANSWER:
                gate.note_success()
        if found is NoAnswer.ASKED_FOR_LESS:
            if not self._lane.may_retry():
                what = self._place.describe_operation("GetObject", key)
                raise Unavailable(f"{what}: the endpoint asks for fewer requests", path=key)
            self._lane.pause(1)  # boto3's is the next attempt
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
            connect_timeout_ms=settings.connect_timeout_ms,
            # obstore's requests cannot be ended, and a stop waits for them
            read_timeout_ms=min(settings.read_timeout_ms, settings.close_timeout_ms // 2),
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
    """None where only boto3 knows: `auto` with an endpoint that is neither Amazon's nor an
    address."""
    style = addressing_style(settings)
    if style != "auto":
        return style == "path"
    host = urlsplit(settings.endpoint).hostname
    if host is not None and not host.endswith(".amazonaws.com"):
        return None
    return _HOST_LABEL.fullmatch(settings.bucket) is None
