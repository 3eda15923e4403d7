"""Dialects of conditional create: how an endpoint is asked to make an object only if it is absent,
and how it says no (`docs/s3.md` has what each vendor promises, with sources).

The client asks as Amazon is asked (`If-None-Match: *`) and understands what Amazon answers (412).
Only here is known that others are asked in other words.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from tieredstore.errors import Invalid
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.s3.errors import Answer

CONDITION = "If-None-Match"
_AMAZON = "x-amz-"
_REFUSED_STATUS, _REFUSED_CODE = 412, "PreconditionFailed"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one vendor is spoken to.

    hosts: what the host names of its endpoints end with. header, value: the condition. refusals:
    status and code of an answer that says that the key is taken. initiates: whether
    CreateMultipartUpload carries the condition too. multipart: whether parts are copied on the
    server and a completion takes the condition; without it an object made of parts is sent whole.
    promises_exclusion: whether the vendor says that of creates at the same time one alone succeeds;
    without that no writer is fenced.
    void_if_versioned: the condition is without effect in a bucket that has, or ever had,
    versioning. checksum: of what is sent. prefix: what stands for `x-amz-` in the names of headers,
    where `renamed` says: of metadata, or of all, which then take a signature of Google's.
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
        """Return what PutObject is called with, so that a body damaged on its way is refused."""
        if self.checksum == "crc32":
            return {"ChecksumCRC32": _base64(raw_crc32(body).to_bytes(4, "big"))}
        return {"ContentMD5": md5_of(body)}

    def translate_request(self, operation: str, headers: MutableMapping[str, str]) -> None:
        """Put the headers of a request into the vendor's words. operation: as botocore names it."""
        asks = headers.get(CONDITION) == "*"
        if asks:
            del headers[CONDITION]
        if asks or (self.initiates and operation == "CreateMultipartUpload"):
            headers[self.header] = self.value
        self._rename(headers, _AMAZON, self.prefix)

    def translate_headers(self, headers: MutableMapping[str, str]) -> None:
        """Put the headers of an answer into Amazon's words."""
        self._rename(headers, self.prefix, _AMAZON)

    def translate_refusal(self, answer: Answer) -> Answer:
        """Return a refused condition as Amazon tells it, anything else as it is."""
        if (answer.status, answer.code) not in self.refusals:
            return answer
        return replace(answer, status=_REFUSED_STATUS, code=_REFUSED_CODE)

    def explain_void(self, versioning: str) -> str:
        """Say that a bucket's versioning makes the condition void; empty where it does not.
        versioning: its status, empty for a bucket that never had any."""
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
    """Return the dialect of that name; for `auto` the one of the endpoint's host. Raises
    Invalid."""
    if name != "auto":
        return DIALECTS[name]
    host = f".{(urlsplit(endpoint).hostname or '').rstrip('.')}"
    for dialect in DIALECTS.values():
        if any(host.endswith(f".{ending}") for ending in dialect.hosts):
            return dialect
    return S3


def check_checksums(dialect: Dialect, checksums: str) -> None:
    """Raise Invalid where the endpoint confirms no checksum and must."""
    if checksums == "required" and dialect.checksum != "crc32":
        raise Invalid(
            f"tieredStoreS3Checksums: required, but an endpoint of dialect {dialect.name} confirms "
            f"no CRC-32; with auto each body is sent with its MD5, which the endpoint checks"
        )


def md5_of(body: bytes) -> str:
    """Return the value of Content-MD5."""
    return _base64(hashlib.md5(body, usedforsecurity=False).digest())


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
