"""The local store's cleaning beside a tier: what was not uploaded stays, what was is still read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.tiered_local import TieredLocal
from tieredstore.local.cleaning.disk_usage import DiskWatch
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

BODIES = [b"%03d" % number + b"x" * 300 for number in range(60)]


@contextmanager
def opened(root: Path, **keys: object) -> Iterator[TieredLocal]:
    """On a disk that is nearly full. Uploads do not begin, as when opening the tier takes long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageStoreDispatcher, "start", lambda _: None)
        it = TieredLocal(root, mappedFileSizeCommitLog=4096, deleteCommitLogFilesInterval=0, **keys)
    try:
        watch = it.local.cleaning._disk
        assert isinstance(watch, DiskWatch)
        watch._measure = lambda _: 0.86
        yield it
    finally:
        it.close()


def clean(it: TieredLocal) -> int:
    """Clean until nothing goes any more; how many files went."""
    it.local.flush()
    files = 0
    while count := it.local.cleaning.run_once().log_files:
        files += count
    return files


def test_what_was_not_uploaded_stays_and_what_was_is_read_from_the_tier(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.put("T", *BODIES)
        assert clean(it) == 0
        it.upload()
        assert clean(it) > 4
        assert 0 < it.local.get_min_offset_in_queue("T", 0) < len(BODIES)
        assert it.read("T") == list(enumerate(BODIES))
        it.put("T", *BODIES)  # these are needed again
        clean(it)
        assert it.local.get_min_offset_in_queue("T", 0) <= len(BODIES)
        assert it.read("T") == list(enumerate(BODIES * 2))


def test_what_no_tier_takes_is_needed_by_nobody(tmp_path: Path) -> None:
    with opened(tmp_path, tieredStorageLevel="DISABLE") as it:
        it.put("T", *BODIES)
        assert clean(it) > 4


def test_what_a_system_topic_holds_is_needed_by_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.put("rmq_sys_things", *BODIES)
        assert clean(it) > 4
