"""In a restored store, lite topics continue after their history in the tier."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.lite_tier import LiteTier, queue_of, write_topics
from tieredstore import jobs
from tieredstore.tier.lite import merging

BODIES = [b"%03d" % number + b"x" * 300 for number in range(9)]


def test_restore_keeps_offsets_of_lite_topics_and_continues_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = LiteTier(tmp_path, tieredStoreBackupInterval=60_000)
    offsets = {f"{queue_of('s')}@g": 4, f"{queue_of('t')}@g": 9, f"{queue_of('u')}@g": 1}
    file = it.root / "store" / "config" / "lmqConsumerOffset.json"
    file.write_text(json.dumps({"lmqOffsetTable": offsets, "offsetTable": {}}))
    it.put_lite("s", *BODIES[:5])
    it.put_lite("t", *BODIES[5:7])
    it.upload_runs()
    it.put_lite("s", *BODIES[7:])
    it.upload()
    monkeypatch.setattr(it.lite, "_write", lambda: None)  # the disk is lost before the next run
    it.close()
    shutil.rmtree(it.root / "store")
    ran = tieredstore(
        "restore", "--tier", f"file://{it.root / 'tier'}", "--store", it.root / "store",
        "--output", "json",
    )  # fmt: skip
    assert ran.code == 0, ran
    found = json.loads(file.read_text())["lmqOffsetTable"]
    assert found == {f"{queue_of('s')}@g": 4, f"{queue_of('t')}@g": 2}
    write_topics(it.root, "P")
    it.open()
    assert it.store.get_max_offset_in_queue(queue_of("s"), 0) == 7
    it.put_lite("s", b"new")
    assert it.read_lite("s") == [*BODIES[:5], *BODIES[7:], b"new"]
    it.close()


@pytest.mark.parametrize("is_merged", [True, False])
def test_a_copy_knows_which_lite_topics_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_merged: bool
) -> None:
    monkeypatch.setattr(merging, "FAN_IN", 2 if is_merged else 8)
    it = LiteTier(tmp_path, tieredStoreBackupInterval=60_000)
    it.put_lite("s", *BODIES[:5])
    it.put_lite("t", *BODIES[5:7])
    it.upload_runs()
    it.store.delete_topics({queue_of("s")})
    it.put_lite("s", b"again")
    it.upload_runs()
    assert it.lite.find_deleted_end(queue_of("s")) == 5
    it.put_lite("t", b"not in a run")
    it.upload()
    monkeypatch.setattr(it.lite, "_write", lambda: None)
    it.close()
    tier, copied = it.root / "tier", it.root / "copied"
    for _ in range(2):
        jobs.copy(f"file://{tier}", f"file://{copied}", to_state=it.root / "state")
    assert len([*copied.rglob("*.lite")]) == 1
    for folder in (tier, it.root / "store"):
        shutil.rmtree(folder)
    copied.rename(tier)
    assert not jobs.restore(f"file://{tier}", it.root / "store")["problems"]
    write_topics(it.root, "P")
    it.open()
    for _ in range(2):
        assert it.read_lite("s") == [b"again"]
        assert it.read_lite("t") == [*BODIES[5:7], b"not in a run"]
        it.lite.run_once()
    it.close()


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_merge_keeps_deletions_until_all_messages_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    it = LiteTier(tmp_path, tieredStoreFileReservedTime=24, tieredStoreDeleteFileEnable=True)
    it.put_lite("s", *BODIES[:5])
    it.upload_runs()
    it.store.delete_topics({queue_of("s")})
    it.put_lite("t", *BODIES[5:])
    it.upload_runs()
    if is_behind:
        monkeypatch.setattr(it.lite, "_find_gap", lambda _file: (0, 1))
        monkeypatch.setattr(it.lite, "_read_back", lambda: None)
    monkeypatch.setattr(merging, "FAN_IN", 2)
    it.lite.run_once()
    assert len(it.lite.directory.runs) == 1
    assert it.lite.find_deleted_end(queue_of("s")) == 5
    it.clock.advance(3 * 24 * 3_600_000)
    it.store.expiry.run_once()
    monkeypatch.setattr(it.lite, "_expire", lambda: None)
    for body in BODIES[:2]:
        it.put_lite("t", body)
        it.upload_runs()
    assert it.lite.find_deleted_end(queue_of("s")) == (5 if is_behind else 0)
    it.close()
