"""Block checksums that our writers store next to the segments of a Posix tier."""

from __future__ import annotations

from pathlib import Path

from tieredstore.providers.posix.sum_files import SUFFIX, sums_path


def checksums_of(segment: Path) -> Path:
    """Return the path of a segment's checksum file."""
    return Path(sums_path(str(segment)))


def forget_checksums(root: Path) -> int:
    """Delete the block checksums of a tier, so that it looks like a tier of a Java broker. Return
    the number of deleted files."""
    found = list(root.rglob(f".*{SUFFIX}"))
    for path in found:
        path.unlink()
    return len(found)
