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
    """The connection ends before the server saw the request."""
    return lambda _request, _forward: Reply(0, cut_at=NOTHING)


def lose_reply(*, reset: bool = False) -> Fault:
    """The server does it; the connection ends before its reply."""

    def fault(request: Request, forward: Forward) -> Reply:
        return replace(forward(request), cut_at=NOTHING, reset=reset)

    return fault


def cut_body(after_bytes: int, *, reset: bool = False) -> Fault:
    """The reply has its right head, but the connection ends within its body."""

    def fault(request: Request, forward: Forward) -> Reply:
        return replace(forward(request), cut_at=after_bytes, reset=reset)

    return fault


def delay(seconds: float) -> Fault:
    """The reply comes later."""

    def fault(request: Request, forward: Forward) -> Reply:
        reply = forward(request)
        time.sleep(seconds)
        return reply

    return fault


def hold(reached: threading.Event, go_on: threading.Event, *, applied: bool = False) -> Fault:
    """The request waits at the proxy until `go_on` is set, before (or, `applied`, after) the
    server does it; `reached` is set when it is there. AssertionError after a minute."""

    def fault(request: Request, forward: Forward) -> Reply:
        reply = forward(request) if applied else None
        reached.set()
        assert go_on.wait(HOLD_TIMEOUT_S), f"nobody let {request.operation} go on"
        return forward(request) if reply is None else reply

    return fault


# Answers of the server


def answer(status: int, code: str, message: str = "injected", **headers: str) -> Fault:
    """The server refuses with an S3 error and does nothing. Headers are named with underscores:
    `retry_after="1"`."""
    return lambda request, _forward: error_reply(request, status, code, message, **headers)


def answer_after(status: int, code: str, message: str = "injected") -> Fault:
    """The server does it, and answers with an error all the same."""

    def fault(request: Request, forward: Forward) -> Reply:
        forward(request)
        return error_reply(request, status, code, message)

    return fault


def slow_down() -> Fault:
    return answer(503, "SlowDown", "Please reduce your request rate.")


def error_reply(
    request: Request, status: int, code: str, message: str = "injected", **headers: str
) -> Reply:
    """An S3 error; a HEAD gets its head only."""
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
    """One byte of the reply's body is another one (position may count from the end)."""

    def change(reply: Reply) -> Reply:
        body = bytearray(reply.body)
        if body:
            body[position] ^= flip
        return replace(reply, body=bytes(body))

    return change_reply(change)


def corrupt_upload(position: int = 0, flip: int = 0x01) -> Fault:
    """One byte of the request's body is another one when the server gets it."""

    def fault(request: Request, forward: Forward) -> Reply:
        body = bytearray(request.body)
        body[position] ^= flip
        return forward(replace(request, body=bytes(body)))

    return fault


def shorten_body(to_bytes: int) -> Fault:
    """The body is shorter and Content-Length agrees: only the request and Content-Range tell."""
    return change_reply(lambda reply: reply.with_body(reply.body[:to_bytes]))


def whole_object() -> Fault:
    """A range is answered with 200 and the whole object. On a server that checks signatures the
    proxy needs credentials."""
    return lambda request, forward: forward(request.drop_headers("Range"))


def other_range(shift: int, *, honest: bool = True) -> Fault:
    """A range is answered with one `shift` bytes away; Content-Range says so when `honest`, and
    what was asked for when not. The proxy needs credentials, as for `whole_object`."""

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
    """The entries (`<Contents>` elements) of a page of a listing are others."""

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
    """A page in the opposite order."""
    return change_list(lambda entries: entries[::-1])


def duplicate_in_list(number: int = 0) -> Fault:
    """One key of a page is there twice."""
    return change_list(lambda entries: [*entries[: number + 1], *entries[number:]])


def drop_from_list(number: int = 0) -> Fault:
    """One key of a page is missing (`number` may count from the end)."""
    return change_list(lambda entries: [e for e in entries if e is not entries[number]])


def end_list_early() -> Fault:
    """A page says that it is the last one."""

    def edit(reply: Reply) -> Reply:
        body = re.sub(rb"<NextContinuationToken>.*?</NextContinuationToken>", b"", reply.body)
        return reply.with_body(body.replace(b"<IsTruncated>true<", b"<IsTruncated>false<"))

    return change_reply(edit)


# A server that knows less


def ignore_conditions() -> Fault:
    """If-None-Match and If-Match are not seen. On a server that checks signatures the proxy needs
    credentials."""
    return lambda request, forward: forward(request.drop_headers("If-None-Match", "If-Match"))


def change_reply(change: Callable[[Reply], Reply]) -> Fault:
    """The server does it; its reply is changed."""
    return lambda request, forward: change(forward(request))
