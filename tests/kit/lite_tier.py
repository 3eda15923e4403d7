"""A tiered store with lite topics, whose local log can be emptied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.generations import StillClock
from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal
from tieredstore.contracts.backups import BackupKind, BackupName, RangedBackups
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus
from tieredstore.contracts.wrapping import find_layer
from tieredstore.local.cleaning.service import DiskWatch
from tieredstore.message.encoding import Message
from tieredstore.message.lite import LiteTopic, find_light_offset
from tieredstore.message.properties import encode_properties
from tieredstore.tier.lite.service import LiteService
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

PARENT = "P"
LITE_KEYS: dict[str, object] = {
    "enableLmq": True,
    "enableMultiDispatch": True,
    "mappedFileSizeCommitLog": 4096,
    "deleteCommitLogFilesInterval": 0,
}


def queue_of(lite: str, parent: str = PARENT) -> str:
    return LiteTopic(parent, lite).queue


def write_topics(root: Path, *parents: str) -> None:
    """Write a broker's topic table with the parents of lite topics."""
    topics = {
        name: {
            "topicName": name,
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "perm": 6,
            "attributes": {"message.type": "LITE"},
        }
        for name in parents
    }
    folder = root / "store" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"topicConfigTable": topics, "dataVersion": {"counter": 1}})
    (folder / "topics.json").write_text(text)


class LiteTier(TieredLocal):
    """Store of one broker with the parent topic P. Nothing is uploaded or deleted unless the test
    asks for it."""

    def __init__(self, root: Path, *parents: str, **keys: object) -> None:
        write_topics(root, PARENT, *parents)
        super().__init__(root, StillClock(START_MS), **{**LITE_KEYS, **keys})

    def open(self, **keys: object) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for service in (MessageStoreDispatcher, LiteService):
                patch.setattr(service, "start", lambda _: None)
            super().open(**keys)
        watch = self.local.cleaning._disk
        assert isinstance(watch, DiskWatch)
        watch._measure = lambda _: 0.86

    @property
    def lite(self) -> LiteService:
        return self.store.lite

    def put_lite(
        self, lite: str, *bodies: bytes, parent: str = PARENT, queue_id: int = 0, tags: str = ""
    ) -> None:
        for body in bodies:
            self.clock.advance(10)
            names = {"__LITE_TOPIC": lite, "INNER_MULTI_DISPATCH": queue_of(lite, parent)}
            properties = encode_properties(names | ({"TAGS": tags} if tags else {}))
            message = Message(parent, body, queue_id=queue_id, properties=properties)
            result = self.store.put_message(message)
            assert result.ok, result.reason
        self.local.wait_until_dispatched()

    def fill(self) -> None:
        """Put messages without a lite topic until all earlier messages are in full files."""
        self.put("Other", *[bytes(1000)] * 12)

    def upload_runs(self) -> None:
        """Upload all messages, then the units of lite topics."""
        self.upload()
        self.lite.run_once()

    def clean(self) -> int:
        """Delete the local files of uploaded messages. Return the number of deleted files."""
        self.local.flush()
        files = 0
        while count := self.local.cleaning.run_once().log_files:
            files += count
        return files

    def move_to_tier(self) -> None:
        """Upload all messages and the units of lite topics, and delete the local files."""
        self.fill()
        self.upload_runs()
        assert self.clean()

    def get(
        self, lite: str, offset: int, count: int = 32, parent: str = PARENT
    ) -> GetMessageResult:
        return self.store.get_message("g", queue_of(lite, parent), 0, offset, count)

    def read_lite(self, lite: str, parent: str = PARENT, offset: int = 0) -> list[bytes]:
        """Return the bodies that a consumer receives, after a check of their offsets."""
        found: list[bytes] = []
        queue = queue_of(lite, parent)
        while True:
            result = self.get(lite, offset, parent=parent)
            assert result.status is not GetMessageStatus.OFFSET_FOUND_NULL
            for message in result.messages:
                at = find_light_offset(queue, message)
                assert at is not None
                assert offset <= at < result.next_begin_offset
                found.append(bytes(message.body))
            if result.next_begin_offset <= offset:
                return found
            offset = result.next_begin_offset

    def list_runs(self) -> list[BackupName]:
        """Return the names of the tier's objects with units of lite topics."""
        provider = self.store.flat_files.provider
        place = find_layer(provider, RangedBackups)
        assert place is not None
        names = place.list_backups(self.store.flat_files.config.broker_name)
        return [name for name in names if name.kind is BackupKind.LITE]
