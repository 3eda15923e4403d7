"""Keys of a queue's messages, by which the index tells the id of its topic."""

from __future__ import annotations

import numpy as np

from tieredstore.errors import Corrupt
from tieredstore.jobs.metadata.ends import BLOCK_BYTES, EndsReader
from tieredstore.message.columns.records import keys_to_index
from tieredstore.message.hashes import tiered_key_hash_candidates
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.message.record import StoredMessage, decode_record

_AT_EACH_END = 2
Probe = tuple[int, int, int]
"""A key that the index has if it has the message: hash, commit log offset, size in bytes."""


def probes_of(reader: EndsReader, messages: tuple[int, int], spread: int) -> list[Probe]:
    """Make probes of small messages at both ends of the queue offsets [from, until), or of `spread`
    messages evenly from all. Messages that cannot be read tell nothing. Raises Unavailable."""
    first, until = messages
    if first >= until:
        return []
    if spread:
        chosen = np.unique(np.linspace(first, until - 1, spread, dtype=np.int64)).tolist()
    else:
        whole = range(first, until)
        chosen = [*whole[:_AT_EACH_END], *whole[_AT_EACH_END:][-_AT_EACH_END:]]
    found: list[Probe] = []
    for unit in chosen:
        try:
            row = reader.read_units(unit, 1)[0]
            offset, size = int(row["physical_offset"]), int(row["size"])
            if size >= MIN_RECORD_SIZE and (spread or size <= BLOCK_BYTES):
                message = decode_record(reader.commit_log.read(offset, size))
                found += _of_message(message, reader.queue.topic, offset)
        except Corrupt:
            continue
    return found


def _of_message(message: StoredMessage, topic: str, offset: int) -> list[Probe]:
    keys = keys_to_index(message.properties_bytes)[:1] if message.topic == topic else []
    return [
        (key_hash, offset, message.size)
        for key in keys
        for key_hash in tiered_key_hash_candidates(topic, key)
    ]
