"""Dialects of conditional create: the request that creates an object only if it is absent, and its
refusal. `docs/s3.md` has each vendor's promises, with sources. The client uses Amazon's dialect
(`If-None-Match: *`, refusal 412). Only this module knows the others."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from botocore.auth import AUTH_TYPE_MAPS, BaseSigner
from botocore.exceptions import NoCredentialsError

from tieredstore.errors import Invalid
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.s3.errors import Answer

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client as BotoClient


CONDITION = "If-None-Match"
_AMAZON = "x-amz-"
_REFUSED_STATUS, _REFUSED_CODE = 412, "PreconditionFailed"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Dialect of one vendor.

    `hosts`: suffixes of the host names of its endpoints.
    `header`, `value`: header that makes a create conditional.
    `refusals`: status and code of an answer if the key exists.
    `initiates`: whether CreateMultipartUpload takes the header too.
    `multipart`: whether the server copies parts and completes conditionally. Otherwise an object
    made of parts is sent whole.
    `promises_exclusion`: whether the vendor promises that exactly one of concurrent creates
    succeeds. Without this promise no writer is fenced.
    `void_if_versioned`: the condition has no effect in a bucket that has, or ever had, versioning.
    `checksum`: kind of checksum of sent bodies.
    `prefix`: replaces `x-amz-` in names of headers.
    `renamed`: whether `prefix` applies to metadata headers only, or to all headers, which need
    Google's signature.
    """

    name: str
    hosts: tuple[str, ...] = ()
    header: str = CONDITION
    value: str = "*"
    refusals: frozenset[tuple[int, str]] = frozenset({(_REFUSED_STATUS, _REFUSED_CODE)})
    initiates: bool = False
    multipart: bool = True
    promises_exclusion: bool = False
    void_if_versioned: bool = False
    checksum: Literal["crc32", "md5"] = "md5"
    prefix: str = _AMAZON
    renamed: Literal["metadata", "all"] = "metadata"

    def checksum_params(self, body: bytes) -> dict[str, str]:
        """Return the arguments of PutObject with which the server rejects a damaged body."""
        if self.checksum == "crc32":
            return {"ChecksumCRC32": _base64(raw_crc32(body).to_bytes(4, "big"))}
        return {"ContentMD5": md5_of(body)}

    def translate_request(self, operation: str, headers: MutableMapping[str, str]) -> None:
        """Translate the headers of a request into the vendor's headers. `operation`: botocore's
        name of the operation."""
        asks = headers.get(CONDITION) == "*"
        if asks:
            del headers[CONDITION]
        if asks or (self.initiates and operation == "CreateMultipartUpload"):
            headers[self.header] = self.value
        self._rename(headers, _AMAZON, self.prefix)

    def translate_headers(self, headers: MutableMapping[str, str]) -> None:
        """Rename the headers of a vendor's answer to Amazon's names."""
        self._rename(headers, self.prefix, _AMAZON)

    def translate_refusal(self, answer: Answer) -> Answer:
        """Translate a refused condition into Amazon's answer. Other answers stay unchanged."""
        if (answer.status, answer.code) not in self.refusals:
            return answer
        return replace(answer, status=_REFUSED_STATUS, code=_REFUSED_CODE)

    def explain_void(self, versioning: str) -> str:
        """Explain why the vendor ignores the condition of a create in a bucket with this
        versioning. Return an empty string if it does not. `versioning`: status, empty for a bucket
        that never had versioning."""
        if not versioning or not self.void_if_versioned:
            return ""
        return (
            f"{self.header} has no effect in a bucket whose versioning is {versioning.lower()}, so "
            "a late request could replace what is there: use a bucket that never had versioning"
        )

    def _rename(self, headers: MutableMapping[str, str], found: str, wanted: str) -> None:
        if found == wanted:
            return
        found += "meta-" if self.renamed == "metadata" else ""
        wanted += "meta-" if self.renamed == "metadata" else ""
        for name in [name for name in headers if name.lower().startswith(found)]:
            value = headers[name]
            del headers[name]
            headers[wanted + name[len(found) :]] = value


S3 = Dialect("s3", promises_exclusion=True, checksum="crc32")
OSS = Dialect(
    "oss",
    ("aliyuncs.com",),
    "x-oss-forbid-overwrite",
    "true",
    frozenset({(409, "FileAlreadyExists")}),
    initiates=True,
    void_if_versioned=True,
    prefix="x-oss-",
)
COS = Dialect(
    "cos",
    ("myqcloud.com", "tencentcos.cn"),
    "x-cos-forbid-overwrite",
    "true",
    frozenset({(409, "FileAlreadyExists")}),
    initiates=True,
    void_if_versioned=True,
    prefix="x-cos-",
)
OBS = Dialect(
    "obs",
    ("myhuaweicloud.com", "myhuaweicloud.eu"),
    "x-obs-forbid-overwrite",
    "true",
    frozenset({(409, "ObjectAlreadyExists"), (409, "FileAlreadyExists")}),
)
GOOGLE = Dialect(
    "google",
    ("storage.googleapis.com",),
    "x-goog-if-generation-match",
    "0",
    multipart=False,
    promises_exclusion=True,
    prefix="x-goog-",
    renamed="all",
)
DIALECTS: Mapping[str, Dialect] = {found.name: found for found in (S3, OSS, COS, OBS, GOOGLE)}


def choose_dialect(name: str, endpoint: str) -> Dialect:
    """Return the dialect with the given name, or for `auto` the dialect of the endpoint's host.
    Raises Invalid."""
    if name != "auto":
        return DIALECTS[name]
    host = f".{(urlsplit(endpoint).hostname or '').rstrip('.')}"
    for dialect in DIALECTS.values():
        if any(host.endswith(f".{ending}") for ending in dialect.hosts):
            return dialect
    return S3


def check_checksums(dialect: Dialect, checksums: str) -> None:
    """Raise Invalid if checksums must be confirmed but the endpoint does not confirm them."""
    if checksums == "required" and dialect.checksum != "crc32":
        raise Invalid(
            f"tieredStoreS3Checksums: required, but an endpoint of dialect {dialect.name} confirms "
            f"no CRC-32; with auto each body is sent with its MD5, which the endpoint checks"
        )


def md5_of(body: bytes) -> str:
    """Return the Content-MD5 value of a body."""
    return _base64(hashlib.md5(body, usedforsecurity=False).digest())


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


_ALGORITHM = "GOOG4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"
_SIGNATURE_VERSION = "goog4"


def speak(client: BotoClient, dialect: Dialect) -> None:
    """Translate all requests and answers of a boto3 client. No-op for S3's own dialect."""
    if dialect is S3:
        return

    def translate_request(request: Any, operation_name: str, **_: Any) -> None:
        if operation_name == "DeleteObjects":
            _replace_checksum(request)
        dialect.translate_request(operation_name, request.headers)

    def translate_headers(response_dict: dict[str, Any], **_: Any) -> None:
        dialect.translate_headers(response_dict["headers"])

    def choose_signer(**_: Any) -> Any:
        return _SIGNATURE_VERSION

    events = client.meta.events
    events.register("before-sign.s3", translate_request)
    events.register("before-parse.s3", translate_headers)
    if dialect.renamed == "all":
        events.register_first("choose-signer.s3", choose_signer)


def _replace_checksum(request: Any) -> None:
    """Replace the CRC-32 that botocore adds to a multi-object delete."""
    for name in [n for n in request.headers if n.lower().startswith("x-amz-checksum-")]:
        del request.headers[name]
    del request.headers["x-amz-sdk-checksum-algorithm"]
    del request.headers["Content-MD5"]
    request.headers["Content-MD5"] = md5_of(request.body)


class GoogleAuth(BaseSigner):
    """Google's form of Signature Version 4, for requests whose own headers are all `x-goog-…`. Such
    a request must have no `x-amz-…` header. Source:
    https://cloud.google.com/storage/docs/authentication/signatures"""

    REQUIRES_REGION = True

    def __init__(self, credentials: Any, region_name: str, **_: Any) -> None:
        self._credentials = credentials
        self._region = region_name

    def add_auth(self, request: Any) -> None:
        """Sign a request, and replace any existing signature. The body is not signed, as with
        Amazon's `UNSIGNED-PAYLOAD`."""
        if self._credentials is None:
            raise NoCredentialsError
        headers = request.headers
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        for name in ("Authorization", "x-goog-date", "x-goog-content-sha256"):
            del headers[name]
        headers["x-goog-date"] = now
        headers["x-goog-content-sha256"] = _UNSIGNED
        url = urlsplit(request.url)
        signed = {name.lower(): " ".join(str(headers[name]).split()) for name in headers}
        signed = {name: value for name, value in signed.items() if _is_signed(name)}
        signed["host"] = url.netloc
        names = sorted(signed)
        query = sorted(pair if "=" in pair else f"{pair}=" for pair in url.query.split("&") if pair)
        canonical = [request.method.upper(), url.path or "/", "&".join(query)]
        canonical += [f"{name}:{signed[name]}" for name in names]
        canonical += ["", ";".join(names), _UNSIGNED]
        hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
        scope = f"{now[:8]}/{self._region}/storage/goog4_request"
        signature = f"GOOG4{self._credentials.secret_key}".encode()
        for text in (*scope.split("/"), f"{_ALGORITHM}\n{now}\n{scope}\n{hashed}"):
            signature = hmac.digest(signature, text.encode(), "sha256")
        headers["Authorization"] = (
            f"{_ALGORITHM} Credential={self._credentials.access_key}/{scope}, "
            f"SignedHeaders={';'.join(names)}, Signature={signature.hex()}"
        )


def _is_signed(name: str) -> bool:
    return name.startswith("x-goog-") or name in {"content-md5", "content-type", "range"}


AUTH_TYPE_MAPS[_SIGNATURE_VERSION] = GoogleAuth
