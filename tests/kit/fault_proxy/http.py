"""Complete requests and replies of the fault proxy, with unchanged headers."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

Headers: TypeAlias = tuple[tuple[str, str], ...]
NOTHING = -1
"""Value of `Reply.cut_at` that ends the connection before the head of the reply."""

_BY_QUERY: Mapping[tuple[str, str], str] = {
    ("POST", "delete"): "DeleteObjects",
    ("POST", "uploads"): "CreateMultipartUpload",
    ("GET", "uploads"): "ListMultipartUploads",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "uploadId"): "ListParts",
    ("PUT", "uploadId"): "UploadPart",
    ("GET", "list-type"): "ListObjectsV2",
    ("GET", "versioning"): "GetBucketVersioning",
    ("PUT", "versioning"): "PutBucketVersioning",
    ("GET", "lifecycle"): "GetBucketLifecycleConfiguration",
    ("GET", "object-lock"): "GetObjectLockConfiguration",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "versions"): "ListObjectVersions",
}
_OF_AN_OBJECT = {"GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}
_OF_A_BUCKET = {
    "GET": "ListObjects",
    "HEAD": "HeadBucket",
    "PUT": "CreateBucket",
    "DELETE": "DeleteBucket",
}


@dataclass(frozen=True)
class Request:
    """One path-style request. `target` has the path and query as the client encoded them."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return _header(self.headers, name)

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @cached_property
    def bucket(self) -> str:
        return unquote(urlsplit(self.target).path).lstrip("/").partition("/")[0]

    @cached_property
    def key(self) -> str:
        """Key of the object, or prefix of the listing."""
        key = unquote(urlsplit(self.target).path).lstrip("/").partition("/")[2]
        return key or self.query.get("prefix", "")

    @cached_property
    def operation(self) -> str:
        """Name of the S3 operation, as in botocore, or an empty text if it is unknown."""
        copies = any(name.lower().endswith("-copy-source") for name, _ in self.headers)
        for (method, parameter), name in _BY_QUERY.items():
            if method == self.method and parameter in self.query:
                return name + ("Copy" if name == "UploadPart" and copies else "")
        has_key = bool(unquote(urlsplit(self.target).path).lstrip("/").partition("/")[2])
        if self.method == "PUT" and has_key:
            return "CopyObject" if copies else "PutObject"
        if self.method == "GET" and not self.bucket:
            return "ListBuckets"
        return (_OF_AN_OBJECT if has_key else _OF_A_BUCKET).get(self.method, "")

    def drop_headers(self, *names: str) -> Request:
        """Return the request without the named headers, ignoring case."""
        dropped = {name.lower() for name in names}
        return replace(self, headers=tuple(h for h in self.headers if h[0].lower() not in dropped))

    def with_header(self, name: str, value: str) -> Request:
        return replace(
            self.drop_headers(name), headers=(*self.drop_headers(name).headers, (name, value))
        )


@dataclass(frozen=True)
class Reply:
    """One reply. The connection ends after `cut_at` bytes of the body (NOTHING: before the head),
    with a TCP reset if `reset` is set."""

    status: int
    headers: Headers = ()
    body: bytes = b""
    reason: str = ""
    cut_at: int | None = None
    reset: bool = False

    def header(self, name: str) -> str | None:
        return _header(self.headers, name)

    def with_header(self, name: str, value: str | None) -> Reply:
        """Return the reply with a header replaced, or removed if the value is None."""
        kept = tuple(h for h in self.headers if h[0].lower() != name.lower())
        return replace(self, headers=kept if value is None else (*kept, (name, value)))

    def with_body(self, body: bytes) -> Reply:
        """Return the reply with another body and a matching Content-Length."""
        return replace(self.with_header("Content-Length", str(len(body))), body=body)


Forward: TypeAlias = Callable[[Request], Reply]
Fault: TypeAlias = Callable[[Request, Forward], Reply]
"""Function that handles a request. `forward` passes the request to the inner faults and the
server."""


@dataclass(frozen=True)
class Credentials:
    """Credentials for signing a changed request again."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ...)"


def sign_again(request: Request, credentials: Credentials) -> Request:
    """Return the request with a valid Signature Version 4. Unsigned requests are unchanged. Headers
    that were signed before are signed again if they still exist."""
    found = read_authorization(request)
    if found is None or found.algorithm != AMAZON:
        return request
    if re.fullmatch("[0-9a-f]{64}", request.header("X-Amz-Content-SHA256") or ""):
        digest = hashlib.sha256(request.body).hexdigest()
        request = request.with_header("X-Amz-Content-SHA256", digest)
    names = sorted(name for name in found.signed if request.header(name) is not None)
    changed = replace(found, signed=tuple(names), access_key=credentials.access_key)
    signature = make_signature(request, changed, credentials.secret_key)
    return request.with_header("Authorization", str(replace(changed, signature=signature)))


AMAZON, GOOGLE = "AWS4-HMAC-SHA256", "GOOG4-HMAC-SHA256"


@dataclass(frozen=True)
class Authorization:
    """Content of the Authorization header. `signed` lists the names of the signed headers in lower
    case."""

    algorithm: str
    access_key: str
    scope: str
    signed: tuple[str, ...]
    signature: str = ""

    def __str__(self) -> str:
        return (
            f"{self.algorithm} Credential={self.access_key}/{self.scope}, "
            f"SignedHeaders={';'.join(self.signed)}, Signature={self.signature}"
        )


def read_authorization(request: Request) -> Authorization | None:
    """Return the signature of a request, or None without a Version 4 signature of Amazon or
    Google."""
    found = re.fullmatch(
        rf"({AMAZON}|{GOOGLE}) Credential=([^/]*)/([^,\s]+),\s*SignedHeaders=([^,\s]+),\s*"
        r"Signature=([0-9a-f]+)",
        request.header("Authorization") or "",
    )
    if found is None:
        return None
    return Authorization(found[1], found[2], found[3], tuple(found[4].split(";")), found[5])


def make_signature(request: Request, how: Authorization, secret_key: str) -> str:
    """Compute the correct Version 4 signature of a request."""
    prefix = "X-Goog" if how.algorithm == GOOGLE else "X-Amz"
    parts = urlsplit(request.target)
    query = sorted((p if "=" in p else f"{p}=") for p in parts.query.split("&") if p)
    canonical = [request.method, parts.path, "&".join(query)]
    canonical += [f"{name}:{' '.join((request.header(name) or '').split())}" for name in how.signed]
    canonical += ["", ";".join(how.signed), request.header(f"{prefix}-Content-SHA256") or ""]
    hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    date = request.header(f"{prefix}-Date") or ""
    signature = (how.algorithm.partition("-")[0] + secret_key).encode()
    for text in (*how.scope.split("/"), "\n".join((how.algorithm, date, how.scope, hashed))):
        signature = hmac.digest(signature, text.encode(), "sha256")
    return signature.hex()


def _header(headers: Headers, name: str) -> str | None:
    name = name.lower()
    return next((value for found, value in headers if found.lower() == name), None)
