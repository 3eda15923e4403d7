"""Tests of PosixProvider: files, listings, open files and reads."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

from tests.kit.block_checksums import forget_checksums
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider

CLUSTER = "DefaultCluster"


def segment_id(
    topic: str = "TopicA",
    queue_id: int = 3,
    type: FileSegmentType = FileSegmentType.COMMIT_LOG,
    base: int = 0,
) -> SegmentId:
    return SegmentId(f"broker-a/{topic}/{queue_id}", type, base)


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[PosixProvider]:
    with closing(PosixProvider(tmp_path / "tier", CLUSTER)) as provider:
        yield provider


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


class TestLayout:
    def test_files_are_where_java_looks_for_them(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        for name in (
            segment_id(),
            segment_id(base=270),
            segment_id(type=FileSegmentType.CONSUME_QUEUE, base=2000),
            segment_id("rmq_sys_INDEX", 0, FileSegmentType.INDEX),
        ):
            provider.open(name).write(0, [b"x"])
        folder = "tier/212d6b50_DefaultCluster/broker-a"
        assert forget_checksums(tmp_path) == 4
        assert files_below(tmp_path) == {
            f"{folder}/TopicA/3/COMMIT_LOG/cfcd208400000000000000000000",
            f"{folder}/TopicA/3/COMMIT_LOG/3905972400000000000000000270",
            f"{folder}/TopicA/3/CONSUME_QUEUE/08f90c1a00000000000000002000",
            f"{folder}/rmq_sys_INDEX/0/INDEX/cfcd208400000000000000000000",
        }

    def test_the_tier_of_a_java_broker_is_listed_whole(self, public_a: Path) -> None:
        expected = sum(1 for path in (public_a / "tiered").rglob("*") if path.is_file())
        with closing(PosixProvider(public_a / "tiered", "LabCluster")) as provider:
            found = list(provider.list())
            assert len(found) == expected > 20
            for listing in found:
                segment = provider.open(listing.id, listing)
                assert segment.size() == listing.size_bytes
                assert len(segment.read(0, listing.size_bytes)) == listing.size_bytes

    def test_java_golden_trees_are_read(self, golden: Path) -> None:
        for version in ("java-5.3.3", "java-5.5.0"):
            tier = next((golden / version).rglob("212d6b50_DefaultCluster")).parent
            with closing(PosixProvider(tier, CLUSTER)) as provider:
                sizes = {
                    (found.id.type.name, found.id.base_offset): found.size_bytes
                    for found in provider.list("broker-a/TopicA/3")
                }
            assert sizes[("COMMIT_LOG", 270)] == 270
            assert sizes[("CONSUME_QUEUE", 2000)] == 100

    def test_an_empty_file_that_java_made_can_be_written(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        path = (
            tmp_path
            / "tier/212d6b50_DefaultCluster/broker-a/TopicA/3/COMMIT_LOG"
            / "cfcd208400000000000000000000"
        )
        path.parent.mkdir(parents=True)
        path.touch()
        segment = provider.open(segment_id())
        assert segment.size() == 0
        assert [listing.size_bytes for listing in provider.list()] == [0]
        assert segment.write(0, [b"abc"]) == Written(3)


class TestListing:
    def test_foreign_files_are_left_out_and_left_alone(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        provider.open(segment_id()).write(0, [b"x"])
        cluster = tmp_path / "tier/212d6b50_DefaultCluster"
        folder = cluster / "broker-a/TopicA/3/COMMIT_LOG"
        foreign = [
            tmp_path / "tier/README",
            cluster / "lost+found",
            cluster / "broker-a/notes.txt",
            cluster / "broker-a/TopicA/3/OTHER",
            folder / "cfcd208400000000000000000001",
            folder / "3905972400000000000000000270.tmp",
        ]
        for path in foreign:
            path.write_bytes(b"not ours")
        (cluster / "broker-a/TopicA/x/COMMIT_LOG").mkdir(parents=True)
        (folder / "3905972400000000000000000270").mkdir()
        assert [listing.id for listing in provider.list()] == [segment_id()]
        assert all(path.read_bytes() == b"not ours" for path in foreign)

    def test_names_that_are_not_text_are_left_out(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        provider.open(segment_id()).write(0, [b"x"])
        (tmp_path / "tier/212d6b50_DefaultCluster" / os.fsdecode(b"\xff\xfe")).mkdir()
        assert len(list(provider.list())) == 1

    def test_o07_a_tier_that_is_not_there_is_not_an_empty_one(self, tmp_path: Path) -> None:
        provider = PosixProvider(tmp_path / "unmounted", CLUSTER)
        with pytest.raises(Unavailable, match="unmounted"):
            provider.list()

    def test_o07_a_folder_that_cannot_be_read_fails_the_listing(self, tmp_path: Path) -> None:
        class Denied(PosixCalls):
            def scan(self, path: str) -> list[os.DirEntry[str]]:
                if path.endswith("TopicB"):
                    raise PermissionError(13, "Permission denied", path)
                return super().scan(path)

        provider = PosixProvider(tmp_path, CLUSTER, calls=Denied())
        for topic in ("TopicA", "TopicB"):
            provider.open(segment_id(topic)).write(0, [b"x"])
        with pytest.raises(Unavailable, match="TopicB"):
            list(provider.list())
        assert len(list(provider.list("broker-a/TopicA"))) == 1

    def test_a_folder_deleted_while_listing_is_skipped(self, tmp_path: Path) -> None:
        class Deleting(PosixCalls):
            def scan(self, path: str) -> list[os.DirEntry[str]]:
                found = super().scan(path)
                if path.endswith("broker-a"):
                    shutil.rmtree(f"{path}/TopicB")
                return found

        provider = PosixProvider(tmp_path, CLUSTER, calls=Deleting())
        for topic in ("TopicA", "TopicB"):
            provider.open(segment_id(topic)).write(0, [b"x"])
        assert [listing.id for listing in provider.list()] == [segment_id("TopicA")]


class TestOpenFiles:
    def test_descriptors_stay_within_the_limit(self, tmp_path: Path) -> None:
        before = open_descriptors()
        with closing(PosixProvider(tmp_path, CLUSTER, max_open_files=10)) as provider:
            segments = [provider.open(segment_id(queue_id=n)) for n in range(60)]
            for segment in segments:
                segment.write(0, [b"abc"])
            for segment in segments * 2:
                assert bytes(segment.read(0, 3)) == b"abc"
            assert open_descriptors() - before <= 10
            segments[-1].close()
            assert open_descriptors() - before <= 9
        assert open_descriptors() == before

    def test_the_descriptor_limit_of_the_process_is_survived(self, tmp_path: Path) -> None:
        class Scarce(PosixCalls):
            failures = 0

            def open(self, path: str, flags: int) -> int:
                if open_descriptors() > before + 6 and not self.failures % 2:
                    self.failures += 1
                    raise OSError(24, "Too many open files")
                self.failures = 0
                return super().open(path, flags)

        before = open_descriptors()
        with closing(PosixProvider(tmp_path, CLUSTER, calls=Scarce())) as provider:
            for n in range(30):
                segment = provider.open(segment_id(queue_id=n))
                segment.write(0, [b"abc"])
                assert bytes(segment.read(0, 3)) == b"abc"
        assert open_descriptors() == before

    def test_a_closed_provider_says_so(self, provider: PosixProvider) -> None:
        segment = provider.open(segment_id())
        segment.write(0, [b"x"])
        provider.close()
        provider.close()
        with pytest.raises(Invalid, match="closed"):
            segment.read(0, 1)

    def test_a_file_made_again_by_another_process_is_not_read_from_the_old_one(
        self, tmp_path: Path
    ) -> None:
        with (
            closing(PosixProvider(tmp_path, CLUSTER)) as reader,
            closing(PosixProvider(tmp_path, CLUSTER)) as writer,
        ):
            writer.open(segment_id()).write(0, [b"old content"])
            segment = reader.open(segment_id())
            assert bytes(segment.read(0, 11)) == b"old content"
            writer.open(segment_id()).delete()
            writer.open(segment_id()).write(0, [b"new"])
            assert segment.size() == 3
            assert bytes(segment.read(0, 3)) == b"new"
            segment.write(3, [b"!"])
            assert bytes(writer.open(segment_id()).read(0, 4)) == b"new!"

    def test_a_file_deleted_while_it_is_opened_does_not_come_back(self, tmp_path: Path) -> None:
        class Racing(PosixCalls):
            during_open: Callable[[], None] | None = None

            def open(self, path: str, flags: int) -> int:
                fd = super().open(path, flags)
                action, self.during_open = self.during_open, None
                if action:
                    action()
                return fd

        calls = Racing()
        with closing(PosixProvider(tmp_path, CLUSTER, calls=calls)) as provider:
            segment = provider.open(segment_id())
            segment.write(0, [b"old"])
            segment.close()

            def make_again() -> None:
                provider.open(segment_id()).delete()
                provider.open(segment_id()).write(0, [b"new"])

            calls.during_open = make_again
            assert bytes(segment.read(0, 3)) == b"old"  # it was opened before
            assert bytes(segment.read(0, 3)) == b"new"
            assert segment.read_nowait(0, 3) in (None, b"new")


class TestReadNowait:
    def test_bytes_at_hand_are_returned(self, tmp_path: Path) -> None:
        class AllCached(PosixCalls):
            def read_cached(self, fd: int, buffer: memoryview, position: int) -> int | None:
                return os.preadv(fd, [buffer], position)

        provider = PosixProvider(tmp_path, CLUSTER, calls=AllCached())
        segment = provider.open(segment_id())
        segment.write(0, [b"abc" * 1000])
        assert segment.read_nowait(3, 6) == memoryview(b"abcabc")
        assert segment.read_nowait(2_998, 3) is None

    def test_nothing_is_opened_for_it(self, provider: PosixProvider) -> None:
        provider.open(segment_id()).write(0, [b"abc"])
        segment = provider.open(segment_id())
        segment.close()
        assert segment.read_nowait(0, 3) is None

    def test_bytes_partly_at_hand_are_none(self, tmp_path: Path) -> None:
        class Partly(PosixCalls):
            def read_cached(self, fd: int, buffer: memoryview, position: int) -> int | None:
                return len(buffer) - 1

        provider = PosixProvider(tmp_path, CLUSTER, calls=Partly())
        segment = provider.open(segment_id())
        segment.write(0, [b"abc"])
        assert segment.read_nowait(0, 3) is None

    def test_bytes_of_a_file_that_was_closed_meanwhile_do_not_count(self, tmp_path: Path) -> None:
        """Bytes read while another thread closes the file are discarded, because the descriptor may
        already belong to another file."""
        (tmp_path / "other").write_bytes(b"xyz")

        class Closing(PosixCalls):
            def read_cached(self, fd: int, buffer: memoryview, position: int) -> int | None:
                segment.close()
                other = os.open(tmp_path / "other", os.O_RDONLY)
                try:
                    assert other == fd
                    return os.preadv(fd, [buffer], position)
                finally:
                    os.close(other)

        provider = PosixProvider(tmp_path / "tier", CLUSTER, checksums=False, calls=Closing())
        segment = provider.open(segment_id())
        segment.write(0, [b"abc"])
        assert segment.read(0, 3) == memoryview(b"abc")
        assert segment.read_nowait(0, 3) is None
        assert segment.read(0, 3) == memoryview(b"abc")

    def test_an_error_of_a_file_that_was_closed_meanwhile_says_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        preadv, answers = os.preadv, [OSError(22, "Invalid argument")]

        def fail_once(fd: int, buffers: list[memoryview], position: int, _: int) -> int:
            if answers:
                segment.close()
                raise answers.pop()
            return preadv(fd, buffers, position)

        monkeypatch.setattr(os, "preadv", fail_once)
        monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
        provider = PosixProvider(tmp_path, CLUSTER, calls=PosixCalls(portable=False))
        segment = provider.open(segment_id())
        segment.write(0, [b"abc"])
        assert segment.read_nowait(0, 3) is None
        assert segment.read(0, 3) == memoryview(b"abc")
        assert segment.read_nowait(0, 3) == memoryview(b"abc")

    def test_a_file_system_without_such_reads_is_asked_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        def unsupported(*arguments: object) -> NoReturn:
            calls.append(arguments)
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "preadv", unsupported)
        monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)
        provider = PosixProvider(tmp_path, CLUSTER, calls=PosixCalls(portable=False))
        segment = provider.open(segment_id())
        segment.write(0, [b"abc"])
        assert segment.read_nowait(0, 3) is None
        assert segment.read_nowait(0, 3) is None
        assert len(calls) == 1


class TestDeletion:
    def test_defect_d07_what_cannot_be_deleted_is_said_at_once(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        segment = provider.open(segment_id())
        segment.write(0, [b"x"])
        path = next(path for path in tmp_path.rglob("cfcd2084*"))
        path.unlink()
        (path / "not empty").mkdir(parents=True)
        with pytest.raises(Unavailable, match="cannot delete"):
            segment.delete()
        with pytest.raises(Corrupt, match="not a regular file"):
            segment.size()

    def test_deleting_reaches_the_disk(self, tmp_path: Path) -> None:
        synced = []

        class Recording(PosixCalls):
            def sync_directory(self, path: str) -> None:
                synced.append(path)
                super().sync_directory(path)

        provider = PosixProvider(tmp_path, CLUSTER, calls=Recording())
        segment = provider.open(segment_id())
        segment.write(0, [b"x"])
        synced.clear()
        segment.delete()
        assert synced == [f"{tmp_path}/212d6b50_DefaultCluster/broker-a/TopicA/3/COMMIT_LOG"]


class TestWriterEpoch:
    def test_the_owner_of_another_process_is_named_and_its_end_frees_the_lock(
        self, tmp_path: Path
    ) -> None:
        program = textwrap.dedent(
            """
            import sys
            from tieredstore.providers.posix.provider import PosixProvider
            epoch = PosixProvider(sys.argv[1], "DefaultCluster").acquire_writer("broker-a")
            print("ready", flush=True)
            sys.stdin.read()
            """
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            provider = PosixProvider(tmp_path, CLUSTER)
            for take_over in (False, True):
                with pytest.raises(Fenced, match=f"process {process.pid} on"):
                    provider.acquire_writer("broker-a", take_over=take_over)
            process.kill()
        epoch = provider.acquire_writer("broker-a")
        assert str(os.getpid()) in epoch.owner
        epoch.release()

    def test_a_lock_file_that_was_removed_ends_the_epoch(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        first = provider.acquire_writer("broker-a")
        next(tmp_path.rglob(".writer")).unlink()
        with pytest.raises(Fenced, match="removed or replaced"):
            first.check()
        second = provider.acquire_writer("broker-a")
        second.check()
        with pytest.raises(Fenced):
            first.check()
        first.release()
        second.check()
        second.release()

    def test_a_lock_file_replaced_while_it_is_locked_is_locked_anew(
        self, provider: PosixProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = fcntl.flock
        removed: list[Path] = []

        def flock(fd: int, operation: int) -> None:
            if not removed:
                removed.append(next(tmp_path.rglob(".writer")))
                removed[0].unlink()
            real(fd, operation)

        monkeypatch.setattr(fcntl, "flock", flock)
        epoch = provider.acquire_writer("broker-a")
        epoch.check()
        with pytest.raises(Fenced):
            provider.acquire_writer("broker-a")
        epoch.release()

    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
    def test_a_file_system_without_locks_is_told(
        self, provider: PosixProvider, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def flock(fd: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        before = open_descriptors()
        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(Unavailable, match=os.strerror(number)):
            provider.acquire_writer("broker-a")
        assert open_descriptors() == before

    def test_w05_a_tier_of_a_newer_format_is_refused(
        self, provider: PosixProvider, tmp_path: Path
    ) -> None:
        provider.acquire_writer("broker-a").release()
        path = next(tmp_path.rglob(".writer"))
        content = path.read_bytes()
        path.write_bytes(content.replace(b'"format":1', b'"format":2'))
        with pytest.raises(Invalid, match="format version 2"):
            provider.acquire_writer("broker-a")
        path.write_bytes(b"torn {")
        provider.acquire_writer("broker-a").release()


class TestConfiguration:
    def test_the_keys_of_a_broker_conf_are_used(self, tmp_path: Path) -> None:
        from tieredstore.config import StoreConfig

        config = StoreConfig(tier_file_path=str(tmp_path), broker_cluster_name="C")
        with closing(PosixProvider.from_config(config)) as provider:
            provider.open(segment_id()).write(0, [b"x"])
            assert provider.url == f"file://{tmp_path}"
        assert [path.name for path in tmp_path.iterdir()] == ["0d61f837_C"]
