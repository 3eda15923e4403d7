"""Location of a tier in a bucket. Translates between keys of the tier and of the bucket."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.errors import Invalid

MAX_KEY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class S3Place:
    """Location of a tier in S3. `prefix`: prefix of all keys, without slashes at its ends, or empty
    for the whole bucket."""

    bucket: str
    prefix: str = ""

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    def add_prefix(self, key: str) -> str:
        """Return the key in the bucket. Raises Invalid for a key that is too long for S3."""
        found = f"{self.prefix}/{key}" if self.prefix else key
        size = len(found.encode())
        if size > MAX_KEY_BYTES:
            raise Invalid(
                f"{self.url}: key {key!r} has {size} bytes with its prefix, at most "
                f"{MAX_KEY_BYTES} are possible",
                path=key,
            )
        return found

    def remove_prefix(self, full: str) -> str:
        return full[len(self.prefix) + 1 :] if self.prefix else full

    def describe_operation(self, operation: str, key: str) -> str:
        """Describe the operation and its object for messages."""
        return f"{operation} {self.url}/{key}"
