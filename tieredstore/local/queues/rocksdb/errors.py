"""The errors of ours for what RocksDB says, which are texts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tieredstore.errors import (
    Corrupt,
    Exhausted,
    Fenced,
    Invalid,
    TieredStoreError,
    Unavailable,
)

_EXHAUSTED: Final = (
    "No space left on device",
    "Disk quota exceeded",
    "Too many open files",
    "Cannot allocate memory",
    "NoSpace",
)
_NOT_ALLOWED: Final = ("Permission denied", "Read-only file system", "Not a directory")


def translate_rocksdb_error(
    error: Exception, action: str, path: str | Path, *, is_sync: bool = False
) -> TieredStoreError:
    """Make Exhausted, Fenced, Corrupt, Invalid or else Unavailable of what the library raised.

    action: what failed, as in "cannot <action>". is_sync: a sync failed, whose error is never
    Exhausted (`tieredstore.disk.errors`).
    """
    text = str(error)
    kind: type[TieredStoreError] = Unavailable
    if any(reason in text for reason in _EXHAUSTED) and not is_sync:
        kind = Exhausted
    elif "lock hold by current process" in text or "While lock file" in text:
        kind = Fenced
    elif text.startswith("Corruption"):
        kind = Corrupt
    elif any(reason in text for reason in _NOT_ALLOWED) or text.startswith("Invalid argument"):
        kind = Invalid
    return kind(f"{path}: cannot {action}: {text}", path=str(path))
