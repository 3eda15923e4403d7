"""Simulates other vendors' object stores in front of a server with Amazon's protocol.

A vendor is a fault of `tests.kit.fault_proxy.proxy`. It accepts conditions only in the vendor's
headers, translates them into Amazon's headers, and sends the vendor's errors. `docs/s3.md`
describes each vendor. The proxy needs the credentials of the server:

    with FaultProxy(server.endpoint, credentials) as proxy:
        proxy.inject(OssStore(credentials))
"""

from __future__ import annotations

import hmac
import re
from dataclasses import replace
from typing import ClassVar

from tests.kit.fault_proxy.faults import make_error_reply
from tests.kit.fault_proxy.http import (
    AMAZON,
    GOOGLE,
    Authorization,
    Credentials,
    Forward,
    Reply,
    Request,
    make_signature,
    read_authorization,
)

_CONDITION = "If-None-Match"
_OWN = re.compile("(?i)x-(amz|goog|oss|cos|obs)-")
_CREATES = frozenset({"PutObject", "CompleteMultipartUpload"})
_MULTIPART = frozenset(
    {"CreateMultipartUpload", "UploadPart", "UploadPartCopy", "CompleteMultipartUpload"}
)


class _Store:
    """Base class of the simulated vendors. `asked` counts conditional requests in the vendor's
    headers, `refused` those that failed because the key existed."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.asked = 0
        self.refused = 0

    def __call__(self, request: Request, forward: Forward) -> Reply:
        how = read_authorization(request)
        if how is None or not self._is_signed(request, how):
            return make_error_reply(request, 403, "SignatureDoesNotMatch")
        if any(_OWN.match(name) and name.lower() not in how.signed for name, _ in request.headers):
            return make_error_reply(request, 403, "AccessDenied", "A header is not signed.")
        return self._answer(request, how, forward)

    def _answer(self, request: Request, how: Authorization, forward: Forward) -> Reply:
        raise NotImplementedError

    def _create(
        self, request: Request, how: Authorization, forward: Forward, status: int, code: str
    ) -> Reply:
        """Ask the server to create an object if its key does not exist."""
        signed = tuple(sorted({*how.signed, _CONDITION.lower()}))
        asked = request.with_header(_CONDITION, "*")
        self.asked += 1
        reply = forward(asked.with_header("Authorization", str(replace(how, signed=signed))))
        if reply.status != 412:
            return reply
        self.refused += 1
        return make_error_reply(request, status, code, "The object already exists.")

    def _is_signed(self, request: Request, how: Authorization) -> bool:
        expected = make_signature(request, how, self._credentials.secret_key)
        known = how.access_key == self._credentials.access_key
        return known and hmac.compare_digest(expected, how.signature)


class _ForbidsOverwrites(_Store):
    """Object store in which `x-…-forbid-overwrite: true` makes a write fail with 409 if the key
    exists."""

    header: ClassVar[str]
    code: ClassVar[str] = "FileAlreadyExists"
    metadata: ClassVar[str] = ""
    """Prefix of metadata headers. Empty for Amazon's own `x-amz-meta-`."""
    is_void_if_versioned: ClassVar[bool] = True
    refuses_conditions: ClassVar[bool] = False
    """Whether a request with Amazon's headers `If-None-Match` or `If-Match` fails. If False, the
    store ignores these headers."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials)
        self._had_versioning: set[str] = set()

    def _answer(self, request: Request, how: Authorization, forward: Forward) -> Reply:
        if request.operation == "DeleteObjects" and request.header("Content-MD5") is None:
            return make_error_reply(request, 400, "MissingArgument", "Missing Content-MD5.")
        writes = request.method in {"PUT", "POST", "DELETE"}
        if writes and (request.header(_CONDITION) or request.header("If-Match")):
            if self.refuses_conditions:
                return make_error_reply(
                    request, 400, "NotImplemented",
                    "A header you provided implies functionality that is not implemented.",
                )  # fmt: skip
            request = request.drop_headers(_CONDITION, "If-Match")
        forbids = request.header(self.header) == "true"
        passed = request.drop_headers(self.header)
        if request.operation == "PutObject":
            passed = passed.drop_headers("x-amz-checksum-crc32", "x-amz-sdk-checksum-algorithm")
        passed = self._rename(passed, "x-amz-meta-", "x-dropped-")
        passed = self._rename(passed, self.metadata, "x-amz-meta-")
        how = replace(how, signed=tuple(_renamed(n, self.metadata) for n in how.signed))
        passed = passed.with_header("Authorization", str(how))
        if forbids and request.operation in _CREATES and not self._is_void(request.bucket):
            reply = self._create(passed, how, forward, 409, self.code)
        else:
            reply = forward(passed)
        if request.operation == "PutBucketVersioning" and reply.status == 200:
            self._had_versioning.add(request.bucket)
        if not self.metadata:
            return reply
        return replace(
            reply,
            headers=tuple(
                (re.sub("(?i)^x-amz-meta-", self.metadata, name), value)
                for name, value in reply.headers
            ),
        )

    def _is_void(self, bucket: str) -> bool:
        return self.is_void_if_versioned and bucket in self._had_versioning

    def _rename(self, request: Request, found: str, wanted: str) -> Request:
        if not self.metadata:
            return request
        names = [n for n, _ in request.headers if n.lower().startswith(found)]
        for name in names:
            value = request.header(name) or ""
            request = request.drop_headers(name).with_header(wanted + name[len(found) :], value)
        return request


def _renamed(name: str, metadata: str) -> str:
    return f"x-amz-meta-{name[len(metadata) :]}" if metadata and name.startswith(metadata) else name


class OssStore(_ForbidsOverwrites):
    """Dialect of Alibaba Cloud OSS."""

    header = "x-oss-forbid-overwrite"
    metadata = "x-oss-meta-"
    refuses_conditions = True


class CosStore(_ForbidsOverwrites):
    """Dialect of Tencent Cloud COS."""

    header = "x-cos-forbid-overwrite"
    metadata = "x-cos-meta-"


class ObsStore(_ForbidsOverwrites):
    """Dialect of Huawei Cloud OBS."""

    header = "x-obs-forbid-overwrite"
    code = "ObjectAlreadyExists"
    is_void_if_versioned = False


class GoogleStore(_Store):
    """The XML interface of Google Cloud Storage. A request must use either Amazon's or Google's
    headers, and a signature of the same kind. Multipart requests have no conditions and cannot copy
    parts."""

    def _answer(self, request: Request, how: Authorization, forward: Forward) -> Reply:
        amazon, google = (
            any(name.lower().startswith(prefix) for name, _ in request.headers)
            for prefix in ("x-amz-", "x-goog-")
        )
        if amazon and google:
            return make_error_reply(
                request, 400, "ExcessHeaderValues",
                "Requests cannot specify both x-amz and x-goog headers.",
            )  # fmt: skip
        if request.operation == "UploadPartCopy":
            return make_error_reply(request, 400, "NotImplemented", "No part can be copied.")
        condition = request.header("x-goog-if-generation-match")
        if condition is not None and request.operation in _MULTIPART:
            return make_error_reply(request, 400, "NotImplemented", "No condition here.")
        request = request.drop_headers("x-goog-if-generation-match")
        if request.method in {"PUT", "POST", "DELETE"}:
            request = request.drop_headers(_CONDITION, "If-Match")
        if how.algorithm == GOOGLE:
            request, how = self._translate(request, how)
        if condition == "0" and request.operation == "PutObject":
            reply = self._create(request, how, forward, 412, "PreconditionFailed")
        else:
            reply = forward(request)
        if google:
            headers = tuple((re.sub("(?i)^x-amz-", "x-goog-", n), v) for n, v in reply.headers)
            reply = replace(reply, headers=headers)
        return reply

    def _translate(self, request: Request, how: Authorization) -> tuple[Request, Authorization]:
        """Translate a request's headers into Amazon's, before the proxy signs it."""
        headers = tuple((re.sub("(?i)^x-goog-", "x-amz-", n), v) for n, v in request.headers)
        date, region, _service, _request = how.scope.split("/")
        amazon = replace(
            how,
            algorithm=AMAZON,
            scope=f"{date}/{region}/s3/aws4_request",
            signed=tuple(sorted(re.sub("^x-goog-", "x-amz-", name) for name in how.signed)),
        )
        translated = replace(request, headers=headers)
        return translated.with_header("Authorization", str(amazon)), amazon
