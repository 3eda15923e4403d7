"""Merging, sealing, collecting garbage and deleting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from tests.kit.chunks import GRACE_MS, LEASE_MS, LOG, UNITS, Store
from tieredstore.contracts.segment import Written
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.providers.chunks.chain import Chain, chunk_name, make_merged_name
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.testing.object_faults import ObjectFault
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
        assert writer.operations() == ["LIST", "PUT"]
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
        assert store.names() == [chunk_name(0), chunk_name(3)]
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
    def test_nothing_is_left(self, store: Store) -> None:
        writer = store.process().take_over()
        for seals in (False, True):
            segment = writer.append(b"abc", b"def", b"ghi", b"jkl")
            if seals:
                segment.seal()
            writer.tier.run_maintenance()
            segment.delete()
            assert store.names() == []
            assert list(writer.tier.list()) == []

    def test_an_absent_segment_is_deleted_by_a_look(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.open().delete()
        assert set(writer.operations()) == {"LIST"}

    def test_a_deletion_that_fails_leaves_a_segment_and_is_made_again(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def")
        writer.fail_next(None, None, None, None, FAIL)  # LIST, LIST, PUT, LIST, DELETE
        with pytest.raises(Unavailable):
            segment.delete()
        assert store.names() == [chunk_name(0), chunk_name(3), chunk_name(6)]
        assert isinstance(next(iter(writer.tier.list())).token, Chain)
        segment.delete()
        assert store.names() == []

    def test_data_goes_from_the_end_on_and_the_marker_alone(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc", b"def")
        deleted: list[list[str]] = []
        delete = writer.client.delete

        def record(keys: Sequence[str], etags: Sequence[str]) -> None:
            deleted.append([key.rpartition("/")[2] for key in keys])
            delete(keys, etags)

        monkeypatch.setattr(writer.client, "delete", record)
        segment.delete()
        assert deleted == [[chunk_name(3), chunk_name(0)], [chunk_name(6)]]

    def test_w03_a_write_that_comes_meanwhile_is_not_left(self, store: Store) -> None:
        late = store.process("late", lease_ms=10**9).append(b"abc", b"def")
        writer = store.process("ours").take_over()
        request = writer.client.request

        def write_late(operation: str, key: str) -> None:
            request(operation, key)
            if operation == "DELETE":
                writer.client.request = request  # type: ignore[method-assign]
                late.write(6, [b"late"])

        writer.client.request = write_late  # type: ignore[method-assign]
        writer.open().delete()
        assert store.names() == []

    def test_w03_a_topic_made_again_by_the_next_writer_is_not_deleted(self, store: Store) -> None:
        zombie = store.process("zombie").take_over()
        segment = zombie.append(b"abc", b"def")
        winner = store.process("winner")
        reply = zombie.client.reply

        def take_over(operation: str, key: str) -> None:
            reply(operation, key)
            if operation == "LIST" and zombie.operations().count("PUT"):
                zombie.client.reply = reply  # type: ignore[method-assign]
                store.clock.advance(10 * LEASE_MS)
                winner.take_over()
                winner.open().delete()
                winner.append(b"abc", b"def", b"new incarnation")

        zombie.client.reply = take_over  # type: ignore[method-assign]
        zombie.operations()
        with pytest.raises(Fenced, match="winner"):
            segment.delete()
        assert store.process().content() == b"abcdefnew incarnation"

    def test_w03_a_deletion_on_its_way_meets_only_what_it_was_for(self, store: Store) -> None:
        zombie = store.process("zombie").take_over()
        segment = zombie.append(b"abc", b"def")
        winner = store.process("winner")
        request = zombie.client.request

        def take_over(operation: str, key: str) -> None:
            request(operation, key)
            if operation == "DELETE":
                zombie.client.request = request  # type: ignore[method-assign]
                store.clock.advance(10 * LEASE_MS)
                winner.take_over()
                winner.open().delete()
                winner.append(b"abc", b"new incarnation")

        zombie.client.request = take_over  # type: ignore[method-assign]
        with pytest.raises(Fenced, match="winner"):
            segment.delete()
        assert store.process().content() == b"abcnew incarnation"

    def test_w03_within_a_lease_neither_do_the_deletions_after_it(self, store: Store) -> None:
        zombie = store.process("zombie").take_over()
        segment = zombie.append(b"abc", b"def")
        winner = store.process("winner")
        request = zombie.client.request

        def take_over(operation: str, key: str) -> None:
            request(operation, key)
            if operation == "DELETE":
                zombie.client.request = request  # type: ignore[method-assign]
                winner.take_over()
                winner.open().delete()
                winner.append(b"abc", b"new incarnation")

        zombie.client.request = take_over  # type: ignore[method-assign]
        with pytest.raises(Fenced, match="winner"):
            segment.delete()
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
        assert store.names() == []

    def test_a_segment_with_a_hole_can_be_deleted(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi")
        store.first.delete(
            [info.key for info in store.first.list("") if info.key.endswith(chunk_name(3))]
        )
        store.process().take_over().open().delete()
        assert store.names() == []

    def test_other_segments_stay(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"units", id=UNITS)
        writer.append(b"abc").delete()
        assert writer.content(UNITS) == b"units"
        assert store.names(LOG) == []
