"""A deleted lite topic stays deleted, whatever happens to the runs that record its deletion."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.lite_tier import LiteTier, queue_of
from tieredstore import jobs
from tieredstore.errors import Corrupt, Invalid
from tieredstore.tier.lite import merging
from tieredstore.tier.lite.left import FOLDER
from tieredstore.tier.lite.service import RETIRED_MS

BODIES = [b"%03d" % number + b"x" * 300 for number in range(9)]


def delete_and_upload(it: LiteTier) -> None:
    """Delete the lite topic s, so that only the tier has its messages. The local log no longer
    contains the deletion."""
    it.store.delete_topics({queue_of("s")})
    for _ in range(2):
        it.put_lite("t", BODIES[7])
        it.move_to_tier()
        it.put("Other", *[bytes(1000)] * 12)
        it.store.delete_topics({"Other"})
    assert queue_of("s") not in {
        key.topic for key in it.local.dispatch_source.find_deleted_queues()
    }


@pytest.mark.parametrize("is_merged", [True, False])
@pytest.mark.parametrize("damage", ["lost", "head", "units"])
def test_a_damaged_run_brings_no_deleted_lite_topic_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_merged: bool, damage: str
) -> None:
    it = LiteTier(tmp_path)
    it.put_lite("s", *BODIES[:5])
    it.put_lite("t", *BODIES[5:7])
    it.move_to_tier()
    monkeypatch.setattr(merging, "FAN_IN", 2 if is_merged else 8)
    delete_and_upload(it)
    it.clock.advance(RETIRED_MS)
    it.lite.run_once()
    assert it.read_lite("t") == [*BODIES[5:7], BODIES[7], BODIES[7]]
    it.close()
    for file in (it.root / "tier").rglob(".backups/*.lite"):
        data = bytearray(file.read_bytes())
        data[40 if damage == "head" else -3] ^= 1
        file.unlink() if damage == "lost" else file.write_bytes(data)
    it.open()
    for _ in range(6):  # each round finds one damaged run
        with suppress(Corrupt):
            it.lite.run_once()
        assert it.get("s", 0).messages == []
        it.get("t", 0)
    assert it.read_lite("t") == [*BODIES[5:7], BODIES[7], BODIES[7]]
    it.put_lite("s", b"again")
    it.move_to_tier()
    it.reopen()
    assert it.read_lite("s") == [b"again"]
    it.close()


def test_deletions_go_with_the_messages_that_they_concern(tmp_path: Path) -> None:
    it = LiteTier(tmp_path, tieredStoreFileReservedTime=24, tieredStoreDeleteFileEnable=True)
    it.put_lite("s", *BODIES[:5])
    it.move_to_tier()
    delete_and_upload(it)
    it.lite.run_once()
    assert len([*(it.root / "store" / FOLDER).iterdir()]) == 1
    it.clock.advance(3 * 24 * 3_600_000)
    it.store.expiry.run_once()
    it.put_lite("t", BODIES[8])
    it.move_to_tier()
    it.lite.run_once()
    assert it.lite.find_deleted_end(queue_of("s")) == 0
    assert [*(it.root / "store" / FOLDER).iterdir()] == []
    assert it.read_lite("t") == [BODIES[8]]
    it.close()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_merged", [True, False])
def test_w93_an_older_tier_brings_no_deleted_lite_topic_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_merged: bool, is_killed: bool
) -> None:
    it = LiteTier(tmp_path)
    it.put_lite("s", *BODIES[:5])
    it.put_lite("t", *BODIES[5:7])
    it.move_to_tier()
    shutil.copytree(it.root / "tier", it.root / "older")
    monkeypatch.setattr(merging, "FAN_IN", 2 if is_merged else 8)
    delete_and_upload(it)
    if is_killed:
        shutil.copytree(it.root / "store", it.root / "killed")
    it.close()
    if is_killed:
        shutil.rmtree(it.root / "store")
        (it.root / "killed").rename(it.root / "store")
    shutil.rmtree(it.root / "tier")
    (it.root / "older").rename(it.root / "tier")
    with pytest.raises(Invalid, match="rebuild metadata --force"):
        it.open()
    jobs.rebuild_metadata(f"file://{it.root / 'tier'}", it.root / "store", force=True)
    it.open(tieredStoreAdopt=True)
    for _ in range(3):
        assert it.read_lite("s") == []
        assert it.read_lite("t")[:2] == BODIES[5:7]
        it.lite.run_once()
        it.reopen()
    it.put_lite("s", b"again")
    it.move_to_tier()
    it.lite.run_once()  # for the messages that no copy has
    assert it.read_lite("s") == [b"again"]
    it.close()
