"""The faults of an object store, for `tieredstore.testing.fault_proxy.proxy`.

A fault is a function of a request and of `forward`, which has the server do it; write others of
the same form where a test needs one.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from xml.sax.saxutils import escape

from tieredstore.testing.fault_proxy.http import NOTHING, Fault, Forward, Reply, Request

HOLD_TIMEOUT_S = 60.0
_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)

# The connection


def lose_request() -> Fault:
    """End the connection before the server saw the request."""
    return lambda _request, _forward: Reply(0, cut_at=NOTHING)


def lose_reply(*, reset: bool = False) -> Fault:
    """Let the server do it; end the connection before its reply."""

    def fault(request: Request, forward: Forward) -> Reply:
        return replace(forward(request), cut_at=NOTHING, reset=reset)

    return fault


def cut_body(after_bytes: int, *, reset: bool = False) -> Fault:
    """Send the reply's right head, but end the connection within its body."""

    def fault(request: Request, forward: Forward) -> Reply:
        return replace(forward(request), cut_at=after_bytes, reset=reset)

    return fault


def delay(seconds: float) -> Fault:
    """Send the reply later."""

    def fault(request: Request, forward: Forward) -> Reply:
        reply = forward(request)
        time.sleep(seconds)
        return reply

    return fault


def hold(reached: threading.Event, go_on: threading.Event, *, applied: bool = False) -> Fault:
    """Let the request wait at the proxy until `go_on` is set, before (or, `applied`, after) the
    server does it; `reached` is set when it is there. AssertionError after a minute."""

    def fault(request: Request, forward: Forward) -> Reply:
        reply = forward(request) if applied else None
        reached.set()
        assert go_on.wait(HOLD_TIMEOUT_S), f"nobody let {request.operation} go on"
        return forward(request) if reply is None else reply

    return fault


# Answers of the server


def answer(status: int, code: str, message: str = "injected", **headers: str) -> Fault:
    """Refuse with an S3 error; the server does nothing. Headers are named with underscores:
    `retry_after="1"`."""
    return lambda request, _forward: make_error_reply(request, status, code, message, **headers)


def answer_after(status: int, code: str, message: str = "injected") -> Fault:
    """Let the server do it, and answer with an error all the same."""

    def fault(request: Request, forward: Forward) -> Reply:
        forward(request)
        return make_error_reply(request, status, code, message)

    return fault


def slow_down() -> Fault:
    return answer(503, "SlowDown", "Please reduce your request rate.")


def make_error_reply(
    request: Request, status: int, code: str, message: str = "injected", **headers: str
) -> Reply:
    """Make the reply of an S3 error; a HEAD gets its head only."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{escape(code)}</Code>'
        f"<Message>{escape(message)}</Message><Resource>{escape(request.target)}</Resource>"
        "<RequestId>injected</RequestId></Error>"
    ).encode()
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    whole = Reply(status, (("Content-Type", "application/xml"), *named)).with_body(body)
    return replace(whole, body=b"") if request.method == "HEAD" else whole


# Wrong content under right heads


def corrupt_body(position: int = 0, flip: int = 0x01) -> Fault:
    """Change one byte of the reply's body (position may count from the end), where it has it."""

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
    """Shorten the body, and Content-Length with it: only the request and Content-Range tell."""
    return change_reply(lambda reply: reply.with_body(reply.body[:to_bytes]))


def answer_whole_object() -> Fault:
    """Answer a range with 200 and the whole object. On a server that checks signatures the proxy
    needs credentials."""
    return lambda request, forward: forward(request.drop_headers("Range"))


def answer_other_range(shift: int, *, honest: bool = True) -> Fault:
    """Answer a range with one `shift` bytes away; Content-Range says so when `honest`, and what was
    asked for when not. The proxy needs credentials, as for `answer_whole_object`."""

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
    """Put a page in the opposite order."""
    return change_list(lambda entries: entries[::-1])


def duplicate_in_list(number: int = 0) -> Fault:
    """List one key of a page twice."""
    return change_list(lambda entries: [*entries[: number + 1], *entries[number:]])


def drop_from_list(number: int = 0) -> Fault:
    """Leave one key of a page out (`number` may count from the end)."""
    return change_list(lambda entries: [e for e in entries if e is not entries[number]])


def end_list_early() -> Fault:
    """Let a page say that it is the last one."""

    def edit(reply: Reply) -> Reply:
        body = re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", reply.body)
        return reply.with_body(body.replace(b"<IsTruncated>true<", b"<IsTruncated>false<"))

    return change_reply(edit)


# A server that knows less


def ignore_conditions() -> Fault:
    """Hide If-None-Match and If-Match from the server. On a server that checks signatures the proxy
    needs credentials."""
    return lambda request, forward: forward(request.drop_headers("If-None-Match", "If-Match"))


def change_reply(change: Callable[[Reply], Reply]) -> Fault:
    """Let the server do it, and change its reply."""
    return lambda request, forward: change(forward(request))
