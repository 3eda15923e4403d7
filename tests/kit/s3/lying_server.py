"""An S3 server with wrong replies: bodies that are short, long or of another range, lost replies,
errors of all kinds, and pages of a few keys."""

from __future__ import annotations

import hashlib
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote
from xml.sax.saxutils import escape

from tests.kit.s3.scripted_server import Reply, Request, ScriptedServer, refusal

_FATES = ("500", "503", "409", "lost", "lost", "drop", "cut", "range", "whole", "more", "short")
_META = "x-amz-meta-"
_MOST_KEYS = 5
_NO_KEY = refusal(404, "NoSuchKey")
_TAKEN = refusal(412, "PreconditionFailed")


@dataclass
class _Object:
    body: bytes
    metadata: dict[str, str]
    etag: str
    stored_s: float = field(default_factory=time.time)

    @property
    def headers(self) -> dict[str, str]:
        told = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(self.stored_s))
        return {**self.metadata, "ETag": self.etag, "Last-Modified": told}


@dataclass
class _Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class LyingServer:
    """An S3 bucket whose server sends a wrong reply with probability `rate`. `fates` counts wrong
    replies by kind."""

    def __init__(self, server: ScriptedServer, rng: random.Random) -> None:
        self.rate = 0.0
        self.fates: Counter[str] = Counter()
        self._rng = rng
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[str, _Upload] = {}
        self._number = 0
        server.otherwise = self.answer

    def answer(self, request: Request) -> Reply:
        with self._lock:
            fate = self._rng.choice(_FATES) if self._rng.random() < self.rate else ""
            self.fates[fate] += bool(fate)
            if fate in ("500", "503"):
                return refusal(int(fate), "SlowDown" if fate == "503" else "InternalError")
            if fate == "drop":
                return Reply(drop=True)
            reply = self._find_action(request)(request, fate)
            if fate == "cut" and reply.status in (200, 206) and reply.body:
                return Reply(reply.status, reply.body, reply.headers, cut=len(reply.body) // 2)
            return Reply(drop=True) if fate == "lost" else reply

    def _find_action(self, request: Request) -> Callable[[Request, str], Reply]:
        names = request.query.keys()
        if request.method == "POST":
            if "uploads" in names:
                return self._begin_upload
            return self._delete_many if "delete" in names else self._complete
        if request.method == "PUT":
            return self._put_part if "uploadId" in names else self._put
        if request.method == "DELETE":
            return self._delete
        if "uploads" in names:
            return lambda *_: Reply(body=b"<ListMultipartUploadsResult/>")
        return self._list if "list-type" in names else self._get

    # Writes

    def _put(self, request: Request, fate: str) -> Reply:
        if fate == "409":
            return refusal(409, "ConditionalRequestConflict")
        return self._make(request, _key(request), _body(request), _metadata(request))

    def _make(self, request: Request, key: str, body: bytes, metadata: dict[str, str]) -> Reply:
        if key in self._objects and request.headers.get("if-none-match") == "*":
            return _TAKEN
        self._number += 1
        self._objects[key] = made = _Object(body, metadata, f'"{self._number}"')
        return Reply(headers={"ETag": made.etag})

    def _begin_upload(self, request: Request, _fate: str) -> Reply:
        self._number += 1
        self._uploads[str(self._number)] = _Upload(_key(request), _metadata(request))
        return _xml(
            f"<InitiateMultipartUploadResult><UploadId>{self._number}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )

    def _put_part(self, request: Request, _fate: str) -> Reply:
        upload = self._uploads.get(request.query["uploadId"])
        if upload is None:
            return refusal(404, "NoSuchUpload")
        body, source = _body(request), request.headers.get("x-amz-copy-source")
        if source is not None:
            found = self._objects.get(unquote(source).lstrip("/").partition("/")[2])
            if found is None:
                return _NO_KEY
            asked = re.fullmatch(
                r"bytes=(\d+)-(\d+)", request.headers.get("x-amz-copy-source-range", "")
            )
            body = found.body[int(asked[1]) : int(asked[2]) + 1] if asked else found.body
        upload.parts[int(request.query["partNumber"])] = body
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        if source is not None:
            return _xml(f"<CopyPartResult><ETag>{escape(etag)}</ETag></CopyPartResult>")
        return Reply(headers={"ETag": etag})

    def _complete(self, request: Request, fate: str) -> Reply:
        upload = self._uploads.get(request.query["uploadId"])
        if upload is None:
            return refusal(404, "NoSuchUpload")
        body = b"".join(upload.parts[number] for number in sorted(upload.parts))
        reply = self._make(request, upload.key, body, upload.metadata)
        if reply.status != 200:
            return reply
        del self._uploads[request.query["uploadId"]]
        if fate == "short":  # an error inside of an answer of 200, after the deed
            return _xml("<Error><Code>InternalError</Code></Error>")
        return _xml("<CompleteMultipartUploadResult/>")

    def _delete(self, request: Request, _fate: str) -> Reply:
        if "uploadId" in request.query:
            self._uploads.pop(request.query["uploadId"], None)
        else:
            self._objects.pop(_key(request), None)
        return Reply(204)

    def _delete_many(self, request: Request, fate: str) -> Reply:
        failed = ""
        for key in re.findall(rb"<Key>(.*?)</Key>", _body(request)):
            if fate == "short" and self._rng.random() < 0.5:
                failed += f"<Error><Key>{key.decode()}</Key><Code>InternalError</Code></Error>"
            else:
                self._objects.pop(key.decode(), None)
        return _xml(f"<DeleteResult>{failed}</DeleteResult>")

    # Reads

    def _get(self, request: Request, fate: str) -> Reply:
        found = self._objects.get(_key(request))
        if found is None:
            return _NO_KEY
        if request.headers.get("if-match", found.etag) != found.etag:
            return _TAKEN
        if request.method == "HEAD":
            return Reply(headers={**found.headers, "Content-Length": str(len(found.body))})
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if asked is None or fate == "whole":
            return Reply(200, found.body, found.headers)
        first, size = int(asked[1]), len(found.body)
        last = min(int(asked[2]), size - 1)
        if first >= size:
            return refusal(416, "InvalidRange")
        shift = fate == "range"
        body = found.body[first + shift : last + shift + 1]
        told = f"bytes {first + shift}-{last + shift}/{size}"
        if fate == "short":
            body = body[:-1]
        if fate == "more":
            body += b"MORE"
        return Reply(206, body, {**found.headers, "Content-Range": told})

    def _list(self, request: Request, _fate: str) -> Reply:
        prefix = request.query.get("prefix", "")
        after = max(
            request.query.get("start-after", ""), request.query.get("continuation-token", "")
        )
        delimiter = request.query.get("delimiter", "")
        most = min(int(request.query.get("max-keys", "1000")), _MOST_KEYS)
        shown, last, rows = 0, "", ""
        for key in sorted(key for key in self._objects if key.startswith(prefix)):
            folder, found, _ = (
                key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            )
            name = f"{prefix}{folder}{delimiter}\x7f" if found else key
            if name <= max(after, last):
                continue
            if shown == most:
                rows += f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
                break
            shown, last = shown + 1, name
            rows += _describe(name[:-1] if found else name, None if found else self._objects[key])
        is_cut = "true" if "<NextContinuationToken>" in rows else "false"
        return _xml(
            f"<ListBucketResult><KeyCount>{shown}</KeyCount><IsTruncated>{is_cut}</IsTruncated>"
            f"{rows}</ListBucketResult>"
        )


def _describe(name: str, one: _Object | None) -> str:
    if one is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    stored = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(one.stored_s))
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>{stored}</LastModified>"
        f"<ETag>{escape(one.etag)}</ETag><Size>{len(one.body)}</Size></Contents>"
    )


def _xml(text: str) -> Reply:
    return Reply(200, text.encode(), {"Content-Type": "application/xml"})


def _key(request: Request) -> str:
    return request.path.lstrip("/").partition("/")[2]


def _metadata(request: Request) -> dict[str, str]:
    return {name: text for name, text in request.headers.items() if name.startswith(_META)}


def _body(request: Request) -> bytes:
    """Return the body of a request, decoding signed chunks."""
    if "aws-chunked" not in request.headers.get("content-encoding", ""):
        return request.body
    whole, rest = b"", request.body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.partition(b";")[0], 16)
        if not length:
            break
        whole, rest = whole + rest[:length], rest[length + 2 :]
    return whole
