"""Faults of an object store for `tests.kit.fault_proxy.proxy`. A fault is a function of a request
and of `forward`, which sends a request to the server. Tests may define more faults of this form."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from xml.sax.saxutils import escape

from tests.kit.fault_proxy.http import NOTHING, Fault, Forward, Reply, Request

HOLD_TIMEOUT_S = 60.0
_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)

# The connection


def lose_request() -> Fault:
    """Close the connection before the server receives the request."""
    return lambda _request, _forward: Reply(0, cut_at=NOTHING)


def lose_reply(*, reset: bool = False) -> Fault:
    """Let the server execute the request, and close the connection before the reply."""

    def fault(request: Request, forward: Forward) -> Reply:
        return replace(forward(request), cut_at=NOTHING, reset=reset)

    return fault


def cut_body(after_bytes: int, *, reset: bool = False) -> Fault:
    """Send the correct head of the reply, and close the connection within the body."""

    def fault(request: Request, forward: Forward) -> Reply:
        return replace(forward(request), cut_at=after_bytes, reset=reset)

    return fault


def delay(seconds: float) -> Fault:
    """Delay the reply."""

    def fault(request: Request, forward: Forward) -> Reply:
        reply = forward(request)
        time.sleep(seconds)
        return reply

    return fault


def hold(reached: threading.Event, go_on: threading.Event, *, applied: bool = False) -> Fault:
    """Hold a request at the proxy until `go_on` is set. The server executes it afterwards or, with
    `applied`, before the wait. `reached` is set when the wait begins. Raises AssertionError after a
    minute."""

    def fault(request: Request, forward: Forward) -> Reply:
        reply = forward(request) if applied else None
        reached.set()
        assert go_on.wait(HOLD_TIMEOUT_S), f"{request.operation} was held for too long"
        return forward(request) if reply is None else reply

    return fault


# Answers of the server


def answer(status: int, code: str, message: str = "injected", **headers: str) -> Fault:
    """Answer with an S3 error without asking the server. Headers are passed with underscores:
    `retry_after="1"`."""
    return lambda request, _forward: make_error_reply(request, status, code, message, **headers)


def answer_after(status: int, code: str, message: str = "injected") -> Fault:
    """Let the server execute the request, and answer with an error."""

    def fault(request: Request, forward: Forward) -> Reply:
        forward(request)
        return make_error_reply(request, status, code, message)

    return fault


def slow_down() -> Fault:
    return answer(503, "SlowDown", "Please reduce your request rate.")


def make_error_reply(
    request: Request, status: int, code: str, message: str = "injected", **headers: str
) -> Reply:
    """Make the reply for an S3 error, without a body for HEAD."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{escape(code)}</Code>'
        f"<Message>{escape(message)}</Message><Resource>{escape(request.target)}</Resource>"
        "<RequestId>injected</RequestId></Error>"
    ).encode()
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    whole = Reply(status, (("Content-Type", "application/xml"), *named)).with_body(body)
    return replace(whole, body=b"") if request.method == "HEAD" else whole


# Wrong content after correct heads


def corrupt_body(position: int = 0, flip: int = 0x01) -> Fault:
    """Change one byte of the reply's body. A negative position counts from the end."""

    def change(reply: Reply) -> Reply:
        body = bytearray(reply.body)
        if -len(body) <= position < len(body):
            body[position] ^= flip
        return replace(reply, body=bytes(body))

    return change_reply(change)


def corrupt_upload(position: int = 0, flip: int = 0x01) -> Fault:
    """Change one byte of the request's body before the server gets it."""

    def fault(request: Request, forward: Forward) -> Reply:
        body = bytearray(request.body)
        body[position] ^= flip
        return forward(replace(request, body=bytes(body)))

    return fault


def shorten_body(to_bytes: int) -> Fault:
    """Shorten the body of a reply and adjust its Content-Length. Only the requested range and
    Content-Range then reveal the fault."""
    return change_reply(lambda reply: reply.with_body(reply.body[:to_bytes]))


def answer_whole_object() -> Fault:
    """Answer a range request with status 200 and the whole object. If the server checks signatures,
    the proxy needs credentials to sign the changed request."""
    return lambda request, forward: forward(request.drop_headers("Range"))


def answer_other_range(shift: int, *, honest: bool = True) -> Fault:
    """Answer a range request with the range that begins `shift` bytes later. With `honest`,
    Content-Range names the returned range instead of the requested one. If the server checks
    signatures, the proxy needs credentials to sign the changed request."""

    def fault(request: Request, forward: Forward) -> Reply:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.header("Range") or "")
        if asked is None:
            return forward(request)
        first, last = int(asked[1]), int(asked[2])
        reply = forward(request.with_header("Range", f"bytes={first + shift}-{last + shift}"))
        if honest:
            return reply
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(.+)", reply.header("Content-Range") or "")
        if found is None:
            return reply
        claimed = f"bytes {int(found[1]) - shift}-{int(found[2]) - shift}/{found[3]}"
        return reply.with_header("Content-Range", claimed)

    return fault


# Listings


def change_list(change: Callable[[list[bytes]], list[bytes]]) -> Fault:
    """Change the entries (`<Contents>` elements) of a page of a listing."""

    def edit(reply: Reply) -> Reply:
        entries = _CONTENTS.findall(reply.body)
        if not entries:
            return reply
        head, tail = reply.body.split(entries[0], 1)[0], reply.body.rsplit(entries[-1], 1)[1]
        changed = change(list(entries))
        count = b"<KeyCount>%d</KeyCount>" % len(changed)
        body = head + b"".join(changed) + tail
        return reply.with_body(re.sub(rb"<KeyCount>\d+</KeyCount>", count, body))

    return change_reply(edit)


def reorder_list() -> Fault:
    """Reverse the order of a page of a listing."""
    return change_list(lambda entries: entries[::-1])


def duplicate_in_list(number: int = 0) -> Fault:
    """List one key of a page twice."""
    return change_list(lambda entries: [*entries[: number + 1], *entries[number:]])


def drop_from_list(number: int = 0) -> Fault:
    """Omit one key of a page. A negative `number` counts from the end."""
    return change_list(lambda entries: [e for e in entries if e is not entries[number]])


def end_list_early() -> Fault:
    """Mark a page of a listing as the last one."""

    def edit(reply: Reply) -> Reply:
        body = re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", reply.body)
        return reply.with_body(body.replace(b"<IsTruncated>true<", b"<IsTruncated>false<"))

    return change_reply(edit)


# Ignored conditions and changed replies


def ignore_conditions() -> Fault:
    """Remove If-None-Match and If-Match from the request. If the server checks signatures, the
    proxy needs credentials to sign the changed request."""
    return lambda request, forward: forward(request.drop_headers("If-None-Match", "If-Match"))


def change_reply(change: Callable[[Reply], Reply]) -> Fault:
    """Let the server execute the request, and change its reply."""
    return lambda request, forward: change(forward(request))
