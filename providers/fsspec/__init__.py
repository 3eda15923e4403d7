"""A tier on any filesystem of fsspec (`docs/fsspec.md`)."""

from tieredstore.providers.fsspec.provider import FsspecProvider

__all__ = ["FsspecProvider"]
