"""Tests of merges, seals, garbage collection and deletions."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

import pytest

from tests.kit.chunks import GRACE_MS, LOG, UNITS, Store
from tests.kit.object_faults import ObjectFault
from tieredstore.contracts.segment import Written
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.providers.chunks.manifests.names import Generation, chunk_name, make_merged_name
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.testing.provider.samples import content

FAIL, LOSE = ObjectFault.FAIL, ObjectFault.LOSE_REPLY


@pytest.fixture
def store() -> Store:
    return Store()


class TestMerging:
    def test_small_writes_in_memory_are_merged_without_a_read(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.operations()
        report = writer.tier.run_maintenance(sweep=False)
        assert (report.merged_count, report.deleted_count) == (1, 0)
        assert writer.operations() == ["PUT"]
        assert store.names()[-1] == make_merged_name(0, 12)
        assert len(store.names()) == 5

    def test_others_are_read_first(self, store: Store) -> None:
        writer = store.process(write_cache_bytes=0).take_over()
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.operations()
        writer.tier.run_maintenance(sweep=False)
        assert writer.operations() == ["GET"] * 4 + ["PUT"]
        assert writer.content() == b"abcdefghijkl"

    def test_large_writes_are_merged_on_the_server(self, store: Store) -> None:
        writer = store.process().take_over()
        data = content(600)
        writer.append(*(data[start : start + 150] for start in range(0, 600, 150)))
        writer.operations()
        writer.tier.run_maintenance(sweep=False)
        assert writer.operations() == ["CREATE_UPLOAD", *["COPY_PART"] * 4, "COMPLETE_UPLOAD"]
        assert writer.content() == data

    def test_an_append_goes_on_while_a_merge_runs(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def", b"ghi", b"jkl")
        request = writer.client.request

        def append_meanwhile(operation: str, key: str) -> None:
            if "/m." in key:
                writer.client.request = request  # type: ignore[method-assign]
                thread = threading.Thread(target=segment.write, args=(12, [b"mno"]))
                thread.start()
                thread.join()
            request(operation, key)

        writer.client.request = append_meanwhile  # type: ignore[method-assign]
        writer.tier.run_maintenance()
        assert store.names()[-1] == make_merged_name(0, 12)
        assert writer.content() == b"abcdefghijklmno"
        assert bytes(writer.open().read(12, 3)) == b"mno"

    @pytest.mark.parametrize("fault", [FAIL, LOSE, ObjectFault.BUSY])
    def test_o03_a_merge_without_a_reply_is_made_once(
        self, store: Store, fault: ObjectFault
    ) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.fail_next(fault)
        assert writer.tier.run_maintenance(sweep=False).merged_count == 1
        assert writer.content() == b"abcdefghijkl"

    def test_o03_a_merge_whose_outcome_stays_unknown_is_looked_at(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.fail_next(LOSE, FAIL, FAIL, FAIL)
        assert writer.tier.run_maintenance(sweep=False).failed_count == 1
        writer.operations()
        segment.write(12, [b"m"])
        assert writer.operations() == ["LIST", "HEAD", "PUT"]
        store.clock.advance(GRACE_MS)
        writer.tier.run_maintenance(sweep=False)
        assert store.names() == [chunk_name(12), make_merged_name(0, 12)]

    def test_a_merge_that_fails_is_tried_again(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.fail_all(FAIL, ["PUT"])
        with caplog.at_level(logging.WARNING):
            assert writer.tier.run_maintenance(sweep=False).failed_count == 1
        assert "tried again" in caplog.text
        writer.client.fault_of = None
        assert writer.tier.run_maintenance(sweep=False).merged_count == 0
        store.clock.advance(60_000)
        assert writer.tier.run_maintenance(sweep=False).merged_count == 1

    def test_what_a_former_process_left_is_found_by_a_sweep(self, store: Store) -> None:
        store.process().append(b"abc", b"def", b"ghi", b"jkl")
        writer = store.process().take_over()
        assert writer.tier.run_maintenance(sweep=False).merged_count == 0
        assert writer.tier.run_maintenance().merged_count == 1

    def test_a_listing_reports_work_to_maintenance(self, store: Store) -> None:
        store.process().append(b"abc", b"def", b"ghi", b"jkl")
        writer = store.process().take_over()
        assert len(list(writer.tier.list())) == 1
        assert writer.tier.run_maintenance(sweep=False).merged_count == 1


class TestGarbage:
    def test_sources_stay_for_the_grace_time_by_the_servers_clock(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.tier.run_maintenance()
        store.clock.advance(GRACE_MS - 1)
        assert writer.tier.run_maintenance().deleted_count == 0
        store.clock.advance(1)
        writer.operations()
        assert writer.tier.run_maintenance(sweep=False).deleted_count == 4
        assert writer.operations() == ["HEAD", "DELETE"]
        assert store.names() == [make_merged_name(0, 12)]

    def test_any_later_process_collects_it(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.tier.run_maintenance()
        other = store.process().take_over()
        assert other.tier.run_maintenance().deleted_count == 0
        store.clock.advance(GRACE_MS)
        assert other.tier.run_maintenance().deleted_count == 4

    def test_w01_nothing_is_deleted_once_the_epoch_is_lost(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.tier.run_maintenance()
        store.process("winner").take_over()
        store.clock.advance(GRACE_MS)
        writer.operations()
        with pytest.raises(Fenced, match="winner"):
            writer.tier.run_maintenance()
        assert writer.operations() == ["HEAD", "GET"]
        assert len(store.names()) == 5

    def test_w03_garbage_of_a_deleted_segment_is_not_looked_for_in_the_next_one(
        self, store: Store
    ) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def", b"ghi", b"jkl")
        writer.tier.run_maintenance(sweep=False)
        segment.delete()
        writer.append(b"new", b"one")
        store.clock.advance(GRACE_MS)
        writer.tier.run_maintenance(sweep=False)
        assert store.names() == ["t", chunk_name(0), chunk_name(3)]
        assert writer.content() == b"newone"

    def test_o08_old_uploads_are_aborted_and_young_ones_are_not(self, store: Store) -> None:
        dead = store.process().take_over()
        data = content(450)
        dead.append(data[:150], data[150:300], data[300:])
        dead.open().seal()
        dead.fail_all(ObjectFault.CRASH_BEFORE, ["COMPLETE_UPLOAD"])
        with pytest.raises(SimulatedCrash):
            dead.tier.run_maintenance()
        assert len(store.first.open_uploads) == 1
        writer = store.process().take_over()
        assert writer.tier.run_maintenance().aborted_upload_count == 0
        store.clock.advance(24 * 3_600_000)
        assert writer.tier.run_maintenance().aborted_upload_count == 1
        assert store.first.open_uploads == []
        assert writer.content() == data

    def test_maintenance_needs_an_epoch(self, store: Store) -> None:
        with pytest.raises(Invalid, match="epoch"):
            store.process().tier.run_maintenance()


class TestSealing:
    def test_sealing_is_one_request_and_the_rest_comes_later(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def")
        writer.operations()
        segment.seal()
        assert writer.operations() == ["PUT"]
        assert writer.tier.run_maintenance().sealed_count == 1
        store.clock.advance(GRACE_MS)
        writer.tier.run_maintenance()
        assert store.names() == [chunk_name(6), "s"]
        assert writer.content() == b"abcdef"

    def test_a_large_segment_is_copied_on_the_server(self, store: Store) -> None:
        writer = store.process().take_over()
        data = content(430)
        segment = writer.append(data[:150], data[150:300], data[300:420], data[420:])
        segment.seal()
        writer.operations()
        writer.tier.run_maintenance(sweep=False)
        assert writer.operations() == [
            "CREATE_UPLOAD",
            *["COPY_PART"] * 3,
            "PUT_PART",
            "COMPLETE_UPLOAD",
        ]
        store.clock.advance(GRACE_MS)
        writer.tier.run_maintenance()
        assert store.names() == [chunk_name(430), "s"]
        assert writer.content() == data

    def test_an_empty_segment_is_its_marker(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.open().seal()
        writer.tier.run_maintenance()
        assert store.names() == [chunk_name(0)]
        (listing,) = writer.tier.list()
        assert (listing.size_bytes, listing.sealed) == (0, True)

    @pytest.mark.parametrize("fault", [FAIL, LOSE, ObjectFault.BUSY])
    def test_o03_a_marker_without_a_reply_is_put_once(
        self, store: Store, fault: ObjectFault
    ) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        writer.fail_next(fault)
        segment.seal()
        assert store.names() == [chunk_name(0), chunk_name(3)]

    def test_a_marker_that_cannot_be_put_is_said(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        writer.fail_all(FAIL, ["PUT"])
        with pytest.raises(Unavailable, match="not sealed at 3"):
            segment.seal()
        writer.client.fault_of = None
        assert segment.write(3, [b"def"]) == Written(6)

    def test_a_segment_that_another_writer_extends_is_sealed_behind_that(
        self, store: Store
    ) -> None:
        segment = store.process().append(b"abc")
        store.process().append(b"def")
        segment.seal()
        assert store.names()[-1] == chunk_name(6)

    def test_a_sweep_finishes_what_a_crash_left(self, store: Store) -> None:
        store.process().append(b"abc", b"def").seal()
        writer = store.process().take_over()
        assert writer.tier.run_maintenance().sealed_count == 1


class TestDeleting:
    def test_its_tombstone_is_left_until_the_next_epoch(self, store: Store) -> None:
        writer = store.process().take_over()
        for seals in (False, True):
            segment = writer.append(b"abc", b"def", b"ghi", b"jkl")
            if seals:
                segment.seal()
            writer.tier.run_maintenance()
            segment.delete()
            assert store.names() == ["t"]
            assert list(writer.tier.list()) == []
            assert list(store.process().tier.list()) == []
        store.clock.advance(GRACE_MS)
        assert writer.tier.run_maintenance().deleted_count == 0
        assert store.process().take_over().tier.run_maintenance().deleted_count == 1
        assert store.names() == []

    def test_without_an_epoch_nothing_is_left(self, store: Store) -> None:
        segment = store.process().append(b"abc", b"def")
        segment.delete()
        assert store.names() == []

    def test_an_absent_segment_is_deleted_by_a_look(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.tier.list("broker-a")
        writer.operations()
        writer.open().delete()
        assert writer.operations() == ["LIST"]

    def test_a_tombstone_counts_before_anything_goes(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def")
        writer.operations()
        segment.delete()
        assert writer.operations() == ["LIST", "PUT", "HEAD", "DELETE"]

    def test_a_deletion_that_fails_is_a_deletion_and_is_made_again(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def")
        writer.fail_next(None, None, None, FAIL)
        with pytest.raises(Unavailable):
            segment.delete()
        assert store.names() == [chunk_name(0), chunk_name(3), "t"]
        assert list(store.process().tier.list()) == []
        writer.operations()
        segment.delete()
        assert writer.operations() == ["LIST", "HEAD", "DELETE"]
        assert store.names() == ["t"]

    def test_a_tombstone_without_a_look_is_looked_at_again(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        writer.fail_next(None, None, FAIL)
        with pytest.raises(Unavailable):
            segment.delete()
        store.first.delete([f"{store.folder()}/{min(store.generations()).name(chunk_name(0))}"])
        writer.operations()
        segment.delete()
        assert writer.operations() == ["LIST", "HEAD"]

    def test_what_may_still_come_is_deleted_too(self, store: Store) -> None:
        """Deleting a segment also deletes an object whose create request got no reply."""
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        segment.delete()
        writer.fail_next(None, None, FAIL, FAIL, FAIL, FAIL)
        assert not isinstance(segment.write(0, [b"late"]), Written)
        segment.delete()
        assert store.names() == ["t"]
        late = Generation(1, 3).name(chunk_name(0))  # after a first life and its tombstone
        assert max(store.generations()) > Generation(1, 3)
        store.first.put_if_absent(f"{store.folder()}/{late}", [b"late"], {})
        assert list(store.process().tier.list()) == []
        assert segment.write(0, [b"new"]) == Written(3)
        assert store.process().content() == b"new"
        store.clock.advance(GRACE_MS)
        assert writer.tier.run_maintenance().deleted_count == 1

    @pytest.mark.parametrize("number", [1, 2, 3, 4])
    def test_w03_a_topic_made_again_by_the_next_writer_is_not_deleted(
        self, store: Store, number: int
    ) -> None:
        """A paused deletion by a former writer does not delete a topic that the next writer has
        recreated."""
        zombie = store.process("zombie").take_over()
        segment = zombie.append(b"abc", b"def")
        winner = store.process("winner")
        request = zombie.client.request
        zombie.operations()

        def take_over(operation: str, key: str) -> None:
            request(operation, key)
            if len(zombie.client.requests) == number:
                winner.take_over()
                winner.open().delete()
                winner.append(b"abc", b"new incarnation")

        zombie.client.request = take_over  # type: ignore[method-assign]
        with suppress(Fenced):  # unless the DELETE itself is late
            segment.delete()
        assert len(zombie.client.requests) >= number
        assert store.process().content() == b"abcnew incarnation"

    def test_a_segment_that_was_made_again_is_not_read_from_memory_of_the_former_one(
        self, store: Store
    ) -> None:
        writer = store.process().take_over()
        writer.append(b"former").delete()
        large = content(100)  # too large to be kept for a merge
        writer.append(large)
        assert writer.content() == large
        assert bytes(writer.open().read(0, 3)) == large[:3]

    def test_what_is_not_ours_does_not_stop_a_deletion(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def")
        folder = next(i.key.rpartition("/")[0] for i in store.first.list("") if "COMMIT" in i.key)
        for name in (".hidden", "x.~tmp", "c.12"):
            store.first.put_if_absent(f"{folder}/{name}", [b"x"], {})
        segment.delete()
        assert store.names() == ["t"]

    def test_a_segment_with_a_hole_can_be_deleted(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi")
        store.first.delete(
            [info.key for info in store.first.list("") if info.key.endswith(chunk_name(3))]
        )
        store.process().take_over().open().delete()
        assert store.names() == ["t"]

    def test_other_segments_stay(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"units", id=UNITS)
        writer.append(b"abc").delete()
        assert writer.content(UNITS) == b"units"
        assert store.names(LOG) == ["t"]


def test_a_listing_while_a_run_is_made_does_not_make_the_run_garbage(store: Store) -> None:
    writer = store.process(grace_ms=0).take_over()
    segment = writer.append(*[b"0123456789"] * 12)
    reply = writer.client.reply

    def look(operation: str, key: str) -> None:
        reply(operation, key)
        if operation == "PUT" and "/m." in key:
            segment.size()

    writer.client.reply = look  # type: ignore[method-assign]
    writer.tier.run_maintenance(sweep=False)
    store.clock.advance(1)
    writer.tier.run_maintenance(sweep=True)
    assert store.process().content() == b"0123456789" * 12
