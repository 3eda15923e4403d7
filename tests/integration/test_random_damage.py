"""Copies of a broker's tier have random damage. A reader returns every row, or reports the missing
ones. With a state directory, every incomplete read raises an error. Without one, missing messages
at either end of a queue's files cannot be detected. All errors are the project's own, and no read
hangs."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as run
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.jobs.metadata.queues import find_queue
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.read.tail import Proof, cut_to_consistent_prefix, find_committed_end
from tieredstore.scan.verify.verification import verify

COPIES = [25, pytest.param(1500, marks=pytest.mark.slow)]
SEEDS_READ_SHORT = (86,)
"""Seeds whose damage makes a read end too early without an error. Messages at the end of a queue
are lost, and the state directory does not list any units after them that would show the loss."""
SMALL_SEGMENTS = "\ntieredStoreConsumeQueueMaxSize=2000\ntieredStoreCommitLogMaxSize=40000\n"
UNIT_COLUMNS = ("queue_id", "queue_offset")
BODIES = (*UNIT_COLUMNS, "body")
MOST_S = 120
"""Time limit in seconds for one copy. Normally a copy takes much less than one second."""
Rows = dict[tuple[int, int], Any]


@dataclass(frozen=True)
class Copy:
    """A tier that may be damaged, its state, and the tier from which it was copied."""

    tier: Path
    state: Path
    whole: Path

    def opened(self, *, with_state: bool) -> tieredstore.table.Tier:
        return tieredstore.open(f"file://{self.tier}", state=self.state if with_state else None)

    def topics(self) -> dict[str, list[Path]]:
        """Return the files of each topic. Index files are not included."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.whole.rglob("*")):
            if path.parent.name in ("COMMIT_LOG", "CONSUME_QUEUE") and path.name[0] != ".":
                relative = path.relative_to(self.whole)
                found.setdefault(path.parents[2].name, []).append(relative)
        return found

    def mend(self, topic: str, files: list[Path]) -> None:
        """Restore the topic's files."""
        folder = self.tier / files[0].parents[2]
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.whole / files[0].parents[2], folder)
        assert folder.name == topic


@pytest.fixture(scope="module", params=["java", "ours"])
def copy(
    request: pytest.FixtureRequest, public_a: Path, tmp_path_factory: pytest.TempPathFactory
) -> Copy:
    """A copy of a tier of the public-a fixture: the tier that Java wrote, or a tier of small
    segments into which the fixture's store was offloaded."""
    root = tmp_path_factory.mktemp("damaged")
    if request.param == "java":
        shutil.copytree(public_a / "tiered", root / "whole")
        shutil.copytree(public_a / "store" / "config", root / "state" / "config")
    else:
        configuration = root / "broker.conf"
        configuration.write_text((public_a / "broker.conf").read_text() + SMALL_SEGMENTS)
        ran = run(
            *(
                "offload",
                public_a / "store",
                "--upload-index",
                "--tier",
                f"file://{root / 'whole'}",
            ),
            *("--state", root / "state", "--config", configuration, "--quiet"),
        )
        assert ran.code == 0, ran.err
    shutil.copytree(root / "whole", root / "tier")
    for path in (root / "tier").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return Copy(root / "tier", root / "state", root / "whole")


def damage_one(chance: random.Random, path: Path) -> str:
    """Damage a file in a random way. Return a description."""
    data = bytearray(path.read_bytes()) if path.exists() else bytearray()
    kind = chance.choice(["delete", "cut", "cut units", "empty", "flip", "zero", "grow", "rename"])
    place = chance.randrange(len(data)) if data else 0
    match kind:
        case "delete":
            path.unlink(missing_ok=True)
            return kind
        case "cut":
            del data[place:]
        case "cut units":
            del data[place - place % 20 :]
        case "empty":
            data.clear()
        case "flip" if data:
            data[place] ^= 1 << chance.randrange(8)
        case "zero":
            data[place : place + 64] = bytes(len(data[place : place + 64]))
        case "grow":
            data += chance.randbytes(chance.randrange(1, 200))
        case "rename" if path.exists():
            path.rename(path.with_name(f"{'0' * 8}{chance.randrange(1 << 40):020d}"))
            return kind
    path.write_bytes(data)
    return f"{kind} at {place}"


@contextmanager
def deadline(what: str) -> Iterator[None]:
    """Fail a test that hangs."""

    def stop(*_: object) -> None:
        raise AssertionError(f"{what}: not done after {MOST_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def rows_of(
    tier: tieredstore.table.Tier, topic: str, columns: tuple[str, ...], **given: Any
) -> Rows:
    found = tier.scan(topic, columns=list(columns), **given).to_arrow().to_pylist()
    rows = {(row["queue_id"], row["queue_offset"]): row.get("body") for row in found}
    assert len(rows) == len(found), "a row twice"
    return rows


def look(provider: SegmentProvider, queue: QueueFiles) -> None:
    """Read a queue in the same way as copies, exports, streams and rebuilds."""
    with suppress(TieredStoreError), QueueReader(provider, queue) as reader:
        find_committed_end(reader)
    with suppress(TieredStoreError), QueueReader(provider, queue) as reader:
        find_committed_end(reader, Proof.BODY)
    with suppress(TieredStoreError):
        cut_to_consistent_prefix(provider, queue, None)
    find_queue(provider, queue)


def check(copy: Copy, topic: str, whole: dict[tuple[str, ...], Rows], what: str) -> None:
    """Check all reads of a topic in a damaged copy, with and without the state directory."""
    for with_state in (False, True):
        tier = copy.opened(with_state=with_state)
        for columns in (UNIT_COLUMNS, BODIES):
            told: list[Finding] = []
            expected = whole[columns]
            try:
                rows = rows_of(tier, topic, columns)
            except TieredStoreError:
                pass
            else:
                assert rows.items() <= expected.items(), f"{what}: other rows"
                assert rows == expected or not with_state, f"{what}: read short"
            with suppress(TieredStoreError):
                rows = rows_of(tier, topic, columns, on_finding=told.append)
                assert rows.items() <= expected.items(), f"{what}: other rows"
                if with_state and rows != expected:
                    assert any(one.severity is Severity.DAMAGE for one in told), what
                    lost = len(expected) - len(rows)
                    assert sum(one.messages for one in told) >= lost, f"{what}: counted short"
        catalogue = tier.catalogue()
        queues = [queue for queue in catalogue.queues if queue.topic == topic]
        provider = tier.location.connect()
        try:
            found: list[Finding] = []
            verify(provider, catalogue, found.append, queues=queues, with_index=False)
            for queue in queues:
                look(provider, queue)
        finally:
            provider.close()


@pytest.mark.parametrize("copies", COPIES)
def test_o09_a_tier_with_random_damage_is_never_read_short_in_silence(
    copy: Copy, copies: int
) -> None:
    topics = {name: files for name, files in copy.topics().items() if files}

    @cache
    def read_whole(topic: str) -> dict[tuple[str, ...], Rows]:
        tier = copy.opened(with_state=True)
        return {columns: rows_of(tier, topic, columns) for columns in (UNIT_COLUMNS, BODIES)}

    for seed in [*SEEDS_READ_SHORT, *range(copies)]:
        chance = random.Random(seed)
        topic = chance.choice(sorted(topics))
        whole = read_whole(topic)
        files = topics[topic]
        what = f"seed {seed}, {topic}:"
        try:
            for _ in range(chance.choice([1, 1, 2, 3])):
                path = chance.choice(files)
                what += (
                    f" {path.parent.name}/{path.name[8:]} {damage_one(chance, copy.tier / path)};"
                )
            with deadline(what):
                check(copy, topic, whole, what)
        except Corrupt as error:
            raise AssertionError(what) from error
        finally:
            copy.mend(topic, files)


@pytest.mark.parametrize("units_before", range(3))
def test_o09_zeros_over_where_the_expired_units_end_are_told(copy: Copy, units_before: int) -> None:
    """Damage is reported if zeros overwrite the last units of expired messages and a part of the
    next unit. The remaining bytes of that unit may look like the unit of an expired message."""
    topic = "pub_expire"
    files = copy.topics()[topic]
    tier = copy.opened(with_state=True)
    whole: dict[tuple[str, ...], Rows] = {
        columns: rows_of(tier, topic, columns) for columns in (UNIT_COLUMNS, BODIES)
    }
    queue_id, first = min(whole[UNIT_COLUMNS])
    paths = [it for it in files if it.parts[-3:-1] == (str(queue_id), "CONSUME_QUEUE")]
    path = max(it for it in paths if int(it.name[8:]) <= first * 20)
    place = max(first - units_before, 0) * 20 - int(path.name[8:])
    for start in range(max(place, 0), place + 20):
        data = bytearray((copy.whole / path).read_bytes())
        data[start : start + 64] = bytes(len(data[start : start + 64]))
        try:
            (copy.tier / path).write_bytes(data)
            check(copy, topic, whole, f"{path.name}: zeros at {start}")
        finally:
            copy.mend(topic, files)
