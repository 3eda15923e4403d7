"""A tiered store over a local store in one folder. A test can stop, lose and reopen it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.kit.configured_broker import conf
from tests.kit.local_stores import START_MS
from tieredstore import registry
from tieredstore.clock import ManualClock
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.tier.store import TieredMessageStore
from tieredstore.tier.upload.outcome import DispatchOutcome

POSIX: dict[str, object] = {
    "tieredBackendServiceProvider": "posix",
    "mappedFileSizeCommitLog": 1 << 16,
    "mappedFileSizeConsumeQueue": 2_000,
    "maxIndexNum": 100_000,
    "tieredStoreGroupCommitTimeout": 0,
}


class TieredLocal:
    """Tiered store of one broker that puts, uploads and reads messages. `keys` are further Java
    properties."""

    def __init__(self, root: Path, clock: ManualClock | None = None, /, **keys: object) -> None:
        self.root = root
        self.keys = {**POSIX, **keys}
        self.clock = clock or ManualClock(START_MS)
        self.open()

    def open(self, **keys: object) -> None:
        loaded = conf(self.root, **{**self.keys, **keys})
        store = registry.message_store(loaded, self.clock)
        assert isinstance(store, TieredMessageStore)
        store.load()
        try:
            store.start()
        except BaseException:
            store.shutdown()
            raise
        self.store = store
        local = store.next_store
        assert isinstance(local, DefaultMessageStore)
        self.local = local

    def close(self) -> None:
        self.store.shutdown()

    def reopen(self, **keys: object) -> None:
        self.close()
        self.open(**keys)

    def lose_disk(self) -> None:
        """Delete everything on the local disk except the folder `config`, as if that were on
        another disk."""
        self.close()
        store = self.root / "store"
        for path in store.iterdir():
            if path.name != "config":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def put(self, topic: str, *bodies: bytes, queue_id: int = 0, key: str = "all") -> list[int]:
        """Put messages, wait until they can be read, and return their queue offsets."""
        offsets = []
        for body in bodies:
            self.clock.advance(10)
            message = Message.create(topic, body, queue_id=queue_id, keys=[key])
            result = self.store.put_message(message)
            assert result.ok, result.reason
            offsets.append(result.queue_offset)
        self.local.wait_until_dispatched()
        return offsets

    def upload(self) -> list[DispatchOutcome]:
        """Flush and upload everything. No upload round may fail."""
        self.local.flush()
        outcomes = self.store.dispatcher.scan(force=True)
        assert [outcome.error for outcome in outcomes if outcome.error is not None] == []
        return outcomes

    def read(self, topic: str, queue_id: int = 0, store: Any = None) -> list[tuple[int, bytes]]:
        """Return (offset, body) of all messages that a consumer receives from offset 0 on."""
        store = store or self.store
        found: list[tuple[int, bytes]] = []
        offset = 0
        while True:
            result = store.get_message("g", topic, queue_id, offset, 32)
            if result.status is GetMessageStatus.FOUND:
                found += [(m.queue_offset, bytes(m.body)) for m in result.messages]
                assert result.next_begin_offset > offset
            elif result.next_begin_offset <= offset:
                return found
            offset = result.next_begin_offset

    def tier_files(self, topic: str) -> list[Path]:
        """Return the segment files of a topic without their checksum files."""
        files = (path for path in (self.root / "tier").rglob("[!.]*") if path.is_file())
        return [path for path in files if f"/{topic}/" in str(path)]
