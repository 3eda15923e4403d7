"""Translation of an object store's failures into the project's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from botocore import exceptions as botocore_errors

from tieredstore.errors import Corrupt, Invalid, TieredStoreError, Unavailable

THROTTLES = frozenset(
    {
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "TooManyRequestsException",
        "BandwidthLimitExceeded",
        "429",
    }
)
"""Error codes of refusals because of load. The request was certainly not executed."""

_PASSING = frozenset(
    {"InternalError", "RequestTimeout", "RequestTimeoutException", "IncompleteBody"}
)
_PASSING_STATUS = frozenset({429, 500, 502, 503, 504})

CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""Error codes with status 409: another request for the same key is in flight."""

EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
)

_POLICY = "docs/s3.md lists the permissions that are needed"
_BY_CODE: Mapping[str, tuple[type[TieredStoreError], str]] = {
    "NoSuchBucket": (Invalid, "the bucket does not exist (it is never created here)"),
    "AccessDenied": (Invalid, f"permission denied; {_POLICY}"),
    "AllAccessDisabled": (Invalid, "all access to the bucket is disabled"),
    "AccountProblem": (Invalid, "the account has a problem"),
    "403": (Invalid, f"permission denied; {_POLICY}"),
    "InvalidAccessKeyId": (Invalid, "the access key is not known there"),
    "SignatureDoesNotMatch": (Invalid, "the secret key does not belong to the access key"),
    "InvalidToken": (Invalid, "the session token is not valid"),
    "XAdminUserNotFound": (Invalid, "the access key is not known there"),
    "InvalidObjectState": (
        Corrupt,
        "the object was archived and must be restored before it can be read",
    ),
    "EntityTooSmall": (Invalid, "a part is smaller than the endpoint allows"),
    "EntityTooLarge": (Invalid, "larger than the endpoint allows"),
    "KeyTooLongError": (Invalid, "the key is longer than the endpoint allows"),
    "NotImplemented": (Invalid, "the endpoint does not implement it"),
    "MethodNotAllowed": (Invalid, "the endpoint does not allow it"),
    "BadDigest": (Unavailable, "the body was damaged on its way"),
    "InvalidDigest": (Unavailable, "the body was damaged on its way"),
    "XAmzContentSHA256Mismatch": (Unavailable, "the body was damaged on its way"),
    "XAmzContentChecksumMismatch": (Unavailable, "the body was damaged on its way"),
    "IncompleteBody": (Unavailable, "the endpoint did not get the whole request"),
    "RequestTimeout": (Unavailable, "the endpoint did not get the whole request in time"),
    "NoSuchUpload": (Unavailable, "the multipart upload is gone"),
}
_REGION_CODES = frozenset(
    {
        "PermanentRedirect",
        "TemporaryRedirect",
        "Redirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "301",
        "307",
    }
)
_KMS = re.compile(r"^KMS[.A-Z]")


@dataclass(frozen=True, slots=True)
class Answer:
    """Error answer of the server. `code`: the error code, or the HTTP status if there is no
    body."""

    code: str
    status: int
    message: str
    region: str = ""
    date: str = ""


def read_answer(error: botocore_errors.ClientError) -> Answer:
    found = error.response.get("Error", {})
    meta = error.response.get("ResponseMetadata", {})
    headers = meta.get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or found.get("Region", "")
    return Answer(
        code=str(found.get("Code", "")),
        status=int(meta.get("HTTPStatusCode", 0)),
        message=" ".join(str(found.get("Message", "")).split())[:300],
        region=str(region),
        date=headers.get("date", ""),
    )


def make_answer_error(answer: Answer, what: str) -> TieredStoreError:
    """Return the exception to raise for an error answer. `what`: operation and object, for the
    message."""
    code, status = answer.code, answer.status
    if code in _BY_CODE:
        kind, why = _BY_CODE[code]
        return kind(f"{what}: {why} ({code})")
    if code in EXPIRED:
        return Unavailable(f"{what}: the credentials have expired, renewed ones too ({code})")
    if code == "RequestTimeTooSkewed":
        return Unavailable(
            f"{what}: this machine's clock is wrong: the server's says {answer.date or 'otherwise'}"
            f" ({code})"
        )
    if code in _REGION_CODES:
        where = f"is in region {answer.region}" if answer.region else "is not in this region"
        return Invalid(f"{what}: the bucket {where}: set tieredStoreS3Region ({code})")
    if code in THROTTLES or status in {429, 503}:
        return Unavailable(f"{what}: the endpoint asks for fewer requests ({code or status})")
    if code in CONFLICTS:
        return Unavailable(f"{what}: another request on the key is under way ({code})")
    if _KMS.match(code):
        return Invalid(f"{what}: the KMS key cannot be used ({code}): {answer.message}")
    if status >= 500 or code == "InternalError":
        return Unavailable(f"{what}: the endpoint failed ({code or status})")
    return Invalid(f"{what}: refused ({code or status}): {answer.message or 'no reason given'}")


def is_passing_answer(answer: Answer) -> bool:
    """Return whether a retry of the same request may succeed. After a conflict (409) it cannot. The
    caller must find out which writer succeeded."""
    return answer.code in THROTTLES or answer.code in _PASSING or answer.status in _PASSING_STATUS


@contextmanager
def require_whole_answers(what: str) -> Iterator[None]:
    """Raise Unavailable for a truncated answer that lacks a field."""
    try:
        yield
    except KeyError as error:
        raise Unavailable(f"{what}: the answer has no {error.args[0]}") from None


_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_NOT_SENT = (
    botocore_errors.EndpointConnectionError,
    botocore_errors.ConnectTimeoutError,
    botocore_errors.ProxyConnectionError,
)


def is_not_sent(error: BaseException | None) -> bool:
    """Return whether an attempt certainly failed before it reached the server."""
    return isinstance(error, _NOT_SENT) or _is_untrusted(error)


def is_passing_failure(error: Exception) -> bool:
    """Return whether a retry of the same request may get an answer."""
    passing = (botocore_errors.ConnectionError, botocore_errors.HTTPClientError)
    return isinstance(error, passing) and not _is_untrusted(error)


def _is_untrusted(error: BaseException | None) -> bool:
    return isinstance(error, botocore_errors.SSLError) and _UNTRUSTED in str(error)


def _endpoint(error: botocore_errors.BotoCoreError | botocore_errors.HTTPClientError) -> str:
    """Return the scheme, host and port of a URL. The rest may contain a signature."""
    try:
        url = urlsplit(str(error.kwargs.get("endpoint_url", "")))
        host, port = url.hostname, url.port
    except ValueError:
        return "the endpoint"
    if not host:
        return "the endpoint"
    host = f"[{host}]" if ":" in host else host
    return f"{url.scheme}://{host}" if port is None else f"{url.scheme}://{host}:{port}"


def make_library_error(error: Exception, what: str, *, sent: bool = False) -> TieredStoreError:
    """Return the error for a failure without a readable answer. The original text is omitted,
    because it may contain a proxy's password. `sent`: whether an attempt may have been executed."""
    name = type(error).__name__
    if sent and isinstance(error, ValueError):
        return Unavailable(f"{what}: the answer cannot be read ({name})")
    if isinstance(error, botocore_errors.SSLError):
        if _is_untrusted(error):
            return Invalid(
                f"{what}: the server's certificate is not trusted: set tieredStoreS3CaBundle"
            )
        return Unavailable(f"{what}: the TLS connection failed ({name})")
    if isinstance(error, botocore_errors.EndpointConnectionError):
        return Unavailable(f"{what}: cannot connect to {_endpoint(error)} ({name})")
    if isinstance(error, botocore_errors.ConnectTimeoutError):
        return Unavailable(f"{what}: connecting to {_endpoint(error)} took too long ({name})")
    if isinstance(error, botocore_errors.ReadTimeoutError):
        return Unavailable(f"{what}: no answer of {_endpoint(error)} in time ({name})")
    if isinstance(error, botocore_errors.ProxyConnectionError):
        return Unavailable(f"{what}: cannot connect to the proxy ({name})")
    if isinstance(error, botocore_errors.HTTPClientError):
        return Unavailable(f"{what}: the connection broke ({name})")
    if isinstance(
        error, botocore_errors.NoCredentialsError | botocore_errors.PartialCredentialsError
    ):
        return Invalid(
            f"{what}: no credentials: set the environment, a profile, a role or "
            "objectStoreAccessKey"
        )
    if isinstance(error, botocore_errors.NoRegionError):
        return Invalid(f"{what}: no region: set tieredStoreS3Region")
    if isinstance(error, botocore_errors.ProfileNotFound):
        return Invalid(f"{what}: the profile is not in the shared configuration files")
    if isinstance(error, botocore_errors.ParamValidationError | ValueError):
        return Invalid(f"{what}: the request is not valid ({name})")
    return Unavailable(f"{what}: {name}")
