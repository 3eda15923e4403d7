"""A whole store over a tier runs on a disk that fails at any call (faults L01, L05, L06 and W04).
Kills leave the checksums of segments outdated, torn, blank or missing. No acknowledged message is
lost or mixed with others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest

import tieredstore
from tests.kit.random_worlds.posix_tier import RandomCalls
from tests.kit.random_worlds.store import KEYS, TOPICS, RandomStore
from tieredstore import jobs
from tieredstore.errors import Corrupt, Invalid, TieredStoreError, Unavailable
from tieredstore.table import Tier

PROVIDER = "tests.kit.random_worlds.posix_tier:RandomPosix"


class Run(RandomStore):
    """One run of the test. `sums` has an earlier content of each file with block checksums."""

    keys: ClassVar[dict[str, object]] = {**KEYS, "tieredBackendServiceProvider": PROVIDER}

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.sums: dict[Path, bytes] = {}
        self.has_failed = False

    @contextmanager
    def faults(self, *rates: float) -> Iterator[float]:
        rate = self.rng.choice([0, 0, 0.01, 0.05]) if any(rates) else 0
        RandomCalls.rng = random.Random(self.rng.random())
        RandomCalls.rate = rate
        self.has_failed |= bool(rate)
        try:
            yield rate
        except Unavailable:
            pass
        except (Corrupt, Invalid):
            if not rate:
                raise
        finally:
            RandomCalls.rate = 0

    def may_fail_without_faults(self) -> bool:
        """Upload again if a fault had occurred, and check the result. Return whether a fault had
        occurred."""
        if self.has_failed:
            self.has_failed = False
            self.store.dispatcher.scan(force=True)
            for topic in TOPICS:
                self._require_uploaded(topic)
            return True
        return False

    def restart(self) -> None:
        self.store.shutdown()
        self.open()

    def remember_sums(self) -> None:
        for path in self._find_sums():
            self.sums[path] = path.read_bytes()

    def _find_sums(self) -> list[Path]:
        return sorted((self.root / "tier").rglob(".*.crc32"))

    def crash(self) -> None:
        self.local.flush()
        for service in (self.store.dispatcher, self.store.expiry, self.store.backup):
            service.stop()
        self.store.index.stop(force=False)
        with suppress(TieredStoreError):
            self.replace_by_copy("store", "tier")
        for path in self._find_sums():
            self._damage(path)
        self.sums.clear()
        self.open()

    def _damage(self, path: Path) -> None:
        """Damage an unsynced file in one of the ways in which a power cut can."""
        chance, data = self.rng.random(), path.read_bytes()
        if chance < 0.1:
            path.unlink()
        elif chance < 0.2:
            path.write_bytes(data[: self.rng.randrange(len(data) + 1)])
        elif chance < 0.35 and path in self.sums:
            path.write_bytes(self.sums[path])
        elif chance < 0.4:
            first = 512 * self.rng.randrange(2)
            path.write_bytes(data[:first] + bytes(len(data[first:])))

    def verify(self) -> None:
        if not (self.root / "store" / "config" / "tieredStoreMetadata.json").exists():
            return
        tier = tieredstore.open(f"file://{self.root / 'tier'}", state=self.root / "store")
        report = jobs.verify(tier)
        assert not report["damage"], report["findings"][:3]

    def copy(self) -> None:
        """Copy the tier while the store runs. The copy must have all messages that were certainly
        uploaded before."""
        before = {topic: self._find_uploaded(topic) for topic in TOPICS}
        state = self.root / "store"
        if not (state / "config" / "tieredStoreMetadata.json").exists():
            return
        target, to = self.root / "copy-state", f"file://{self.root / 'copy'}"
        try:
            tier = tieredstore.open(f"file://{self.root / 'tier'}", state=state)
            jobs.copy(tier, to=to, to_state=target, replace=True)
        except Invalid:  # nothing is in the tier
            assert not any(before.values())
            return
        copied = tieredstore.open(to, state=target)
        for topic in TOPICS:
            rows = self._read_rows(copied, topic) if before[topic] else {}
            for offset, body in rows.items():
                assert self.life[topic].get(offset) == body, f"{topic}@{offset} is {body[:20]!r}"
            lost = sorted(before[topic] - rows.keys())
            assert not lost, f"{topic}: the copy lacks {lost[:5]}"

    def _find_uploaded(self, topic: str) -> set[int]:
        file = self.store.flat_files.get(topic, 0)
        if file is None or not file.is_initialised:
            return set()
        held = range(file.consume_queue_min_offset, file.consume_queue_commit_offset)
        return self.life[topic].keys() & set(held)

    def _read_rows(self, tier: Tier, topic: str) -> dict[int, bytes]:
        scan = tier.scan(topic, columns=["queue_offset", "body"])
        return {row["queue_offset"]: bytes(row["body"]) for row in scan.to_arrow().to_pylist()}

    def rebuild(self) -> None:
        """Stop, and rebuild the metadata from the tier."""
        if not any(self._find_uploaded(topic) for topic in TOPICS):
            return
        self.store.shutdown()
        tier = tieredstore.open(f"file://{self.root / 'tier'}")
        jobs.rebuild_metadata(tier, self.root / "store", force=True)
        self.open()


def run(root: Path, seed: int, steps: int) -> None:
    one = Run(root, seed)
    readers = [(one.verify, 1), (one.copy, 2), (one.rebuild, 1)]
    one.go(steps, [*one.actions, (one.remember_sums, 3), *readers])


@pytest.mark.parametrize("seed", range(2))
def test_w04_a_store_whose_tier_is_on_a_failing_disk(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_150))
def test_w04_a_store_whose_tier_is_on_a_failing_disk_for_long(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 120)
