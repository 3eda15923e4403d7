"""An offload that is killed at any write and run again ends like one that was not interrupted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.kit.paths import ROOT
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.index.tiered import COMPACTED_ITEM_DTYPE, infer_slots, unpack_header
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.catalogue import load_catalogue
from tieredstore.scan.findings import Finding
from tieredstore.scan.verify.verification import verify

CASES_OF_THE_DAILY_LANE = 40


class Runner:
    """One process that forks an offload for each request."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.killable.offload"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def run(self, root: Path, die_at: int | None = None, torn: bool = False) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"store": str(self._store), "root": str(root), "die_at": die_at, "torn": torn}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def runner(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    store = tmp_path_factory.mktemp("source") / "store"
    shutil.copytree(golden / "local-plain", store)
    made = Runner(store)
    yield made
    made.close()


def contents(root: Path) -> dict[str, object]:
    """What must be equal: bytes of logs and queues, index items, and the metadata but for the
    times at which its entries were made."""
    provider = PosixProvider(root / "tier", "cluster-a")
    metadata = DefaultMetadataStore(
        root / "state/config/tieredStoreMetadata.json", "broker-a", read_only=True
    )
    metadata.load()
    catalogue = load_catalogue(provider, metadata)
    findings: list[Finding] = []
    report = verify(provider, catalogue, findings.append)
    found: dict[str, object] = {"findings": findings, "messages": report.messages}
    items: list[tuple[int, ...]] = []
    for listing in provider.list():
        data = bytes(provider.open(listing.id).read(0, listing.size_bytes))
        if listing.id.type is FileSegmentType.INDEX:
            header = unpack_header(data)
            slots = infer_slots(len(data), header.items)
            assert slots is not None
            table = np.frombuffer(data, COMPACTED_ITEM_DTYPE, offset=28 + 8 * slots)
            # Times count from the making of the file.
            items += [item[:5] for item in table.tolist()]
        else:
            found[str(listing.id)] = data
    found["items"] = sorted(items)
    found["topics"] = sorted((topic.topic, topic.topic_id) for topic in metadata.topics())
    found["entries"] = sorted(
        (str(entry.id), entry.size, entry.begin_timestamp_ms, entry.end_timestamp_ms, entry.status)
        for entry in metadata.segments()
        if entry.type is not FileSegmentType.INDEX
    )
    provider.close()
    return found


@pytest.fixture(scope="module")
def uninterrupted(
    runner: Runner, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, object], list[str]]:
    root = tmp_path_factory.mktemp("whole") / "run"
    assert runner.run(root) == 0
    return contents(root), json.loads((root / "writes.json").read_bytes())


def test_the_uninterrupted_run_is_sound(
    uninterrupted: tuple[dict[str, object], list[str]],
) -> None:
    whole, writes = uninterrupted
    assert whole["findings"] == []
    assert whole["messages"] == 19
    assert {"tier write", "metadata write", "journal write"} <= set(writes)


def _check(
    runner: Runner,
    uninterrupted: tuple[dict[str, object], list[str]],
    tmp_path: Path,
    cases: list[tuple[int, bool]],
) -> None:
    whole, writes = uninterrupted
    for die_at, torn in cases:
        root = tmp_path / f"{die_at}-{torn}"
        killed = runner.run(root, die_at, torn)
        assert killed == 9, (die_at, torn)
        assert runner.run(root) == 0, (die_at, torn, writes[die_at])
        again = contents(root)
        assert again == whole, (die_at, torn, writes[die_at])
        shutil.rmtree(root)


def _cases(writes: list[str]) -> list[tuple[int, bool]]:
    """Before each write (so also after the one in front), and in the middle of those that have
    one."""
    return [
        (at, torn)
        for at, what in enumerate(writes)
        for torn in ([False, True] if what.endswith("write") else [False])
    ]


def test_l01_killed_at_some_writes_the_rerun_ends_equal(
    runner: Runner, uninterrupted: tuple[dict[str, object], list[str]], tmp_path: Path
) -> None:
    cases = _cases(uninterrupted[1])
    step = max(len(cases) // CASES_OF_THE_DAILY_LANE, 1)
    _check(runner, uninterrupted, tmp_path, cases[::step])


@pytest.mark.slow
def test_l01_killed_at_every_write_the_rerun_ends_equal(
    runner: Runner, uninterrupted: tuple[dict[str, object], list[str]], tmp_path: Path
) -> None:
    _check(runner, uninterrupted, tmp_path, _cases(uninterrupted[1]))


def test_w04_killed_again_and_again_it_still_ends_equal(
    runner: Runner, uninterrupted: tuple[dict[str, object], list[str]], tmp_path: Path
) -> None:
    """Each run dies a little later, until one comes through."""
    whole, writes = uninterrupted
    root = tmp_path / "run"
    for step in range(0, 4 * len(writes), 5):
        if runner.run(root, step, torn=bool(step % 2)) == 0:
            break
    else:
        pytest.fail("no run came through")
    assert contents(root) == whole
