"""A broker that starts with any combination of copies of its store, state and tier."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import shutil
from pathlib import Path

import orjson

from tests.kit.belonging import SharedTier, Stopped
from tests.kit.configured_broker import conf
from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import POSIX, TieredLocal
from tieredstore import registry
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.message.encoding import Message
from tieredstore.providers.memory.objects import MemoryObjectClient

TOPIC = "T"
ROUND = 6
"""Number of messages that one run of the broker puts."""


class Part(enum.Enum):
    """Content of one part of a broker (store, state or tier): an older copy, another broker's part,
    or an empty folder."""

    SAME = "same"
    OLDER = "older copy"
    NEWER = "newer"
    OTHER = "other"
    EMPTY = "empty"
    MISSING = "missing"
    NONE = "none"
    JAVA = "Java in between"
    """A part that a Java broker changed between two runs of our broker. If the tier is a chunk log,
    which Java cannot write, an older version of this project takes the place of the Java broker."""


KEYS: dict[str, object] = {"tieredStorageLevel": "NOT_IN_DISK", "fileReservedTime": 1}
DAY_MS = 24 * 3_600_000

_SNAPSHOT = {Part.OLDER: "1", Part.NEWER: "3", Part.OTHER: "other"}


def bodies(who: str, count: int) -> list[bytes]:
    return [b"%s %d" % (who.encode(), number) for number in range(count)]


@dataclasses.dataclass(frozen=True)
class Place:
    """Properties of a broker's parts. With `has_objects`, the tier is a chunk log. With
    `is_cleaned`, uploaded messages are deleted from the local store. `keys` are further Java
    properties."""

    has_objects: bool = False
    is_cleaned: bool = False
    keys: tuple[tuple[str, object], ...] = ()


class Parts:
    """Snapshots of one broker after each of three runs (`1`, `2`, `3`), and a snapshot of another
    broker."""

    def __init__(self, root: Path, place: Place = Place()) -> None:
        self.root = root
        self._has_objects = place.has_objects
        self._keys = {**KEYS, **dict(place.keys)}
        if place.is_cleaned:
            self._keys["mappedFileSizeCommitLog"] = 1 << 12
        self._buckets: dict[str, MemoryObjectClient] = {}
        self._first: dict[str, int] = {}
        for who in ("own", "other"):
            self.shared = SharedTier(root)
            self.shared.clock.set(START_MS)
            for life in range(1, 4 if who == "own" else 2):
                world = self.open(root / who)
                count = ROUND if who == "own" else ROUND + 3
                done = (life - 1) * ROUND
                world.put(TOPIC, *bodies(who, done + count)[done:])
                if place.is_cleaned:
                    world.put("Filling", *[b"f" * 900] * 12)
                world.upload()
                if place.is_cleaned:
                    world.clock.advance(DAY_MS)
                    world.local.cleaning._manual_rounds = 20
                    world.local.cleaning.run_once()
                available = world.local.dispatch_source.queue_range(QueueKey(TOPIC, 0))
                name = str(life) if who == "own" else "other"
                self._first[name] = 0 if available is None else available.min_offset
                assert not place.is_cleaned or self._first[name] > 0
                world.close()
                shutil.copytree(root / who, root / "snapshots" / name)
                self._buckets[name] = self.shared.copy_objects()

    def open(self, folder: Path, **keys: object) -> TieredLocal:
        """Start the broker in a folder. Raises the error of a refused start."""
        SharedTier.current = self.shared
        if self._has_objects:
            return self.shared.open(folder, **self._keys, **keys)
        return Stopped(folder, self.shared.clock, **self._keys, **keys)

    def place(self, folder: Path, store: Part, state: Part, tier: Part) -> None:
        """Assemble a broker from the given parts in a folder."""
        folder.mkdir()
        self._place(folder, "store", store)
        self._place_state(folder, state)
        if self._has_objects:
            self._place_objects(tier)
        else:
            self._place(folder, "tier", tier)
        self.shared.clock.set(START_MS + 10 * DAY_MS)
        if store is Part.JAVA:
            self._put_as_java(folder)

    def find_messages(self, store: Part, tier: Part) -> list[dict[int, bytes]]:
        """Return the messages that the local store and the tier should have, by offset."""
        found = []
        for name, part in (("store", store), ("tier", tier)):
            lives = {Part.OLDER: 1, Part.NEWER: 3}.get(part, 2)
            count = lives * ROUND
            if part in (Part.EMPTY, Part.MISSING):
                count = 0
            held = bodies("own", count) if part is not Part.OTHER else bodies("other", ROUND + 3)
            if part is Part.JAVA and name == "tier":
                held = bodies("own", 3 * ROUND)
            if part is Part.JAVA and name == "store":
                held = [*held, b"java"]
            first = self._first[_SNAPSHOT.get(part, "2")] if name == "store" else 0
            found.append({at: body for at, body in enumerate(held) if at >= first})
        return found

    def hash_tier(self, folder: Path) -> dict[str, str]:
        """Return hashes of the tier's segments in a folder."""
        if not self._has_objects:
            return hash_segments(folder / "tier")
        provider = self.shared.provider()
        try:
            return {
                str(item.id): hashlib.sha256(
                    provider.open(item.id, item).read(0, item.size_bytes)
                ).hexdigest()
                for item in provider.list("broker-a")
            }
        finally:
            provider.close()

    def _place(self, folder: Path, name: str, part: Part) -> None:
        if part is Part.MISSING:
            return
        if part is Part.EMPTY:
            (folder / name).mkdir()
            return
        source = self.root / "snapshots" / _SNAPSHOT.get(part, "2") / name
        ignored = shutil.ignore_patterns("config") if name == "store" else None
        shutil.copytree(source, folder / name, ignore=ignored)
        if part is Part.NONE:
            for path in [*(folder / name).rglob(".tier"), *(folder / name).rglob(".writer")]:
                path.unlink()
            (folder / name / "tieredstore.tier").unlink(missing_ok=True)
        if name == "tier" and part is Part.JAVA:  # It grew, and our files do not record that.
            newer = self.root / "snapshots" / "3" / "tier"
            for path in newer.rglob("*"):
                if path.is_file() and path.name not in (".tier", ".writer"):
                    target = folder / "tier" / path.relative_to(newer)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, target)

    def _place_objects(self, part: Part) -> None:
        if part in (Part.MISSING, Part.EMPTY):
            self.shared.replace()
            return
        snapshot = "3" if part is Part.JAVA else _SNAPSHOT.get(part, "2")
        self.shared.put_objects(self._buckets[snapshot])
        self.shared.put_objects(self.shared.copy_objects())
        if part not in (Part.NONE, Part.JAVA):
            return
        own = {it.key for it in self._buckets["2"].list("")} if part is Part.JAVA else set()
        store = self.shared.objects._store
        for key in [key for key in store.keys if "/.writer/" in key and key not in own]:
            if key.endswith(".store"):
                self.shared.objects.delete([key])
            elif key[-20:].isdigit():
                found = store.objects[key]
                holder = orjson.loads(found.content)
                for name in ("tier", "kind", "store"):
                    holder.pop(name, None)
                store.objects[key] = dataclasses.replace(found, content=orjson.dumps(holder))

    def _place_state(self, folder: Path, part: Part) -> None:
        target = folder / "store" / "config"
        if part is Part.MISSING:
            return
        target.parent.mkdir(exist_ok=True)
        if part is Part.EMPTY:
            target.mkdir()
            return
        source = self.root / "snapshots" / _SNAPSHOT.get(part, "2") / "store" / "config"
        shutil.copytree(source, target)
        if part is Part.NONE:
            (target / "tieredstoreTier.json").unlink()
        if part is Part.JAVA and not self._has_objects:  # it replaces the file, knows no journal
            main = target / "tieredStoreMetadata.json"
            main.write_bytes(main.read_bytes() + b"\n")

    def _put_as_java(self, folder: Path) -> None:
        """Put a message without the tiered store, like a broker that does not know this project's
        files."""
        keys = {**POSIX, **self._keys, "messageStorePlugIn": ""}
        store = registry.message_store(conf(folder, **keys), self.shared.clock)
        store.load()
        store.start()
        assert store.put_message(Message.create(TOPIC, b"java", keys=["all"])).ok
        store.wait_until_dispatched()
        store.shutdown()


def hash_segments(folder: Path) -> dict[str, str]:
    """Return hashes of a tier's segments."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("[0-9]*")
        if path.is_file()
    }
