"""Range reads that verify the status, range, length and speed of each answer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from botocore.exceptions import BotoCoreError
from urllib3.exceptions import HTTPError

from tieredstore.errors import Unavailable
from tieredstore.providers.s3.lane import Lane, PreconditionFailed, S3Failure
from tieredstore.providers.s3.place import S3Place

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII)
_PIECE_BYTES = 8 << 20
"""Number of bytes per read of a body. Joining smaller pieces takes more processor time than the
rest of the request."""
MIN_BYTES_PER_S = 5_000_000
"""Minimum rate of a body. A slower body is abandoned after the read timeout."""
_TOO_SLOW = "the body came too slowly"
_NO_OBJECT = frozenset({"NoSuchKey", "NotFound", "404", ""})


def is_absent(failure: S3Failure) -> bool:
    """Return whether a failure means that the object (not the bucket) does not exist."""
    return failure.status == 404 and failure.code in _NO_OBJECT


class _BodyCut(Exception):
    """The body of the object `etag` ended early or arrived too slowly. `pieces`: the received
    bytes."""

    def __init__(self, why: str, pieces: list[bytes], etag: str = "") -> None:
        super().__init__(why)
        self.pieces = pieces
        self.etag = etag


class _TimedSocket:
    """Wrapper of the socket that a body is read from. Once `is_late` returns True, reads return no
    bytes, as at the end of the stream. The caller thus gets the bytes that arrived before, and can
    read large pieces."""

    def __init__(self, socket: Any, is_late: Callable[[], bool]) -> None:
        self._socket = socket
        self._is_late = is_late

    def recv_into(self, buffer: object) -> int:
        """Receive with at most one wait. The socket's own timeout limits the wait."""
        received: int = 0 if self._is_late() else self._socket.recv_into(buffer)
        return received

    def __getattr__(self, name: str) -> object:
        return getattr(self._socket, name)


def _limit_time(body: Any, is_late: Callable[[], bool]) -> None:
    """Limit the total time for reading a body. boto3 only limits the time without data, and its
    timeout discards the received bytes. If the socket is not found, the caller checks the time
    after each piece."""
    with suppress(AttributeError):
        stream = body._raw_stream._fp.fp.raw  # noqa: SLF001
        stream._sock = _TimedSocket(stream._sock, is_late)  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges of objects. `max_attempts`: limit of attempts for one range, within the
    operation's retry budget. Each attempt continues after the bytes that were already received."""

    lane: Lane
    place: S3Place
    max_attempts: int
    read_timeout_ms: int
    monotonic: Callable[[], float] = time.monotonic

    def read(self, key: str, position: int, length: int) -> bytes | None:
        """Read like `ObjectClient.get_range`, for a length of at least 1."""
        pieces: list[bytes] = []
        etag = ""
        what = self.place.describe_operation("GetObject", key)
        for attempt in range(1, self.max_attempts + 1):
            done = sum(map(len, pieces))
            first, wanted = position + done, length - done
            try:
                pieces += self.lane.call(
                    "get_object",
                    what,
                    key=key,
                    consume=partial(self._take, what, first, wanted),
                    Bucket=self.place.bucket,
                    Key=self.place.add_prefix(key),
                    Range=f"bytes={first}-{first + wanted - 1}",
                    **({"IfMatch": etag} if etag else {}),
                )
                return b"".join(pieces) if len(pieces) != 1 else pieces[0]
            except PreconditionFailed:
                raise Unavailable(f"{what}: the object changed while it was read") from None
            except S3Failure as failure:
                if is_absent(failure):
                    return None
                if failure.status == 416 and not pieces:
                    return b""
                raise failure.error from None
            except _BodyCut as cut:
                pieces += cut.pieces
                etag = cut.etag
                if attempt == self.max_attempts or not self.lane.may_retry():
                    raise Unavailable(f"{what}: {cut}", offset=first, path=key) from None
        raise AssertionError("unreachable")

    def _take(self, what: str, first: int, wanted: int, answer: Any) -> list[bytes]:
        """Return the body as a list of pieces. Raises _BodyCut, Unavailable."""
        with closing(answer["Body"]) as body:
            expected = _check_range(answer, what, first, wanted)
            try:
                return self._body(body, expected)
            except _BodyCut as cut:
                found = sum(map(len, cut.pieces))
                text = (
                    f"bytes {first} to {first + expected}: expected {expected} bytes, found "
                    f"{found}: {cut}"
                )
                raise _BodyCut(text, cut.pieces, answer.get("ETag", "")) from None

    def _body(self, body: Any, expected: int) -> list[bytes]:
        """Return all `expected` bytes of a body. Raises _BodyCut."""
        pieces: list[bytes] = []
        missing = expected
        limit = self.monotonic() + self.read_timeout_ms / 1000 + expected / MIN_BYTES_PER_S

        def is_late() -> bool:
            return self.monotonic() > limit

        _limit_time(body, is_late)
        try:
            while missing:
                piece = body.read(min(missing, _PIECE_BYTES))
                if not piece:
                    raise _BodyCut("the body ended early", pieces)
                pieces.append(piece)
                missing -= len(piece)
                if missing and is_late():
                    raise _BodyCut(_TOO_SLOW, pieces)
        except (BotoCoreError, HTTPError, OSError) as error:
            why = _TOO_SLOW if is_late() else type(error).__name__
            raise _BodyCut(why, pieces) from None
        return pieces


def _check_range(answer: Any, what: str, first: int, wanted: int) -> int:
    """Return the length of the body if the answer is the requested range. Otherwise raise
    Unavailable."""
    status = answer["ResponseMetadata"]["HTTPStatusCode"]
    asked = f"bytes {first} to {first + wanted - 1}"
    if status != 206:
        raise Unavailable(f"{what}: asked for {asked}: expected status 206, found {status}")
    told = answer.get("ContentRange", "")
    match = _CONTENT_RANGE.fullmatch(told)
    if match is None:
        raise Unavailable(f"{what}: asked for {asked}: found Content-Range {told!r}")
    start, end = int(match[1]), int(match[2])
    last = first + wanted - 1
    if match[3] != "*":
        last = min(last, int(match[3]) - 1)
    length = end - start + 1
    if start != first or end != last or answer.get("ContentLength", length) != length:
        raise Unavailable(
            f"{what}: asked for {asked}: found Content-Range {told!r} with "
            f"{answer.get('ContentLength')} bytes",
            offset=first,
        )
    return length
