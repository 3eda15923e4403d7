"""Block checksums that our writers store beside the segments of a Posix tier."""

from __future__ import annotations

from pathlib import Path

from tieredstore.providers.posix.sum_files import SUFFIX, sums_path


def checksums_of(segment: Path) -> Path:
    """Return the path of the checksum file beside a segment's file."""
    return Path(sums_path(str(segment)))


def forget_checksums(root: Path) -> int:
    """Delete the block checksums of a tier, so that the tier looks as if a Java broker wrote it.
    Afterwards, damage shows only in the files themselves. Return the number of deleted files."""
    found = list(root.rglob(f".*{SUFFIX}"))
    for path in found:
        path.unlink()
    return len(found)
