"""Stores that were not stopped cleanly, and checks after their recovery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.local_stores import FOREVER, running, small_config
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.checkpoint import Checkpoint, write_checkpoint

Found = dict[tuple[str, int], list[bytes]]


def leave_unclean(root: Path, *, checkpoint: Checkpoint | None = None) -> None:
    """Make a stopped store look as if its process had been killed. `checkpoint` is the new content
    of the checkpoint file."""
    (root / "abort").write_text("4711")
    if checkpoint is not None:
        write_checkpoint(root, checkpoint)


def read_everything(store: DefaultMessageStore) -> Found:
    """Return the raw records of each queue. Check that offsets have no gaps, and that each key
    finds its messages."""
    found: Found = {}
    for key in sorted(store.dispatch_source.queues()):
        minimum = store.get_min_offset_in_queue(*key)
        maximum = store.get_max_offset_in_queue(*key)
        records = []
        for offset in range(minimum, maximum):
            (message,) = store.get_message("g", key.topic, key.queue_id, offset, 1).messages
            assert message.queue_offset == offset or key.topic.startswith("%LMQ%")
            records.append(bytes(message.raw))
            if message.uniq_key is not None and not key.topic.startswith("%LMQ%"):
                hits = store.query_message(message.topic, message.uniq_key, 9, *FOREVER)
                assert message.physical_offset in [hit.physical_offset for hit in hits]
        found[key.topic, key.queue_id] = records
    return found


def reopen(root: Path, **changes: Any) -> Found:
    """Open a store, recovering it if needed, read all messages, and stop it."""
    with running(small_config(root, **changes)) as store:
        return read_everything(store)
