"""Tier in a bucket of S3 or a compatible store (`docs/s3.md`)."""

from tieredstore.providers.s3.provider import S3FileSegment, S3Provider

__all__ = ["S3FileSegment", "S3Provider"]
