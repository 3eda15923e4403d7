"""A tier in a bucket of S3, or of what is compatible with it (`docs/s3.md`)."""

from tieredstore.providers.s3.provider import S3FileSegment, S3Provider

__all__ = ["S3FileSegment", "S3Provider"]
