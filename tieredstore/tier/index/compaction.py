"""From a sealed local file to the form that is uploaded, on disk."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.sync import sync_file
from tieredstore.message.index.tiered import compact, compacted_size
from tieredstore.tier.index.local_file import LocalIndexStoreFile
from tieredstore.tier.index.segments import CompactedIndex


def compact_file(file: LocalIndexStoreFile, directory: Path) -> CompactedIndex:
    """Write the compacted form of a sealed file to `directory/<begin>`, byte for byte as Java.

    A whole one that is there already is taken (a failed upload left it; a start removes them).
    Raises Unavailable when the disk fails or is full.
    """
    size = compacted_size(file.slots, file.item_count)
    path = directory / str(file.begin_ms)
    compacted = CompactedIndex(path, size, file.begin_ms, file.end_ms)
    try:
        if path.exists() and path.stat().st_size == size:
            return compacted
        directory.mkdir(exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            with temporary.open("wb") as target:
                for block in compact(file.buffer, file.slots):
                    target.write(block)
                target.flush()
                sync_file(target.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise translate_os_error(error, "compact", path, invalid=RETRY_LATER) from error
    return compacted
