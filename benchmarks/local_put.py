"""Puts into a local store, measured until everything is dispatched.

Usage: python benchmarks/local_put.py [messages] [body bytes] [queues]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tieredstore.config import StoreConfig
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.record import Message


def messages(count: int, body_bytes: int, queues: int) -> list[Message]:
    body = b"x" * body_bytes
    return [
        Message.create(
            "benchTopic",
            body,
            queue_id=i % queues,
            tags="TagA",
            keys=f"key-{i}",
            uniq_key=f"{i:032X}",
            properties={"WAIT": "true"},
        )
        for i in range(count)
    ]


def run(name: str, sent: list[Message], batch: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = DefaultMessageStore(StoreConfig(store_path_root_dir=str(Path(folder) / "store")))
        store.load()
        store.start()
        begin, cpu = time.perf_counter(), time.process_time()
        if batch == 1:
            for message in sent:
                store.put_message(message)
        else:
            by_queue: dict[int, list[Message]] = {}
            for message in sent:
                by_queue.setdefault(message.queue_id, []).append(message)
            for queue in by_queue.values():
                for start in range(0, len(queue), batch):
                    store.put_messages(queue[start : start + batch])
        put = time.perf_counter() - begin
        store.wait_dispatched()
        total = time.perf_counter() - begin
        cpu = time.process_time() - cpu
        assert store.get_max_offset_in_queue("benchTopic", 0) > 0
        store.shutdown()
        count = len(sent)
        print(
            f"{name}: put {count / put:,.0f}/s, until dispatched {count / total:,.0f}/s, "
            f"per CPU second {count / cpu:,.0f}/s"
        )


def main() -> None:
    count, body_bytes, queues = (
        int(argument) for argument in (sys.argv[1:] + ["200000", "1024", "4"][len(sys.argv) - 1 :])
    )
    sent = messages(count, body_bytes, queues)
    for _ in range(3):
        run("single", sent, 1)
    for _ in range(3):
        run("batch of 64", sent, 64)


if __name__ == "__main__":
    main()
