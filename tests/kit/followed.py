"""An offload that follows a store, which the test changes whenever the offload waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests.kit.command_line import tieredstore
from tests.kit.local_stores import put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.jobs.options import OffloadOptions
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message


def options(store: Path, **more: Any) -> OffloadOptions:
    root = store.parent
    return OffloadOptions(
        f"file://{root / 'tier'}", store, state=root / "state", broker="b", cluster="c", **more
    )


def put(store: DefaultMessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        result = store.put_message(
            Message.create("T", f"body {number}".encode(), keys=[f"k{number}"])
        )
        assert result.ok


class Steps(ManualClock):
    """A clock whose waits run the steps of a scenario, one per wait."""

    def __init__(self, steps: list[Any]) -> None:
        super().__init__(4_000_000_000_000)
        self.steps = steps

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        super().wait(event, timeout_ms)
        if self.steps:
            self.steps.pop(0)()
        return event.is_set()


def fill(root: Path, *messages: Message) -> None:
    """Start a stopped store, put messages, and stop it again."""
    with running(small_config(root)) as store:
        put_all(store, list(messages))


def tiered_bodies(root: Path, topic: str) -> list[str]:
    where = ["--tier", f"file://{root / 'tier'}", "--topic", topic, "--output", "ndjson"]
    return [row["body"] for row in tieredstore("cat", *where).rows]
