"""Runs a local store under load, in a process that a test kills. A request is {"store", "acks",
"flush_disk_type"}. The file `acks` has one line per acknowledged message: topic, queue id, number.
A queue's numbers increase from 0 across all processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from tests.kit.killable.driver import serve
from tests.kit.store_type import STORE_TYPE
from tieredstore.config import StoreConfig
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message

QUEUES = (("A", 0), ("A", 1), ("B", 0))
BATCH = 7


def make_config(root: Path, **changes: Any) -> StoreConfig:
    """Return settings with commit log files of 64 KiB and 100 units per queue file, so that each
    process fills many files."""
    config = StoreConfig(
        store_path_root_dir=str(root),
        store_type=STORE_TYPE,
        mapped_file_size_commit_log_bytes=65536,
        mapped_file_size_consume_queue_bytes=2000,
        max_hash_slot_num=100,
        max_index_num=400,
    )
    return msgspec.structs.replace(config, **changes)


def body_of(topic: str, queue_id: int, number: int) -> bytes:
    """Return the body of a message: its identity, padded to a varying length."""
    head = b"%s/%d/%d/" % (topic.encode(), queue_id, number)
    return head.ljust(20 + number * 37 % 900, b"x")


def write(store: DefaultMessageStore, acks: int, topic: str, queue_id: int, *, batch: bool) -> None:
    number = store.next_offset(topic, queue_id)
    while True:
        count = BATCH if batch else 1
        messages = [
            Message.create(
                topic,
                body_of(topic, queue_id, number + row),
                queue_id=queue_id,
                keys=[f"k{number + row}"],
                tags="t",
            )
            for row in range(count)
        ]
        result = store.put_messages(messages) if batch else store.put_message(messages[0])
        if not result.ok:
            raise AssertionError(result)
        if result.queue_offset != number:
            raise AssertionError((number, result))
        result.durable.result(30)
        lines = "".join(f"{topic} {queue_id} {number + row}\n" for row in range(count))
        os.write(acks, lines.encode())
        number += count


def run(request: dict[str, Any]) -> None:
    config = make_config(Path(request["store"]), flush_disk_type=request["flush_disk_type"])
    acks = os.open(request["acks"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    store = DefaultMessageStore(config)
    store.load()
    store.start()
    failed = threading.Event()

    def work(topic: str, queue_id: int) -> None:
        try:
            write(store, acks, topic, queue_id, batch=topic == "B")
        finally:
            failed.set()

    for topic, queue_id in QUEUES:
        threading.Thread(target=work, args=(topic, queue_id), daemon=True).start()
    while not failed.wait(0.03):
        store.flush()
    raise AssertionError("a writer ended")


if __name__ == "__main__":
    serve(run)
