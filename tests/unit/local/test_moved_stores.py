"""Tests of stores whose folders were moved, copied or linked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.errors import Corrupt
from tieredstore.local.message_store import DefaultMessageStore

MESSAGES = [plain(number=number, body=b"x" * 900) for number in range(400)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with running(small_config(tmp_path / "store")) as store:
        put_all(store, MESSAGES)
    assert len([*(tmp_path / "store/commitlog").iterdir()]) >= 3
    return tmp_path / "store"


def check(root: Path, first: int = 0) -> None:
    with running(small_config(root)) as store:
        assert store.get_min_offset_in_queue("T", 0) >= first
        assert store.get_max_offset_in_queue("T", 0) == len(MESSAGES)
        found = store.get_message("g", "T", 0, len(MESSAGES) - 1, 1)
        assert found.messages[0].queue_offset == len(MESSAGES) - 1


def test_a_store_that_was_moved_goes_on(root: Path) -> None:
    check(root.rename(root.with_name("elsewhere")))


def test_a_store_behind_a_link_goes_on(root: Path) -> None:
    link = root.with_name("link")
    link.symlink_to(root)
    check(link)


def test_a_log_file_behind_a_link_to_an_archive_is_read(root: Path) -> None:
    first = min((root / "commitlog").iterdir())
    archived = root.with_name("archived")
    shutil.move(first, archived)
    first.symlink_to(archived)
    check(root)


def test_a_store_without_its_first_log_file_begins_behind_it(root: Path) -> None:
    min((root / "commitlog").iterdir()).unlink()
    check(root, 1)


def test_a_log_file_that_is_missing_between_others_is_refused_by_name(root: Path) -> None:
    first, second, *_ = sorted((root / "commitlog").iterdir())
    second.unlink()
    with pytest.raises(Corrupt, match=f"expected the file of offset {int(second.name)} next"):
        DefaultMessageStore(small_config(root)).load()
    assert first.exists()
