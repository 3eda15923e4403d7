"""Tests of the upload and expiry of index files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.index import (
    BROKER,
    NOW,
    Node,
    all_found,
    fill,
    find,
    header_of,
    offsets_of,
    put,
)
from tests.kit.waiting import wait_for
from tieredstore.config import change_config
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, FileSegmentMetadata
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    FileSegmentType,
    SegmentProvider,
    WriteResult,
)
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.tier.index import IndexStatus, IndexStoreService, segments
from tieredstore.tier.index.service import STOP_MS
from tieredstore.tier.reading import run

PATH = "broker-a/rmq_sys_INDEX/0"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def entries(node: Node) -> list[FileSegmentMetadata]:
    return list(node.metadata().segments(PATH, FileSegmentType.INDEX))


def with_faults(node: Node, writes: dict[int, Fault]) -> Faults:
    faults = Faults(writes)
    node.provider = FaultyProvider(node.provider, faults)
    return faults


def test_full_files_go_to_the_tier_and_the_last_stays(node: Node) -> None:
    service = node.open()
    keys = fill(service, 2)
    put(service, ["more"], first_offset=99_000)
    assert service.seal_and_upload() == 2
    assert len(node.local_names()) == 1
    assert all_found(service, keys)
    assert offsets_of(find(service, "more")) == [99_000]
    assert service.seal_and_upload() == 0
    assert service.seal_and_upload(force=True) == 1
    assert node.local_names() == []
    assert all_found(service, keys)
    assert offsets_of(find(service, "more")) == [99_000]


def test_segments_are_as_java_lays_them_out(node: Node) -> None:
    """As in Java, an index segment's base offset is the total size of earlier ones, and its begin
    time that of the file."""
    service = node.open()
    put(service, ["a"] * 19, times=NOW - 7)
    put(service, ["b"] * 19, times=NOW + 5)
    put(service, ["c"] * 3, times=NOW + 9)
    service.seal_and_upload(force=True)
    found = entries(node)
    assert [entry.size for entry in found] == [28 + 80 + 28 * items for items in (19, 19, 3)]
    assert [entry.base_offset for entry in found] == [0, found[0].size, 2 * found[0].size]
    assert [entry.begin_timestamp_ms for entry in found] == [NOW - 7, NOW, NOW + 1]
    assert [entry.end_timestamp_ms for entry in found] == [NOW - 7, NOW + 5, NOW + 9]
    assert [entry.status for entry in found] == [0, 0, 0]
    for entry in found:
        name = f"{entry.base_offset:020d}"
        [path] = (node.root / "tier").rglob(f"INDEX/*{name}")
        assert header_of(path)[:3] == (
            0xBCC50285,
            entry.begin_timestamp_ms,
            entry.end_timestamp_ms,
        )


def test_defect_d20_nothing_is_uploaded_without_keys(node: Node) -> None:
    for _ in range(3):
        service = node.open()
        assert service.seal_and_upload(force=True) == 0
        service.stop()
    assert entries(node) == []
    assert list((node.root / "store").rglob("1*")) == []


def test_stop_uploads_everything_and_a_new_start_finds_it(node: Node) -> None:
    service = node.open()
    keys = fill(service, 2)
    put(service, ["more"], first_offset=99_000)
    service.stop()
    service.stop()
    assert node.local_names() == []
    service = node.open()
    assert all_found(service, keys)
    assert offsets_of(find(service, "more")) == [99_000]


class _SlowProvider(WrapperProvider):
    """Calls `before_write` before each write of a part, and `before_delete` before each
    deletion."""

    def __init__(self, wrapped: SegmentProvider) -> None:
        super().__init__(wrapped)
        self.writes = 0
        self.before_write: Callable[[], object] = lambda: None
        self.before_delete: Callable[[], object] = lambda: None

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _SlowSegment(segment, self)


class _SlowSegment(WrapperSegment):
    def __init__(self, wrapped: FileSegment, provider: _SlowProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        self._provider.writes += 1
        self._provider.before_write()
        return super().write(position, buffers)

    def delete(self) -> None:
        self._provider.before_delete()
        super().delete()


@pytest.fixture
def slow(node: Node, monkeypatch: pytest.MonkeyPatch) -> _SlowProvider:
    """Provider of a node that writes an index file of 640 bytes in 7 parts."""
    monkeypatch.setattr(segments, "PIECE_BYTES", 100)
    node.provider = slow = _SlowProvider(node.provider)
    return slow


def test_the_upload_at_a_stop_ends_with_its_time_and_goes_on_after_the_next_start(
    node: Node, slow: _SlowProvider
) -> None:
    service = node.open()
    keys = fill(service, 2)
    slow.before_write = lambda: node.clock.advance(1_000)
    service.stop()
    assert slow.writes == STOP_MS // 1_000
    assert len(node.local_names()) == 2  # nothing is lost that is not in the tier
    slow.before_write = lambda: None
    service = node.open()
    assert all_found(service, keys)
    assert service.seal_and_upload() == 2
    assert node.local_names() == []
    assert all_found(service, keys)


def test_a_stop_waits_for_one_piece_of_an_upload_of_the_loop(
    node: Node, slow: _SlowProvider
) -> None:
    service = node.open()
    keys = fill(service, 3)
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    slow.before_write = wait
    service.start()
    assert begun.wait(60)
    stopping = threading.Thread(target=lambda: service.stop(force=False), daemon=True)
    stopping.start()
    wait_for(lambda: service._loop.is_stopping)
    go_on.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert slow.writes == 1
    assert len(node.local_names()) == 3
    service = node.open()
    service.stop()
    assert all_found(node.open(), keys)


def test_a_stop_waits_for_one_deletion_of_an_expiry(node: Node, slow: _SlowProvider) -> None:
    service = node.open()
    fill(service, 3)
    service.seal_and_upload()
    slow.before_delete = lambda: setattr(service._loop, "_stopping", True)
    assert service.expire(NOW + 1_000) == 1
    assert len(entries(node)) == 2


def test_stop_without_force_keeps_files_local(node: Node) -> None:
    service = node.open()
    put(service, ["a"])
    service.stop(force=False)
    [name] = node.local_names()
    service = node.open()
    put(service, ["b"], first_offset=100)
    assert node.local_names() == [name]
    assert offsets_of(find(service, "a")) == [0]
    assert offsets_of(find(service, "b")) == [100]


@pytest.mark.parametrize("sketch", [False, True])
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.TEAR, Fault.LOSE_REPLY])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_failed_upload_stays_local_and_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sketch: bool,
    fault: Fault,
    failing: int,
) -> None:
    monkeypatch.setattr(segments, "PIECE_BYTES", 200)
    node = Node(tmp_path, provider=chunk_provider() if sketch else None)
    service = node.open()
    keys = fill(service, 1)
    faults = Faults(dict.fromkeys(range(failing, failing + 3), fault))
    node.provider = FaultyProvider(node.provider, faults)
    service = node.open()
    for _ in range(4):
        try:
            service.seal_and_upload(force=True)
            break
        except Unavailable:
            assert len(node.local_names()) == 1
            [entry] = entries(node)
            assert entry.begin_timestamp_ms == NEVER_WRITTEN_MS
            # Without an end Java's expiry would delete it.
            assert entry.end_timestamp_ms == node.clock.now_ms()
            assert all_found(service, keys)
    assert len(entries(node)) == 1
    assert node.local_names() == []
    assert all_found(service, keys)
    assert all_found(node.open(), keys)


def test_an_upload_goes_on_where_it_stopped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "PIECE_BYTES", 200)
    faults = with_faults(node, {3: Fault.FAIL})
    service = node.open()
    keys = fill(service, 1)
    with pytest.raises(Unavailable):
        service.seal_and_upload()
    assert len(faults.calls) == 3
    service.seal_and_upload()
    # 640 bytes are four pieces, and only the third was sent again
    assert [call.split()[0] for call in faults.calls] == ["write"] * 5 + ["seal"]
    assert all_found(service, keys)


def test_a_segment_that_cannot_be_sealed_is_uploaded_nevertheless(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with_faults(node, {2: Fault.FAIL})
    service = node.open()
    keys = fill(service, 1)
    assert service.seal_and_upload() == 1
    assert "not sealed" in caplog.text
    assert all_found(service, keys)


def test_a_fenced_upload_stops_uploads_for_good(node: Node) -> None:
    faults = with_faults(node, {1: Fault.FENCE})
    service = node.open()
    keys = fill(service, 1)
    with pytest.raises(Fenced):
        service.seal_and_upload()
    with pytest.raises(Fenced):
        service.seal_and_upload()
    with pytest.raises(Fenced):
        service.expire(NOW + 1)
    service.tick()
    assert len(faults.calls) == 1
    assert all_found(service, keys)


def test_bytes_that_the_metadata_does_not_know_are_not_overwritten(node: Node) -> None:
    service = node.open()
    fill(service, 1)
    service.stop()
    metadata = node.metadata()
    for entry in entries(node):
        metadata.delete_segment(entry.id)
    service = node.open()
    fill(service, 1)
    with pytest.raises(Corrupt, match="metadata"):
        service.seal_and_upload()
    assert len(node.local_names()) == 1


def test_the_end_decides_about_expiry(node: Node) -> None:
    service = node.open()
    put(service, ["a"] * 19, times=NOW + 10)
    put(service, ["b"] * 19, times=NOW + 20)
    service.seal_and_upload()
    assert service.expire(NOW + 10) == 0
    assert service.expire(NOW + 11) == 1
    assert find(service, "a") == []
    assert len(find(service, "b")) == 19
    assert [entry.end_timestamp_ms for entry in entries(node)] == [NOW + 20]
    put(service, ["c"] * 19)
    service.seal_and_upload()
    assert [entry.base_offset for entry in entries(node)] == [640, 1280]
    assert service.expire(NOW + 1000) == 2
    assert list((node.root / "tier").rglob("INDEX/[!.]*")) == []


def test_a_query_that_meets_an_expiry_fails_for_nobody(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    service = node.open()
    put(service, ["a"] * 19, times=NOW + 10)
    put(service, ["a"] * 19, times=NOW + 20)
    service.seal_and_upload()
    reading = service.query("T", "a", 99, 0, NOW * 2)
    assert service.expire(NOW + 11) == 1
    assert len(run(reading)) == 19
    assert caplog.messages == []


def test_expiry_leaves_a_segment_that_is_being_written(node: Node) -> None:
    with_faults(node, {1: Fault.FAIL})
    service = node.open()
    keys = fill(service, 1)
    with pytest.raises(Unavailable):
        service.seal_and_upload()
    assert service.expire(NOW * 2) == 0
    assert len(entries(node)) == 1
    service.seal_and_upload()
    assert all_found(service, keys)


def test_defect_d07_expiry_that_fails_ends_and_is_tried_again(node: Node) -> None:
    """A failed expiry ends and is retried later. Java retries in a loop without pauses."""
    with_faults(node, {5: Fault.FAIL})  # behind two writes and two seals
    service = node.open()
    fill(service, 2)
    service.seal_and_upload()
    with pytest.raises(Unavailable):
        service.expire(NOW * 2)
    assert len(entries(node)) == 2
    assert service.expire(NOW * 2) == 2


def test_defect_d07_stop_ends_although_the_tier_is_down(node: Node) -> None:
    """A stop ends even if the tier is unreachable. Java retries the upload forever without
    pauses."""
    faults = with_faults(node, dict.fromkeys(range(1, 1000), Fault.FAIL))
    service = node.open()
    keys = fill(service, 2)
    service.stop()
    assert len(faults.calls) < 10
    assert len(node.local_names()) == 2
    assert all_found(node.open(), keys)


def test_defect_d07_the_loop_waits_longer_after_each_failure(node: Node) -> None:
    with_faults(node, dict.fromkeys(range(1, 1000), Fault.FAIL))
    service = node.open()
    fill(service, 1)
    waits: list[int] = []

    def wait(event: object, timeout_ms: int) -> bool:
        waits.append(timeout_ms)
        node.clock.advance(timeout_ms)
        if len(waits) == 9:
            service._loop._stopping = True
        return False

    node.clock.wait = wait  # type: ignore[method-assign]  # waiting moves this clock
    service._loop.run()
    assert waits[:4] == [20_000, 40_000, 80_000, 160_000]
    assert waits[-1] == 600_000


def test_defect_d07_puts_that_wake_the_loop_do_not_shorten_the_wait(node: Node) -> None:
    faults = with_faults(node, dict.fromkeys(range(1, 1000), Fault.FAIL))
    service = node.open()
    fill(service, 1)
    rounds: list[int] = []

    def wait(event: object, timeout_ms: int) -> bool:
        rounds.append(timeout_ms)
        node.clock.advance(1000)
        if len(rounds) == 20:
            service._loop._stopping = True
        return True

    node.clock.wait = wait  # type: ignore[method-assign]  # waiting moves this clock
    service._loop.run()
    assert len(faults.calls) == 1


def test_the_loop_goes_on_after_an_unexpected_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = node.open()
    rounds: list[int] = []

    def tick() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise ValueError("unexpected")
        service._loop._stopping = True

    monkeypatch.setattr(service._loop, "_work", tick)
    service._loop.run()
    assert len(rounds) == 2


def test_the_background_loop_uploads(node: Node) -> None:
    service = node.open()
    keys = fill(service, 2)
    service.start()
    service.stop()
    assert len(entries(node)) == 2
    assert all_found(node.open(), keys)


def test_keys_go_to_the_tier_within_their_interval_however_many_follow(node: Node) -> None:
    change_config(node.config, {"tieredStoreIndexFileUploadInterval": 60_000})
    service = node.open()
    for number in range(5):
        put(service, [f"key-{number}"], first_offset=number * 100)
        service.tick()
        assert entries(node) == []
        node.clock.advance(12_000)
    service.tick()
    assert len(entries(node)) == 1
    assert node.local_names() == []
    node.clock.advance(3_600_000)
    service.tick()
    assert len(entries(node)) == 1  # nothing is new
    put(service, ["key-5"], first_offset=500)
    node.clock.advance(59_999)
    service.tick()
    assert len(entries(node)) == 1
    node.clock.advance(1)
    service.tick()
    assert len(entries(node)) == 2
    assert all_found(service, [f"key-{number}" for number in range(6)])


def test_keys_that_a_killed_process_left_go_to_the_tier_within_the_interval(node: Node) -> None:
    change_config(node.config, {"tieredStoreIndexFileUploadInterval": 60_000})
    service = node.open()
    put(service, ["one", "two"])
    service.checkpoint()
    node.clock.advance(50_000)
    again = node.open()
    again.tick()
    assert entries(node) == []
    node.clock.advance(60_000)
    again.tick()
    assert len(entries(node)) == 1
    assert all_found(again, ["one", "two"])


def test_a_file_that_could_not_be_uploaded_in_its_interval_is_tried_again(node: Node) -> None:
    change_config(node.config, {"tieredStoreIndexFileUploadInterval": 60_000})
    with_faults(node, {1: Fault.FAIL})
    service = node.open()
    put(service, ["one"])
    node.clock.advance(60_000)
    with pytest.raises(TieredStoreError):
        service.tick()
    put(service, ["two"], first_offset=100)
    service.tick()
    assert len(entries(node)) == 1
    assert all_found(service, ["one", "two"])
    assert len(node.local_names()) == 1


def test_defect_d22_the_index_lives_as_long_as_the_longest_retention(node: Node) -> None:
    """The index is kept for the longest retention of any topic. Java uses the global retention."""
    service = node.open()
    fill(service, 1)
    service.seal_and_upload()
    hour = 3_600_000
    node.retention_hours = 200
    node.clock.advance_to(NOW + 200 * hour)
    service.tick()
    assert len(entries(node)) == 1
    node.clock.advance_to(NOW + 202 * hour)
    service.tick()
    assert entries(node) == []


def test_nothing_expires_without_a_retention(node: Node) -> None:
    service = node.open()
    fill(service, 1)
    service.seal_and_upload()
    node.clock.set(NOW * 2)
    service.tick()
    assert len(entries(node)) == 1


def test_a_backend_that_keeps_nothing_serves_queries(tmp_path: Path) -> None:
    service = Node(tmp_path, provider=MemoryProvider()).open()
    keys = fill(service, 2)
    service.seal_and_upload()
    assert all_found(service, keys)


def test_other_files_answer_when_one_cannot_be_read(node: Node) -> None:
    service = node.open()
    put(service, ["same"] * 19)
    put(service, ["same"] * 19, first_offset=10_000)
    put(service, ["same"] * 5, first_offset=20_000)
    service.seal_and_upload()
    [first] = (node.root / "tier").rglob(f"INDEX/*{0:020d}")
    first.unlink()
    assert offsets_of(find(service, "same"))[0] == 10_000
    assert len(find(service, "same")) == 24


def test_an_outage_is_not_an_empty_answer(node: Node) -> None:
    faults = Faults(reads=dict.fromkeys(range(1, 1000), Fault.FAIL))
    plain = node.open()
    fill(plain, 1)
    plain.stop()
    node.provider = FaultyProvider(node.provider, faults)
    service = node.open()
    with pytest.raises(TieredStoreError):
        find(service, "key-3")


def test_defect_d06_a_segment_whose_end_java_lost_is_still_asked(node: Node) -> None:
    service = node.open()
    put(service, ["late"], times=NOW + 60_000)
    node.clock.set(NOW + 90_000)
    service.stop()
    metadata = node.metadata()
    [entry] = metadata.segments(PATH, FileSegmentType.INDEX)
    entry.end_timestamp_ms = entry.begin_timestamp_ms
    metadata.put_segment(entry)
    metadata.flush()
    service = node.open()
    assert len(find(service, "late", begin_ms=NOW + 59_000, end_ms=NOW + 61_000)) == 1


def test_a_segment_that_ended_before_the_window_is_not_read(node: Node) -> None:
    reads: list[object] = []
    service = node.open()
    put(service, ["early"])
    service.seal_and_upload(force=True)
    node.clock.set(NOW + 1)
    service = node.open()
    reading = service.query("T", "early", 10, NOW + 100_000, NOW + 200_000)
    reads.extend(reading)
    assert reads == []


def test_puts_uploads_and_queries_run_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, slots=50, max_items=300)
    service = node.open()
    stop = threading.Event()
    done = [0]
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failures.append(error)
            stop.set()

    def ask() -> None:
        number = done[0] - 1
        for wanted in {0, number // 2, number} if number > 0 else ():
            assert offsets_of(find(service, f"key-{wanted}")) == [wanted * 100]

    def upload() -> None:
        service.tick()
        stop.wait(0.005)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (ask, ask, upload)]
    for thread in threads:
        thread.start()
    for number in range(0, 4000, 20):
        keys = [f"key-{number + row}" for row in range(20)]
        put(service, keys, first_offset=number * 100)
        done[0] = number + 20
        if stop.is_set():
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    service.stop()
    assert len(entries(node)) >= 13


def test_an_upload_starts_over_when_what_was_sent_is_gone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "PIECE_BYTES", 200)
    with_faults(node, {3: Fault.FAIL})
    service = node.open()
    keys = fill(service, 1)
    with pytest.raises(Unavailable):
        service.seal_and_upload()
    [path] = (node.root / "tier").rglob("INDEX/[!.]*")
    path.unlink()
    with pytest.raises(TieredStoreError):
        service.seal_and_upload()
    service.seal_and_upload()
    assert all_found(service, keys)


def test_the_status_of_a_file_goes_the_way_of_java_s(node: Node) -> None:
    """The status of an index file changes as in Java: UNSEALED, SEALED when full, UPLOAD, SHUTDOWN
    when closed."""
    service = node.open()
    fill(service, 1)
    put(service, ["more"], first_offset=99_000)
    assert service._writer is not None
    full, newest = service._writer.files
    assert (full.status, newest.status) == (IndexStatus.SEALED, IndexStatus.UNSEALED)
    assert (full.room, newest.room) == (0, 18)
    service.seal_and_upload()
    [uploaded] = service._uploaded
    assert (uploaded.begin_ms, uploaded.status) == (full.begin_ms, IndexStatus.UPLOAD)
    assert full.status is IndexStatus.SHUTDOWN
    service.stop(force=False)
    assert (uploaded.status, newest.status) == (IndexStatus.SHUTDOWN, IndexStatus.SHUTDOWN)
    newest.seal()
    assert newest.status is IndexStatus.SHUTDOWN


def test_what_is_stored_is_recorded_only_after_a_look_and_the_local_file_stays_until_then(
    node: Node,
) -> None:
    looks: list[Exception | None] = [Unavailable("no look"), Fenced("lost"), None]

    def confirm() -> None:
        if looks and (problem := looks.pop(0)) is not None:
            raise problem

    service = IndexStoreService(
        node.config,
        node.provider,
        node.metadata(),
        node.root / "store",
        node.clock,
        confirm_writer=confirm,
    )
    service.recover()
    keys = fill(service, 1)
    for problem in (Unavailable, Fenced):
        with pytest.raises(problem):
            service.seal_and_upload()
        assert [entry.size for entry in entries(node)] == [0]
        assert len(node.local_names()) == 1
        assert all_found(service, keys)
        service._fenced = None  # a fenced process stops, but this one tries again
    assert service.seal_and_upload() == 1
    assert entries(node)[0].size > 0
    assert node.local_names() == []
    assert all_found(service, keys)


def test_what_an_earlier_process_stored_is_recorded_after_a_look(node: Node) -> None:
    service = node.open()
    fill(service, 1)
    service.seal_and_upload()
    metadata = node.metadata()
    [entry] = metadata.segments(PATH, FileSegmentType.INDEX)
    entry.size = 0
    metadata.put_segment(entry)

    def refuse() -> None:
        raise Fenced("lost")

    found = segments.IndexSegments(node.provider, metadata, BROKER, node.clock, refuse)
    with pytest.raises(Fenced):
        found.load()
    assert [entry.size for entry in metadata.segments(PATH, FileSegmentType.INDEX)] == [0]
