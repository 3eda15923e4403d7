"""A listing that knows the expected queues reads fewer folders and has the same result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing
from tieredstore.providers.naming import segment_file_name
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider

CLUSTER = "DefaultCluster"
TOPICS = ("TopicA", "TopicB")
QUEUES = (0, 3)
PATHS = [f"broker-a/{topic}/{queue_id}" for topic in TOPICS for queue_id in QUEUES]
FOLDERS = len(TOPICS) * (1 + len(QUEUES))
"""Number of all topic folders and queue folders. A listing with expected queues reads none of
them."""


class CountingCalls(PosixCalls):
    def __init__(self) -> None:
        super().__init__()
        self.scanned: list[str] = []

    def scan(self, path: str) -> list[os.DirEntry[str]]:
        self.scanned.append(path)
        return super().scan(path)


class UncountedCalls(CountingCalls):
    """A file system that does not report the number of subfolders."""

    def stat(self, path: str) -> os.stat_result:
        found = list(super().stat(path))
        found[3] = 1
        return os.stat_result(found)


@pytest.fixture
def calls() -> CountingCalls:
    return CountingCalls()


@pytest.fixture
def provider(tmp_path: Path, calls: CountingCalls) -> Iterator[PosixProvider]:
    with closing(PosixProvider(tmp_path / "tier", CLUSTER, calls=calls)) as provider:
        for topic in TOPICS:
            for queue_id in QUEUES:
                for kind in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE):
                    for base in (0, 20):
                        provider.open(SegmentId(f"broker-a/{topic}/{queue_id}", kind, base)).write(
                            0, [b"x" * 20]
                        )
        provider.open(SegmentId("broker-a/rmq_sys_INDEX/0", FileSegmentType.INDEX, 0)).write(
            0, [b"x"]
        )
        yield provider


def list_anew(provider: PosixProvider, prefix: str = "broker-a") -> list[SegmentListing]:
    return sorted(provider.list(prefix), key=lambda listing: str(listing.id))


def test_expected_folders_are_not_read(provider: PosixProvider, calls: CountingCalls) -> None:
    before = list_anew(provider)
    read = len(calls.scanned)
    provider.expect_queues("broker-a", PATHS)
    calls.scanned.clear()

    assert list_anew(provider) == before
    assert len(before) == 17
    assert len(calls.scanned) == read - FOLDERS


def _add_queue(topic: Path) -> None:
    shutil.copytree(topic / "0", topic / "7")


def _add_folder_of_nothing(topic: Path) -> None:
    (topic / "notes").mkdir()


def _swap_queue(topic: Path) -> None:
    (topic / "3").rename(topic / "4")


def _remove_queue(topic: Path) -> None:
    shutil.rmtree(topic / "3")


def _remove_type(topic: Path) -> None:
    shutil.rmtree(topic / "3" / "CONSUME_QUEUE")


def _add_type(topic: Path) -> None:
    shutil.copytree(topic / "3" / "COMMIT_LOG", topic / "3" / "INDEX")


def _swap_type(topic: Path) -> None:
    (topic / "3" / "CONSUME_QUEUE").rename(topic / "3" / "INDEX")


def _put_file_for_type(topic: Path) -> None:
    shutil.rmtree(topic / "3" / "COMMIT_LOG")
    (topic / "3" / "COMMIT_LOG").write_text("")


def _link_type(topic: Path) -> None:
    (topic / "3" / "COMMIT_LOG").rename(topic.parent.parent / "elsewhere")
    (topic / "3" / "COMMIT_LOG").symlink_to(topic.parent.parent / "elsewhere")


def _add_segment(topic: Path) -> None:
    folder = topic / "3" / "COMMIT_LOG"
    (folder / segment_file_name(40)).write_bytes(b"x" * 7)


def _remove_all(topic: Path) -> None:
    shutil.rmtree(topic)


@pytest.mark.parametrize(
    "change",
    [
        _add_queue,
        _add_folder_of_nothing,
        _swap_queue,
        _remove_queue,
        _remove_type,
        _add_type,
        _swap_type,
        _put_file_for_type,
        _link_type,
        _add_segment,
        _remove_all,
    ],
)
@pytest.mark.parametrize("prefix", ["broker-a", "broker-a/TopicA", "broker-a/TopicA/3"])
def test_what_is_not_as_expected_is_listed_as_it_is(
    provider: PosixProvider, tmp_path: Path, change: Callable[[Path], None], prefix: str
) -> None:
    [topic] = (tmp_path / "tier").glob("*/broker-a/TopicA")
    change(topic)
    with closing(PosixProvider(tmp_path / "tier", CLUSTER)) as other:
        actual = list_anew(other, prefix)
    provider.expect_queues("broker-a", PATHS)

    assert list_anew(provider, prefix) == actual


def test_a_file_system_that_counts_no_folders_is_read(tmp_path: Path) -> None:
    calls = UncountedCalls()
    with closing(PosixProvider(tmp_path / "tier", CLUSTER, calls=calls)) as provider:
        provider.open(SegmentId(PATHS[0], FileSegmentType.COMMIT_LOG, 0)).write(0, [b"x"])
        provider.expect_queues("broker-a", ["broker-a/TopicA/0"])
        assert [found.id.base_offset for found in provider.list("broker-a")] == [0]
    assert any(path.endswith("/TopicA") for path in calls.scanned)


def test_paths_that_are_none_say_nothing(provider: PosixProvider) -> None:
    before = list_anew(provider)
    provider.expect_queues(
        "broker-a", ["", "/", "broker-a", "broker-b/TopicA/0", "broker-a/TopicA/x"]
    )
    assert list_anew(provider) == before
