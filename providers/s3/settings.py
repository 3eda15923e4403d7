"""The settings of an S3 tier: Java's four `objectStore…` ones and ours (`docs/s3.md`)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from tieredstore.errors import Invalid
from tieredstore.properties import SECRET
from tieredstore.providers.chunks.shared_settings import SharedSettings

_MS = 3_600_000
_RATE = 2**63 - 1


def _text(description: str, pattern: str | None = None) -> Meta:
    return Meta(description=description, pattern=pattern)


def _secret(description: str) -> Meta:
    return Meta(description=f"{description} Never in a URL, a log or an error.", extra=dict(SECRET))


def _number(description: str, ge: float, le: float) -> Meta:
    return Meta(description=description, ge=ge, le=le)


class S3Settings(SharedSettings, frozen=True, kw_only=True):
    """Where the tier is, who we are there, and how we behave. The repr has no secret."""

    PREFIXES: ClassVar[tuple[str, ...]] = ("objectStore", "tieredStoreS3", "tieredStoreChunk")

    # Where
    endpoint: Annotated[
        str, _text("URL of the endpoint; empty for Amazon's of the region.", "^(https?://.+)?$")
    ] = field(name="objectStoreEndpoint", default="")
    bucket: Annotated[
        str, _text("The bucket, which must exist; it is never created.", "^[A-Za-z0-9._-]{0,255}$")
    ] = field(name="objectStoreBucket", default="")
    prefix: Annotated[str, _text("Ours. What all keys begin with, without slashes around it.")] = (
        field(name="tieredStoreS3Prefix", default="")
    )
    region: Annotated[
        str, _text("Ours. Region to sign for; empty for the environment's or the profile's.")
    ] = field(name="tieredStoreS3Region", default="")
    path_style: Annotated[
        str,
        _text(
            "Ours. `path` (or `true`): the bucket in the path; `virtual` (or `false`): in the host "
            "name; `auto`: path with an endpoint that is an IP address or localhost, or a bucket "
            "whose name no host can have.",
            "^(auto|path|virtual|true|false)$",
        ),
    ] = field(name="tieredStoreS3PathStyle", default="auto")

    dialect: Annotated[
        str,
        _text(
            "Ours. How the endpoint is asked to make an object only if it is absent "
            "(`docs/s3.md`): `s3`, `oss`, `cos`, `obs`, `google`; `auto`: what the host "
            "name of `objectStoreEndpoint` says, `s3` for names that are not known.",
            "^(auto|s3|oss|cos|obs|google)$",
        ),
    ] = field(name="tieredStoreS3Dialect", default="auto")

    # Who
    access_key: Annotated[
        str, _secret("Access key; empty for the default chain (environment, profile, role).")
    ] = field(name="objectStoreAccessKey", default="")
    secret_key: Annotated[str, _secret("Secret key of that access key.")] = field(
        name="objectStoreSecretKey", default=""
    )
    session_token: Annotated[str, _secret("Ours. Session token of that access key.")] = field(
        name="tieredStoreS3SessionToken", default=""
    )
    profile: Annotated[str, _text("Ours. Profile of the shared configuration files.")] = field(
        name="tieredStoreS3Profile", default=""
    )
    role_arn: Annotated[
        str, _text("Ours. Role to assume with those credentials; renewed before it expires.")
    ] = field(name="tieredStoreS3RoleArn", default="")
    external_id: Annotated[str, _text("Ours. External id that the role asks for.")] = field(
        name="tieredStoreS3ExternalId", default=""
    )

    # What is written
    sse: Annotated[
        str,
        _text(
            "Ours. Encryption asked for with every write: `none` (the bucket's own default), "
            "`AES256` or `aws:kms`.",
            "^(none|AES256|aws:kms)$",
        ),
    ] = field(name="tieredStoreS3Sse", default="none")
    sse_kms_key_id: Annotated[
        str, _text("Ours. Key of `aws:kms`; empty for the account's own.")
    ] = field(name="tieredStoreS3SseKmsKeyId", default="")
    sse_bucket_key: Annotated[
        bool, Meta(description="Ours. Whether `aws:kms` uses a bucket key (fewer KMS requests).")
    ] = field(name="tieredStoreS3SseBucketKey", default=False)
    storage_class: Annotated[
        str,
        _text(
            "Ours. Storage class of sealed segments, such as `STANDARD_IA`; all else is always in "
            "the bucket's standard class. A class that must be restored before it is read, such as "
            "`GLACIER`, is refused.",
            "^(?!GLACIER$|DEEP_ARCHIVE$)[A-Z0-9_]*$",
        ),
    ] = field(name="tieredStoreS3StorageClass", default="")
    checksums: Annotated[
        str,
        _text(
            "Ours. `auto`: a CRC-32 (an MD5 where the dialect is not `s3`) with every write; "
            "`required`: and the answer must confirm it; `off`: none, for endpoints that refuse "
            "them.",
            "^(auto|required|off)$",
        ),
    ] = field(name="tieredStoreS3Checksums", default="auto")

    # How
    connect_timeout_ms: Annotated[int, _number("Ours. To connect, ms.", 1, _MS)] = field(
        name="tieredStoreS3ConnectTimeout", default=2000
    )
    read_timeout_ms: Annotated[
        int, _number("Ours. Silence of the server that ends an attempt, ms.", 1, _MS)
    ] = field(name="tieredStoreS3ReadTimeout", default=10_000)
    bulk_read_timeout_ms: Annotated[
        int, _number("Ours. The same where the server copies data itself, ms.", 1, _MS)
    ] = field(name="tieredStoreS3BulkReadTimeout", default=120_000)
    minimum_bytes_per_second: Annotated[
        int,
        _number(
            "Ours. A body slower than that after its read timeout is given up; 0: never.", 0, _RATE
        ),
    ] = field(name="tieredStoreS3MinimumRate", default=5_000_000)
    max_attempts: Annotated[
        int, _number("Ours. Attempts of a request, the first included.", 1, 20)
    ] = field(name="tieredStoreS3MaxAttempts", default=4)
    max_connections: Annotated[
        int,
        _number(
            "Ours. Connections, and requests at once, of reads; commits have as many of their own.",
            1,
            1024,
        ),
    ] = field(name="tieredStoreS3MaxConnections", default=32)
    bulk_connections: Annotated[
        int, _number("Ours. The same of merges, seals and deletions.", 1, 1024)
    ] = field(name="tieredStoreS3BulkConnections", default=8)
    fast_reads: Annotated[
        bool,
        Meta(
            description="Ours. Whether ranges of up to 1 MiB are read through obstore where it is "
            "installed (`docs/adr/0004-obstore.md`)."
        ),
    ] = field(name="tieredStoreS3FastReads", default=True)
    proxy: Annotated[
        str, _secret("Ours. Proxy URL; empty for the environment's (HTTPS_PROXY, NO_PROXY).")
    ] = field(name="tieredStoreS3Proxy", default="")
    ca_bundle: Annotated[str, _text("Ours. File of the authorities to trust (PEM).")] = field(
        name="tieredStoreS3CaBundle", default=""
    )
    verify_tls: Annotated[
        bool, Meta(description="Ours. Whether the server's certificate is checked.")
    ] = field(name="tieredStoreS3VerifyTls", default=True)
    bytes_per_second: Annotated[
        int, _number("Ours. Most bytes a second of commits and reads, 0: no limit.", 0, _RATE)
    ] = field(name="tieredStoreS3BytesPerSecond", default=0)
    requests_per_second: Annotated[
        int, _number("Ours. Most requests a second of commits and reads, 0: no limit.", 0, _RATE)
    ] = field(name="tieredStoreS3RequestsPerSecond", default=0)
    bulk_bytes_per_second: Annotated[
        int, _number("Ours. The same of merges, seals and deletions, bytes.", 0, _RATE)
    ] = field(name="tieredStoreS3BulkBytesPerSecond", default=0)
    bulk_requests_per_second: Annotated[
        int, _number("Ours. The same of merges, seals and deletions, requests.", 0, _RATE)
    ] = field(name="tieredStoreS3BulkRequestsPerSecond", default=0)

    # What it costs, for the meter
    write_price: Annotated[
        float, _number("Ours. US dollars a million PUT, COPY and POST requests.", 0, 1e9)
    ] = field(name="tieredStoreS3WritePrice", default=5.0)
    list_price: Annotated[float, _number("Ours. US dollars a million LIST requests.", 0, 1e9)] = (
        field(name="tieredStoreS3ListPrice", default=5.0)
    )
    read_price: Annotated[
        float, _number("Ours. US dollars a million GET and HEAD requests.", 0, 1e9)
    ] = field(name="tieredStoreS3ReadPrice", default=0.4)
    delete_price: Annotated[
        float, _number("Ours. US dollars a million DELETE requests.", 0, 1e9)
    ] = field(name="tieredStoreS3DeletePrice", default=0.0)
    transfer_price: Annotated[
        float, _number("Ours. US dollars a GiB read; 0 within a region.", 0, 1e9)
    ] = field(name="tieredStoreS3TransferPrice", default=0.0)

    def __post_init__(self) -> None:
        """Raise Invalid for settings that exclude one another."""
        longest_ms = self.max_attempts * self.bulk_read_timeout_ms
        if self.upload_age_ms < longest_ms:
            raise Invalid(
                "tieredStoreChunkUploadAge: expected at least tieredStoreS3MaxAttempts x "
                f"tieredStoreS3BulkReadTimeout, {longest_ms} ms, as an upload under way would be "
                f"taken for nobody's; found {self.upload_age_ms}"
            )

    def __repr__(self) -> str:
        return f"S3Settings(bucket={self.bucket!r}, prefix={self.prefix!r}, region={self.region!r})"
