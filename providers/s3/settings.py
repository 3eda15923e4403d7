"""Settings of an S3 tier: Java's four `objectStore…` keys and ours (`docs/s3.md`)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from tieredstore.properties import Secret
from tieredstore.providers.chunks.shared_settings import SharedSettings

_MS = 3_600_000
Price = Annotated[float, Meta(ge=0, le=1e9)]


class S3Settings(SharedSettings, frozen=True, kw_only=True):
    """Location of the tier, credentials and behaviour. The repr shows no secret."""

    PREFIXES: ClassVar[tuple[str, ...]] = ("objectStore", "tieredStoreS3", "tieredStoreChunk")

    # Location
    endpoint: Annotated[str, Meta(pattern="^(https?://.+)?$")] = field(
        name="objectStoreEndpoint", default=""
    )
    """URL of the endpoint. Empty: Amazon's endpoint of the region."""
    bucket: Annotated[str, Meta(pattern="^[A-Za-z0-9._-]{0,255}$")] = field(
        name="objectStoreBucket", default=""
    )
    """The bucket. It must exist, because it is never created."""
    prefix: str = field(name="tieredStoreS3Prefix", default="")
    """Ours. Prefix of all keys, without slashes at its ends."""
    region: str = field(name="tieredStoreS3Region", default="")
    """Ours. Region in the signatures of requests. Empty: the region of the environment or of the
    profile."""
    path_style: Annotated[str, Meta(pattern="^(auto|path|virtual|true|false)$")] = field(
        name="tieredStoreS3PathStyle", default="auto"
    )
    """Ours. Position of the bucket's name in URLs. `path` (or `true`): in the path. `virtual` (or
    `false`): in the host name. `auto`: in the path if the endpoint is an IP address or localhost,
    or if no host can have the bucket's name."""

    dialect: Annotated[str, Meta(pattern="^(auto|s3|oss|cos|obs|google)$")] = field(
        name="tieredStoreS3Dialect", default="auto"
    )
    """Ours. How a request asks the endpoint to create an object only if it is absent
    (`docs/s3.md`): `s3`, `oss`, `cos`, `obs`, `google`. `auto`: by the host name of
    `objectStoreEndpoint`, and `s3` for unknown names."""

    # Credentials
    access_key: Secret = field(name="objectStoreAccessKey", default="")
    """Access key. Empty: the default chain (environment, profile, role). Never in a URL, a log or
    an error."""
    secret_key: Secret = field(name="objectStoreSecretKey", default="")
    """Secret key of that access key. Never in a URL, a log or an error."""
    session_token: Secret = field(name="tieredStoreS3SessionToken", default="")
    """Ours. Session token of that access key. Never in a URL, a log or an error."""
    profile: str = field(name="tieredStoreS3Profile", default="")
    """Ours. Profile of the shared configuration files."""
    role_arn: str = field(name="tieredStoreS3RoleArn", default="")
    """Ours. ARN of the role to assume with these credentials. The role's session is renewed before
    it expires."""
    external_id: str = field(name="tieredStoreS3ExternalId", default="")
    """Ours. External id that the role demands."""

    # Written objects
    sse: Annotated[str, Meta(pattern="^(none|AES256|aws:kms)$")] = field(
        name="tieredStoreS3Sse", default="none"
    )
    """Ours. Encryption of every write: `none` (the bucket's own default), `AES256` or `aws:kms`."""
    sse_kms_key_id: str = field(name="tieredStoreS3SseKmsKeyId", default="")
    """Ours. KMS key for `aws:kms`. Empty: the default key of the account."""
    sse_bucket_key: bool = field(name="tieredStoreS3SseBucketKey", default=False)
    """Ours. Whether `aws:kms` uses a bucket key (fewer KMS requests)."""
    storage_class: Annotated[str, Meta(pattern="^(?!GLACIER$|DEEP_ARCHIVE$)[A-Z0-9_]*$")] = field(
        name="tieredStoreS3StorageClass", default=""
    )
    """Ours. Storage class of sealed segments, such as `STANDARD_IA`. All other objects are in the
    bucket's standard class. A class such as `GLACIER`, whose objects must be restored before a
    read, is refused."""
    checksums: Annotated[str, Meta(pattern="^(auto|required|off)$")] = field(
        name="tieredStoreS3Checksums", default="auto"
    )
    """Ours. Checksums of writes. `auto`: a CRC-32 with every write (an MD5 where the dialect is not
    `s3`). `required`: as `auto`, but the answer must confirm the checksum. `off`: none, for
    endpoints that refuse checksums."""

    # Behaviour
    read_timeout_ms: Annotated[int, Meta(ge=1, le=_MS)] = field(
        name="tieredStoreS3ReadTimeout", default=10_000
    )
    """Ours. An attempt fails when the server has sent nothing for this time, ms."""
    max_attempts: Annotated[int, Meta(ge=1, le=20)] = field(
        name="tieredStoreS3MaxAttempts", default=4
    )
    """Ours. Maximum number of attempts of a request, including the first one."""
    max_connections: Annotated[int, Meta(ge=1, le=1024)] = field(
        name="tieredStoreS3MaxConnections", default=32
    )
    """Ours. Maximum number of connections for reads, and so of concurrent reads. Commits have the
    same number of separate connections."""
    fast_reads: bool = field(name="tieredStoreS3FastReads", default=True)
    """Ours. Whether ranges of up to 1 MiB are read through obstore where it is installed
    (`docs/adr/0004-obstore.md`)."""
    proxy: Secret = field(name="tieredStoreS3Proxy", default="")
    """Ours. Proxy URL. Empty: the proxy of the environment (HTTPS_PROXY, NO_PROXY). Never in a URL,
    a log or an error."""
    ca_bundle: str = field(name="tieredStoreS3CaBundle", default="")
    """Ours. PEM file of trusted certificate authorities."""
    verify_tls: bool = field(name="tieredStoreS3VerifyTls", default=True)
    """Ours. Whether the server's certificate is checked."""

    # Prices for the meter
    write_price: Price = field(name="tieredStoreS3WritePrice", default=5.0)
    """Ours. Price of a million PUT, COPY and POST requests, US dollars."""
    read_price: Price = field(name="tieredStoreS3ReadPrice", default=0.4)
    """Ours. Price of a million GET and HEAD requests, US dollars."""
    transfer_price: Price = field(name="tieredStoreS3TransferPrice", default=0.0)
    """Ours. Price of a GiB read, US dollars. 0 within a region."""

    @property
    def bulk_read_timeout_ms(self) -> int:
        """Read timeout of background requests. It is longer than for reads, because the server may
        copy data first."""
        return max(self.read_timeout_ms, 120_000)

    def __repr__(self) -> str:
        return f"S3Settings(bucket={self.bucket!r}, prefix={self.prefix!r}, region={self.region!r})"
