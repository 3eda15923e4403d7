"""The checksums that our writers leave beside the segments of a Posix tier."""

from __future__ import annotations

from pathlib import Path

from tieredstore.providers.posix.sum_files import SUFFIX, sums_path


def checksums_of(segment: Path) -> Path:
    """The file of checksums beside a segment's."""
    return Path(sums_path(str(segment)))


def forget_checksums(root: Path) -> int:
    """Make a tier one that has none, as a Java broker leaves it: what its formats tell of damage is
    all that is told. Returns how many files of them there were."""
    found = list(root.rglob(f".*{SUFFIX}"))
    for path in found:
        path.unlink()
    return len(found)
