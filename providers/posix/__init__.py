"""Segments as plain files in Java's layout (`docs/formats/tier-layout.md`)."""

from tieredstore.providers.posix.provider import PosixFileSegment, PosixProvider

__all__ = ["PosixFileSegment", "PosixProvider"]
