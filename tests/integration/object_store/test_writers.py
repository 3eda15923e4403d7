"""Several writers with the same identity run on real servers, while garbage is collected."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

import pytest

from tests.kit.fault_proxy.faults import hold
from tests.kit.fault_proxy.http import Forward, Reply, Request
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.killable.object_store import BROKER, open_tier
from tests.kit.object_store.servers import ObjectStore
from tieredstore.contracts.segment import FencedWrite, UnknownWrite, Written
from tieredstore.errors import Fenced, Invalid, TieredStoreError
from tieredstore.testing.provider.samples import content, segment_id, write_whole

if TYPE_CHECKING:
    from tieredstore.providers.s3.provider import S3Provider

OPTIONS = {"fast_reads": "false"}
WRITES_EACH = 25


def test_w01_racing_writers_and_a_seal_tile_the_log_exactly(object_store: ObjectStore) -> None:
    """Four writers without an epoch write at the same time, and one of them seals the segment. The
    log has no holes and no overlaps."""
    acknowledged: list[tuple[int, bytes]] = []
    fenced = 0
    lock = threading.Lock()

    def race(number: int) -> None:
        nonlocal fenced
        with closing(open_tier(object_store.url(**OPTIONS))) as provider:
            segment = provider.open(segment_id())
            for turn in range(WRITES_EACH):
                data = content(1 + (number + turn) % 7, number * 31 + turn)
                try:
                    position = segment.size()
                    result = segment.write(position, [data])
                except Invalid:
                    assert number == 0  # it sealed the segment itself
                    return
                with lock:
                    if isinstance(result, Written):
                        acknowledged.append((position, data))
                    else:
                        assert isinstance(result, FencedWrite)
                        fenced += 1
                if number == 0 and turn == WRITES_EACH - 5:
                    segment.seal()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(race, number) for number in range(4)]:
            future.result()
    with closing(open_tier(object_store.url(**OPTIONS))) as provider:
        (listing,) = provider.list()
        whole = bytes(provider.open(segment_id()).read(0, listing.size_bytes))
    assert listing.sealed
    assert b"".join(data for _, data in sorted(acknowledged)) == whole
    assert fenced


def test_w01_a_paused_writer_that_was_taken_over_writes_no_more(object_store: ObjectStore) -> None:
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(open_tier(object_store.url(**OPTIONS)))) for _ in range(2)
        )
        lost = first.acquire_writer(BROKER)
        zombie = first.open(segment_id())
        write_whole(zombie, b"first ")
        with pytest.raises(Fenced):
            second.acquire_writer("broker-a")
        epoch = second.acquire_writer(BROKER, take_over=True)
        write_whole(second.open(segment_id()), b"second", 6)
        zombie.write(6, [b"zombie"])  # invisible to readers
        with pytest.raises(Fenced, match=epoch.owner):
            lost.confirm()
        for attempt in (
            lambda: zombie.write(6, [b"zombie"]),
            lambda: zombie.write(12, [b"zombie"]),
            lambda: first.open(segment_id(base_offset=12)).write(0, [b"zombie"]),
            zombie.seal,
            zombie.delete,
        ):
            with pytest.raises(Fenced, match=epoch.owner):
                attempt()
        found = second.open(segment_id())
        assert bytes(found.read(0, found.size())) == b"first second"
        epoch.release()


@pytest.mark.parametrize("same", [False, True], ids=["other-bytes", "same-bytes"])
def test_w01_a_put_in_flight_while_another_takes_over_is_not_interleaved(
    versitygw: ObjectStore, same: bool
) -> None:
    """A put hangs in the network while another writer takes over and writes at the same position.
    The bytes of the two writers do not mix."""
    reached, go_on = threading.Event(), threading.Event()
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(versitygw.endpoint))
        through = versitygw.through(proxy.endpoint)
        first = stack.enter_context(closing(open_tier(through.url(**OPTIONS))))
        second = stack.enter_context(closing(open_tier(versitygw.url(**OPTIONS))))
        lost = first.acquire_writer(BROKER)
        write_whole(first.open(segment_id()), b"first ")
        proxy.inject(hold(reached, go_on), "PutObject", key=r"/c\.")
        pool = stack.enter_context(ThreadPoolExecutor(1))
        zombie = pool.submit(first.open(segment_id()).write, 6, [b"zombie"])
        assert reached.wait(20)
        epoch = second.acquire_writer(BROKER, take_over=True)
        theirs = b"zombie" if same else b"winner"
        write_whole(second.open(segment_id()), theirs, 6)
        go_on.set()
        zombie.result()  # any result counts for nothing
        with pytest.raises(Fenced):
            lost.confirm()
        write_whole(second.open(segment_id()), b" goes on", 12)
        found = second.open(segment_id())
        assert bytes(found.read(0, found.size())) == b"first " + theirs + b" goes on"
        epoch.release()


@pytest.mark.parametrize("has_listed", [False, True])
def test_w01_a_put_in_flight_that_lands_after_a_take_over(
    versitygw: ObjectStore, has_listed: bool
) -> None:
    """A put of the old writer is in flight during a take-over. If it arrives before the new
    writer's first listing, its bytes are valid, and the new writer cannot write at the same
    position. If it arrives after the listing, its bytes are invalid."""
    reached, go_on = threading.Event(), threading.Event()
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(versitygw.endpoint))
        through = versitygw.through(proxy.endpoint)
        first = stack.enter_context(closing(open_tier(through.url(**OPTIONS))))
        second = stack.enter_context(closing(open_tier(versitygw.url(**OPTIONS))))
        first.acquire_writer(BROKER)
        write_whole(first.open(segment_id()), b"first ")
        proxy.inject(hold(reached, go_on), "PutObject", key=r"/c\.")
        pool = stack.enter_context(ThreadPoolExecutor(1))
        zombie = pool.submit(first.open(segment_id()).write, 6, [b"zombie"])
        assert reached.wait(20)
        epoch = second.acquire_writer(BROKER, take_over=True)
        segment = second.open(segment_id())
        if has_listed:
            assert segment.size() == 6
        go_on.set()
        with suppress(Fenced):
            zombie.result()
        result = segment.write(6, [b"winner"])
        assert segment.size() == 12
        if has_listed:
            assert isinstance(result, Written)
            assert bytes(segment.read(0, 12)) == b"first winner"
        else:
            assert isinstance(result, FencedWrite)
            assert result.stale
            assert bytes(segment.read(0, 12)) == b"first zombie"
        epoch.release()


def steps(provider: S3Provider) -> bytes:
    """Run an upload with all kinds of requests. Return the content at its end."""
    segment = provider.open(segment_id())
    whole = content(700)
    for start in range(0, 700, 100):
        write_whole(segment, whole[start : start + 100], start)
        provider.run_maintenance(sweep=False)
    segment.seal()
    provider.run_maintenance(sweep=False)
    return whole


class TakeOver:
    """A fault: before change number `number`, another writer takes over and appends."""

    def __init__(self, store: ObjectStore, prefix: str, number: int) -> None:
        self._store = store
        self._prefix = prefix
        self._number = number
        self._count = 0
        self.happened = False
        self.said = b""

    def __call__(self, request: Request, forward: Forward) -> Reply:
        if "/.writer/" not in request.key:
            if self._count == self._number:
                self.happened = True
                self.said = append_as_another(self._store, self._prefix)
            self._count += 1
        return forward(request)


def test_w02_a_switch_of_writers_at_every_step_of_an_upload(versitygw: ObjectStore) -> None:
    """Writers are switched at any step of an upload. Afterwards the segment has no hole and no
    duplicate range, and contains everything that either writer acknowledged."""
    for number in range(100):
        prefix = f"tier-{number}"
        switch = TakeOver(versitygw, prefix, number)
        with FaultProxy(versitygw.endpoint) as proxy:
            proxy.inject(switch, "PutObject", "DeleteObjects")
            url = versitygw.through(proxy.endpoint).url(prefix, **OPTIONS)
            with closing(open_tier(url)) as first:
                first.acquire_writer(BROKER)
                with suppress(TieredStoreError, AssertionError):
                    steps(first)
        with closing(open_tier(versitygw.url(prefix, **OPTIONS))) as reader:
            segment = reader.open(segment_id())
            found = bytes(segment.read(0, segment.size()))
        assert switch.said in found, number
        ours = found.replace(switch.said, b"") if switch.said else found
        assert content(700).startswith(ours), number
        if not switch.happened:
            assert ours == content(700)
            break
    assert number > 8


def append_as_another(store: ObjectStore, prefix: str) -> bytes:
    """Append bytes as another writer. Return the bytes if they were acknowledged."""
    with closing(open_tier(store.url(prefix, **OPTIONS))) as second:
        epoch = second.acquire_writer(BROKER, take_over=True)
        segment = second.open(segment_id())
        result = segment.write(segment.size(), [b"another writer"])
        epoch.release()
    assert not isinstance(result, UnknownWrite)
    return b"another writer" if isinstance(result, Written) else b""


def test_w03_a_reader_reads_on_while_its_objects_are_merged_and_deleted(
    object_store: ObjectStore,
) -> None:
    with ExitStack() as stack:
        writer, reader = (
            stack.enter_context(closing(open_tier(object_store.url(**OPTIONS)))) for _ in range(2)
        )
        epoch = writer.acquire_writer(BROKER)
        segment = writer.open(segment_id())
        whole = content(400)
        for start in range(0, 400, 100):
            write_whole(segment, whole[start : start + 100], start)
        seen = reader.open(segment_id(), next(iter(reader.list())))
        assert bytes(seen.read(0, 50)) == whole[:50]
        segment.seal()
        for _ in range(3):
            writer.run_maintenance()
        assert not [key for key in object_store.keys("tier/") if key.endswith(f"c.{0:020d}")]
        assert bytes(seen.read(0, 400)) == whole
        assert bytes(seen.read(150, 100)) == whole[150:250]
        epoch.release()


def test_w03_what_a_late_writer_left_below_the_chain_is_never_read(versitygw: ObjectStore) -> None:
    with closing(open_tier(versitygw.url(**OPTIONS))) as writer:
        epoch = writer.acquire_writer(BROKER)
        segment = writer.open(segment_id())
        whole = content(500)
        for start in range(0, 500, 100):
            write_whole(segment, whole[start : start + 100], start)
        writer.run_maintenance()
        keys = versitygw.keys("tier/")
        folder = next(key for key in keys if "/m." in key).rpartition("/")[0]
        late = [f"{folder}/c.{100:020d}", f"{folder}/c.{30:020d}"]
        versitygw.put(late, b"late, and of another length than what was here" * 9)
        with closing(open_tier(versitygw.url(**OPTIONS))) as other:
            found = other.open(segment_id())
            assert found.size() == 500
            assert bytes(found.read(0, 500)) == whole
        write_whole(segment, b"on it goes", 500)
        assert bytes(segment.read(0, 510)) == whole + b"on it goes"
        epoch.release()
    with closing(open_tier(versitygw.url(**OPTIONS))) as next_one:
        epoch = next_one.acquire_writer(BROKER)
        for _ in range(2):
            next_one.run_maintenance()
        assert not set(late) & set(versitygw.keys("tier/")), "garbage goes"
        assert bytes(next_one.open(segment_id()).read(0, 510)) == whole + b"on it goes"
        epoch.release()


@pytest.mark.parametrize("again", [b"made again", b""])
def test_w03_a_topic_deleted_during_an_upload_does_not_mix_with_its_successor(
    versitygw: ObjectStore, again: bytes
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(versitygw.endpoint))
        url = versitygw.through(proxy.endpoint).url(**OPTIONS)
        provider = stack.enter_context(closing(open_tier(url)))
        reader = stack.enter_context(closing(open_tier(versitygw.url(**OPTIONS))))
        epoch = provider.acquire_writer(BROKER)
        segment = provider.open(segment_id())
        write_whole(segment, b"old bytes")
        known = reader.open(segment_id())
        assert bytes(known.read(0, 9)) == b"old bytes"
        proxy.inject(hold(reached, go_on), "PutObject", key=r"/c\.0*9$", calls={1})
        pool = stack.enter_context(ThreadPoolExecutor(2))
        upload = pool.submit(segment.write, 9, [b" and more"])
        assert reached.wait(20)
        deletion = pool.submit(provider.open(segment_id()).delete)
        go_on.set()
        outcomes(upload.result, deletion.result)
        provider.open(segment_id()).delete()
        if again:
            write_whole(provider.open(segment_id()), again)
        assert known.size() == len(again)
        if again:
            assert bytes(known.read(0, len(again))) == again
        provider.run_maintenance()
        left = [key for key in versitygw.keys("tier/") if "/c." in key or "/m." in key]
        assert len(left) == bool(again)
        epoch.release()


def outcomes(*calls: Callable[[], object]) -> None:
    """Run all calls. A call may fail only with an error of this project."""
    for call in calls:
        try:
            call()
        except TieredStoreError:
            continue
