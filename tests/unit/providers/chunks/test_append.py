"""What the answers to a conditional create mean, and what an append costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.chunks import GRACE_MS, LEASE_MS, LOG, Process, Store
from tieredstore.contracts.segment import FencedWrite, SegmentListing, UnknownWrite, Written
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.providers.chunks.chain import chunk_name
from tieredstore.providers.chunks.client import ClientLimits, ObjectInfo
from tieredstore.testing.object_faults import ObjectFault

BUSY, FAIL, LOSE = ObjectFault.BUSY, ObjectFault.FAIL, ObjectFault.LOSE_REPLY


@pytest.fixture
def store() -> Store:
    return Store()


class TestCost:
    def test_an_append_is_one_request(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"first")
        writer.operations()
        for turn in range(3):
            segment.write(5 + turn, [b"x"])
        assert writer.operations() == ["PUT"] * 3

    def test_a_segment_that_is_known_to_be_absent_is_not_listed(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.tier.open(LOG, SegmentListing(LOG, 0))
        assert segment.write(0, [b"abc"]) == Written(3)
        assert writer.operations() == ["PUT"]

    def test_a_segment_from_the_listing_is_not_listed_again(self, store: Store) -> None:
        store.process().append(b"abc")
        writer = store.process().take_over()
        (listing,) = writer.tier.list()
        writer.operations()
        assert writer.tier.open(LOG, listing).write(3, [b"def"]) == Written(6)
        assert writer.operations() == ["PUT"]

    def test_a_listing_says_of_how_many_objects_a_segment_is(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        segment.write(3, [b"def"])
        (listing,) = writer.tier.list()
        assert (listing.size_bytes, listing.objects) == (6, 2)

    def test_a_wrong_belief_that_a_segment_is_absent_is_told(self, store: Store) -> None:
        store.process().append(b"abc")
        writer = store.process("other").take_over()
        segment = writer.tier.open(LOG, SegmentListing(LOG, 0))
        result = segment.write(0, [b"xyz"])
        assert isinstance(result, FencedWrite)
        assert result.stale
        assert segment.write(3, [b"def"]) == Written(6)

    def test_o01_an_endpoint_that_is_silent_is_not_asked_four_times(self, store: Store) -> None:
        """The client's own attempts took their time-outs already."""
        writer = store.process(lease_ms=10**9).take_over()
        segment = writer.append(b"abc")
        writer.operations()
        reply = writer.client.reply

        def be_silent(operation: str, key: str) -> None:
            store.clock.advance(40_000)
            raise Unavailable(f"injected: no answer to {operation} {key} in time")

        writer.client.reply = be_silent  # type: ignore[method-assign]
        assert isinstance(segment.write(3, [b"def"]), UnknownWrite)
        assert writer.operations() == ["PUT", "HEAD"]
        writer.client.reply = reply  # type: ignore[method-assign]
        assert segment.write(3, [b"def"]) == Written(6)

    def test_the_epoch_is_looked_at_once_a_lease(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        store.clock.advance(LEASE_MS)
        writer.operations()
        segment.write(3, [b"d"])
        segment.write(4, [b"e"])
        assert writer.operations() == ["HEAD", "PUT", "PUT"]

    def test_w01_a_paused_writer_lists_before_its_next_append(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        store.clock.advance(2 * LEASE_MS + 1)
        writer.operations()
        segment.write(3, [b"d"])
        segment.write(4, [b"e"])
        assert writer.operations() == ["HEAD", "LIST", "PUT", "PUT"]

    def test_w01_a_writer_without_an_epoch_lists_after_a_lease(self, store: Store) -> None:
        writer = store.process()
        segment = writer.append(b"abc")
        writer.operations()
        segment.write(3, [b"d"])
        store.clock.advance(LEASE_MS + 1)
        segment.write(4, [b"e"])
        assert writer.operations() == ["PUT", "LIST", "PUT"]


class TestAnswers:
    def test_o03_a_lost_reply_of_our_own_write_is_written(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        writer.fail_next(LOSE)
        assert segment.write(3, [b"def"]) == Written(6)
        assert writer.content() == b"abcdef"
        assert store.names() == [chunk_name(0), chunk_name(3)]

    def test_o03_a_lost_reply_of_another_writer_is_fenced_even_with_equal_bytes(
        self, store: Store
    ) -> None:
        segment = store.process("ours").append(b"abc")
        store.process("theirs").append(b"def")
        result = segment.write(3, [b"def"])
        assert result == FencedWrite(6, "0:theirs")

    def test_o03_without_any_answer_a_last_look_decides(self, store: Store) -> None:
        writer = store.process()
        segment = writer.append(b"abc")
        writer.fail_next(LOSE, FAIL, FAIL, FAIL)
        assert segment.write(3, [b"def"]) == Written(6)

    def test_o03_an_outcome_that_stays_unknown_is_said(self, store: Store) -> None:
        writer = store.process()
        segment = writer.append(b"abc")
        writer.fail_next(LOSE, FAIL, FAIL, FAIL, FAIL)
        assert isinstance(segment.write(3, [b"def"]), UnknownWrite)
        assert segment.size() == 6
        writer.fail_next(FAIL, FAIL, FAIL, FAIL)
        assert isinstance(segment.write(6, [b"ghi"]), UnknownWrite)
        assert segment.size() == 6

    def test_o03_a_former_write_of_ours_is_for_the_caller_to_compare(self, store: Store) -> None:
        writer = store.process()
        segment = writer.append(b"abc")
        assert isinstance(segment.write(0, [b"abcdef"]), UnknownWrite)
        assert isinstance(segment.write(1, [b"b"]), UnknownWrite)
        assert isinstance(segment.write(0, [b"xyz"]), UnknownWrite)
        assert segment.write(0, [b"abc"]) == Written(3)

    def test_o04_a_conflict_is_tried_again(self, store: Store) -> None:
        writer = store.process()
        segment = writer.append(b"abc")
        writer.fail_next(BUSY, BUSY)
        assert segment.write(3, [b"def"]) == Written(6)

    def test_o04_endless_conflicts_end_and_nothing_is_written(self, store: Store) -> None:
        writer = store.process()
        segment = writer.append(b"abc")
        writer.fail_all(BUSY, ["PUT"])
        writer.operations()
        with pytest.raises(Unavailable):
            segment.write(3, [b"def"])
        assert writer.operations() == ["PUT"] * 4
        assert store.names() == [chunk_name(0)]

    def test_o07_a_failing_listing_is_not_an_empty_segment(self, store: Store) -> None:
        store.process().append(b"abc")
        reader = store.process()
        reader.fail_all(FAIL, ["LIST"])
        segment = reader.open()
        for call in (segment.size, lambda: segment.read(0, 1), reader.tier.list):
            with pytest.raises(Unavailable):
                call()
        with pytest.raises(Unavailable):
            segment.write(0, [b"x"])
        with pytest.raises(Unavailable):
            segment.seal()
        with pytest.raises(Unavailable):
            segment.delete()
        assert store.names() == [chunk_name(0)]


class TestStoresWithoutMetadata:
    """Whose object stands at a key is told by its bytes alone."""

    @pytest.fixture
    def writer(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> Process:
        writer = store.process(read_part_bytes=2)
        head = writer.client.head

        def without_metadata(key: str) -> ObjectInfo | None:
            found = head(key)
            return found and replace(found, metadata=None)

        monkeypatch.setattr(writer.client, "head", without_metadata)
        return writer

    def test_o03_a_lost_reply_of_our_own_write_is_written(
        self, store: Store, writer: Process
    ) -> None:
        segment = writer.append(b"abc")
        writer.fail_next(LOSE)
        assert segment.write(3, [b"de", b"f"]) == Written(6)
        assert store.names() == [chunk_name(0), chunk_name(3)]

    @pytest.mark.parametrize("theirs", [b"deX", b"Xef", b"XYZ", b"defg", b"de", b"X"])
    def test_o03_bytes_that_are_only_like_ours_are_not_ours(
        self, store: Store, writer: Process, theirs: bytes
    ) -> None:
        segment = writer.append(b"abc")
        store.process("theirs").append(theirs)
        assert segment.write(3, [b"def"]) == FencedWrite(3 + len(theirs), "unknown")
        assert writer.content() == b"abc" + theirs


class TestEpochs:
    def test_a_higher_epoch_fences(self, store: Store) -> None:
        zombie = store.process("zombie").take_over()
        segment = zombie.append(b"abc")
        winner = store.process("winner").take_over()
        winner.append(b"def")
        assert segment.write(3, [b"xyz"]) == FencedWrite(6, "2:winner")
        assert segment.write(3, [b"def"]) == FencedWrite(6, "2:winner")

    def test_w01_a_zombie_is_fenced_by_name_after_its_lease(self, store: Store) -> None:
        zombie = store.process("zombie").take_over()
        segment = zombie.append(b"abc")
        store.process("winner").take_over()
        store.clock.advance(LEASE_MS)
        for call in (lambda: segment.write(3, [b"def"]), segment.seal, segment.delete):
            with pytest.raises(Fenced, match="winner"):
                call()
        assert store.names() == [chunk_name(0)]

    def test_a_write_of_a_lower_epoch_after_the_take_over_is_stale(self, store: Store) -> None:
        zombie = store.process("zombie").take_over()
        late = zombie.append(b"abc")
        winner = store.process("winner").take_over()
        segment = winner.open()
        assert segment.size() == 3
        assert late.write(3, [b"late"]) == Written(7)
        result = segment.write(3, [b"def"])
        assert result == FencedWrite(7, "1:zombie", stale=True)
        assert bytes(segment.read(0, 7)) == b"abclate"

    def test_a_seal_of_a_lower_epoch_is_stale_and_one_of_a_higher_is_not(
        self, store: Store
    ) -> None:
        zombie = store.process("zombie").take_over()
        late = zombie.append(b"abc")
        winner = store.process("winner").take_over()
        segment = winner.open()
        segment.size()
        late.seal()
        assert segment.write(3, [b"def"]) == FencedWrite(3, "the seal", stale=True)
        other = winner.tier.open(LOG)
        other.seal()
        zombie_again = zombie.tier.open(LOG)
        assert zombie_again.write(3, [b"x"]) == FencedWrite(3, "the seal", stale=True)

    def test_w01_a_create_at_a_key_that_merging_made_free_again_is_no_write(
        self, store: Store
    ) -> None:
        """The zombie has no epoch, so that nothing but the listing tells it."""
        zombie = store.process("zombie", lease_ms=10**9)
        segment = zombie.append(b"abc")
        winner = store.process("winner", lease_ms=10**9).take_over()
        kept = winner.append(b"def", b"ghi", b"jkl")  # and the chain that it knows
        winner.tier.run_maintenance()
        store.clock.advance(GRACE_MS)
        assert winner.tier.run_maintenance().deleted_count == 4
        assert chunk_name(3) not in store.names()
        result = segment.write(3, [b"zombie"])
        assert isinstance(result, FencedWrite)
        assert result.size_bytes == 12
        assert chunk_name(3) in store.names()
        assert store.process().content() == b"abcdefghijkl"
        winner.tier.run_maintenance()
        store.clock.advance(GRACE_MS)
        winner.tier.run_maintenance()
        assert chunk_name(3) not in store.names()
        assert bytes(kept.read(0, 12)) == b"abcdefghijkl"

    @pytest.mark.parametrize("faults", [(LOSE,), (LOSE, FAIL, FAIL, FAIL)])
    def test_w01_nor_is_one_whose_reply_was_lost(
        self, store: Store, faults: tuple[ObjectFault, ...]
    ) -> None:
        zombie = store.process("zombie", lease_ms=10**9)
        segment = zombie.append(b"abc")
        winner = store.process("winner").take_over()
        winner.append(b"def", b"ghi", b"jkl")
        winner.tier.run_maintenance()
        store.clock.advance(GRACE_MS)
        winner.tier.run_maintenance()
        zombie.fail_next(*faults)
        result = segment.write(3, [b"zombie"])
        assert isinstance(result, (FencedWrite, UnknownWrite))
        assert winner.content() == b"abcdefghijkl"

    def test_a_look_that_fails_after_a_lost_reply_leaves_the_outcome_unknown(
        self, store: Store
    ) -> None:
        writer = store.process(lease_ms=0).take_over()
        segment = writer.append(b"abc")
        writer.fail_next(None, LOSE, *[FAIL] * 20)
        assert isinstance(segment.write(3, [b"def"]), UnknownWrite)
        writer.client.plan.clear()
        assert segment.size() == 6

    def test_what_is_written_is_stamped(self, store: Store) -> None:
        writer = store.process("me").take_over()
        segment = writer.append(b"abc")
        (key,) = [info.key for info in store.first.list("") if "TopicA" in info.key]
        head = store.first.head(key)
        assert head is not None
        assert head.metadata == {"w": "1:me", "crc": "352441c2"}
        segment.seal()


class TestRefusals:
    def test_o09_a_segment_with_a_hole_is_not_written(self, store: Store) -> None:
        writer = store.process()
        writer.append(b"abc", b"def", b"ghi")
        writer.client.delete([key for key in _keys(store) if key.endswith(chunk_name(3))])
        other = store.process().open()
        for call in (lambda: other.write(9, [b"x"]), other.seal):
            with pytest.raises(Corrupt, match=r"bytes 3 to 6 .*next valid offset is 6"):
                call()

    def test_o11_a_store_without_conditions_is_written_only_on_request(self, store: Store) -> None:
        store.limits = ClientLimits(conditional=False)
        writer = store.process()
        with pytest.raises(Invalid, match="fencing=none"):
            writer.open().write(0, [b"x"])
        with pytest.raises(Invalid, match="fencing=none"):
            writer.tier.acquire_writer("broker-a")
        assert writer.open().size() == 0
        allowed = store.process(fencing=False)
        allowed.append(b"abc", b"def")
        assert not allowed.tier.capabilities.conditional
        assert writer.content() == b"abcdef"


def _keys(store: Store) -> list[str]:
    return [info.key for info in store.first.list("")]
