"""Stores and tiers that older Java brokers wrote (`tests/fixtures/older/README.md`)."""

from __future__ import annotations

import json
import re
import tarfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tieredstore
from tests.kit.paths import FIXTURES
from tieredstore.config import read_broker_conf
from tieredstore.contracts.message_store import MessageStore

OLDER = FIXTURES / "older"
_EXTRACT_SAFELY: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.4
_OF_NO_TIER = ("%LMQ%", "SCHEDULE_TOPIC", "rmq_sys", "RMQ_SYS", "CHECKPOINT_TOPIC")

Place = tuple[str, int, int]
"""Topic, queue id and queue offset."""

LOST_QUEUES: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "one queue": ("consumequeue/old_normal/1",),
    "one topic": ("consumequeue/old_normal",),
    "all queues": ("consumequeue",),
    "queues and topics": ("consumequeue", "config"),
}
"""For each archive, the consume queue files that are removed after it is unpacked."""


@dataclass(frozen=True, slots=True)
class OlderStore:
    """An unpacked archive. The folder `store` or `tier` may be missing."""

    name: str
    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def tier(self) -> Path:
        return self.root / "tier"

    @property
    def conf(self) -> Path:
        """Path of the unpacked broker.conf, whose paths lead to the unpacked folders."""
        return self.root / "broker.conf"

    def read_by_java(self) -> dict[Place, dict[str, Any]]:
        """Return the messages that a Java consumer of the archive's version read, without light
        queues and the broker's own topics."""
        manifest = json.loads((OLDER / f"{self.name}.manifest.json").read_bytes())
        return {
            (row["topic"], row["queueId"], row["queueOffset"]): row
            for row in manifest["read"]
            if "error" not in row and not row["topic"].startswith(_OF_NO_TIER)
        }


def unpack_older(name: str, root: Path) -> OlderStore:
    """Unpack an archive into a new folder, and adjust the paths in its broker.conf."""
    root.mkdir(parents=True)
    with tarfile.open(OLDER / f"{name}.tar.xz") as archive:
        archive.extractall(root, **_EXTRACT_SAFELY)
    found = OlderStore(name, root)
    text = re.sub(
        r"^(\w*Path\w*)=.*/(store|tier)(/commitlog)?$",
        lambda match: f"{match[1]}={root / match[2]}{match[3] or ''}",
        found.conf.read_text(),
        flags=re.MULTILINE,
    )
    found.conf.write_text(text)
    return found


def open_broker_store(older: OlderStore, **more: str) -> AbstractContextManager[MessageStore]:
    """Open the local store without the tier, using its broker's configuration."""
    conf = dict(read_broker_conf(older.conf))
    for key in [key for key in conf if "iered" in key or key == "messageStorePlugIn"]:
        del conf[key]
    return tieredstore.open_store(conf | more)
