"""Lets a boto3 client speak a dialect: its requests before they are signed, its answers before they
are read."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore.auth import AUTH_TYPE_MAPS, BaseSigner
from botocore.exceptions import NoCredentialsError

from tieredstore.providers.s3.dialects.dialect import S3, Dialect, md5_of

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client as BotoClient

_ALGORITHM = "GOOG4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"
_SIGNATURE_VERSION = "goog4"


def speak(client: BotoClient, dialect: Dialect) -> None:
    """Translate all that the client sends and gets. Nothing is changed for S3's own dialect."""
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
    """A request that deletes many must carry a checksum, which for botocore is a CRC-32."""
    for name in [n for n in request.headers if n.lower().startswith("x-amz-checksum-")]:
        del request.headers[name]
    del request.headers["x-amz-sdk-checksum-algorithm"]
    del request.headers["Content-MD5"]
    request.headers["Content-MD5"] = md5_of(request.body)


class GoogleAuth(BaseSigner):
    """Signature Version 4 in Google's words, for requests whose own headers are all `x-goog-…`:
    where one is, none may be `x-amz-…`.

    Source: https://cloud.google.com/storage/docs/authentication/signatures
    """

    REQUIRES_REGION = True

    def __init__(self, credentials: Any, region_name: str, **_: Any) -> None:
        self._credentials = credentials
        self._region = region_name

    def add_auth(self, request: Any) -> None:
        """Sign a request, a second time too. The body is not hashed, as for Amazon."""
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
