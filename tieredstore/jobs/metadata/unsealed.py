"""Index files that a state directory has kept and the tier does not have yet: their items too need
their topics to get the ids that they had."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from tieredstore.config import StoreConfig
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.errors import Corrupt
from tieredstore.jobs.metadata.index import FoundIndex, Probes, Tally
from tieredstore.message.index.tiered import HEADER_SIZE, items_view, unpack_header, unsealed_size

_FOLDER = "tiered_index_file"
_ITEMS_AT_ONCE = 1 << 16


def find_unsealed(state: Path, config: StoreConfig, probes: Probes) -> Iterator[FoundIndex]:
    """Find what the items of unsealed index files say of topics. Files of another capacity than the
    configuration gives, which cannot be read, are left out. Raises Unavailable."""
    slots, max_items = config.index_file_max_hash_slot_num, config.index_file_max_index_num
    for path in sorted((state / _FOLDER).glob("[1-9]*")):
        try:
            if path.stat().st_size != unsealed_size(slots, max_items):
                continue
            with path.open("rb") as file:
                data = file.read(HEADER_SIZE)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise translate_os_error(error, "read", path, invalid=RETRY_LATER) from error
        try:
            header = unpack_header(data)
        except Corrupt:
            continue
        tally = Tally(probes)
        items = items_view(memoryview(mapped), slots, min(header.items + 1, max_items))
        for first in range(1, len(items), _ITEMS_AT_ONCE):
            tally.add(items[first : first + _ITEMS_AT_ONCE])
        yield FoundIndex(0, 0, None, topic_ids=tally.topic_ids, votes=tally.votes)
