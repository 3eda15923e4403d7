"""Tests of appends: handling of replies to conditional creates, and cost."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.kit.chunks import LOG, UNITS, Process, Store
from tests.kit.object_faults import ObjectFault
from tieredstore.contracts.objects import ClientLimits, ObjectInfo
from tieredstore.contracts.segment import Buffer, FencedWrite, SegmentListing, UnknownWrite, Written
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.providers.chunks.manifests.names import Generation, chunk_name

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
        assert list(writer.tier.list("broker-a")) == []
        writer.operations()
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

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_a_wrong_belief_does_not_end_what_this_epoch_has_sealed(
        self, store: Store, is_whole: bool
    ) -> None:
        """A write never replaces a sealed segment, even if its process believes that the segment
        does not exist."""
        writer = store.process(grace_ms=0).take_over()
        writer.append(b"abc", b"def").seal()
        if is_whole:
            writer.tier.run_maintenance()
        maintenance = writer.tier._maintenance
        maintenance._ready.clear()
        writer.tier._views._own["broker-a"].known = None  # what its end is to leave
        gc.collect()
        assert not writer.tier._states._states  # no state is kept of it
        segment = writer.tier.open(LOG, SegmentListing(LOG, 0))
        assert not isinstance(segment.write(0, [b"zz"]), Written)
        assert store.process().content() == b"abcdef"

    def test_a_wrong_belief_that_a_segment_is_absent_is_found_out(self, store: Store) -> None:
        store.process().append(b"abc")
        writer = store.process("other").take_over()
        segment = writer.tier.open(LOG, SegmentListing(LOG, 0))
        result = segment.write(0, [b"xyz"])
        assert isinstance(result, FencedWrite)
        assert result.stale
        assert segment.write(3, [b"def"]) == Written(6)
        del segment
        again = writer.tier.open(LOG, SegmentListing(LOG, 0))
        assert again.write(6, [b"ghi"]) == Written(9)
        assert writer.content() == b"abcdefghi"

    def test_o01_an_endpoint_that_is_silent_is_not_asked_four_times(self, store: Store) -> None:
        """An append does not retry if the endpoint did not reply. The client has already retried
        for its whole time-out."""
        writer = store.process().take_over()
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

    def test_the_first_write_says_what_is_inherited(self, store: Store) -> None:
        store.process().append(b"abc")
        writer = store.process().take_over()
        segment = writer.open()
        assert segment.write(3, [b"d"]) == Written(4)
        listed = ["LIST"] * 3  # the epoch manifest, all objects, and the epoch manifest again
        assert writer.operations() == [*listed, "PUT", "LIST", "HEAD", "PUT"]
        segment.write(4, [b"e"])
        assert writer.operations() == ["PUT"]

    def test_a_listing_of_the_broker_does_so_too(self, store: Store) -> None:
        store.process().append(b"abc")
        writer = store.process().take_over()
        (listing,) = writer.tier.list("broker-a")
        assert writer.operations() == ["LIST"] * 3 + ["PUT"]
        assert writer.tier.open(LOG, listing).write(3, [b"d"]) == Written(4)
        assert writer.operations() == ["PUT"]

    def test_a_pause_costs_nothing(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        writer.operations()
        store.clock.advance(86_400_000)
        segment.write(3, [b"d"])
        assert writer.operations() == ["PUT"]


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
    """Without object metadata, only the bytes identify an object's writer."""

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


class TestLives:
    """Each epoch writes to its own folders and uses its own epoch manifest."""

    def test_a_zombie_disturbs_nobody(self, store: Store) -> None:
        zombie = store.process("zombie").take_over()
        late = zombie.append(b"abc")
        winner = store.process("winner").take_over()
        segment = winner.append(b"def")
        assert late.write(3, [b"late"]) == Written(7)
        late.seal()
        assert segment.write(6, [b"ghi"]) == Written(9)
        for process in (winner, store.process()):
            assert process.content() == b"abcdefghi"

    def test_w01_a_zombie_learns_it_from_its_look(self, store: Store) -> None:
        zombie = store.process("zombie")
        epoch = zombie.tier.acquire_writer("broker-a")
        segment = zombie.append(b"abc")
        store.process("winner").take_over()
        with pytest.raises(Fenced, match="winner"):
            epoch.confirm()
        for call in (lambda: segment.write(3, [b"def"]), segment.seal, segment.delete):
            with pytest.raises(Fenced, match="winner"):
                call()
        assert store.names() == [chunk_name(0)]

    def test_a_queue_goes_on_in_a_new_life_after_a_take_over(self, store: Store) -> None:
        for number in range(1, 4):
            store.process().take_over().append(b"abc", b"def")
            assert {generation.epoch for generation in store.generations()} == set(
                range(1, number + 1)
            )
        assert len(store.generations()) == 3
        assert store.process().content() == b"abcdef" * 3

    def test_a_request_without_an_answer_leaves_its_life(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        writer.fail_next(FAIL, FAIL, FAIL, FAIL)
        assert isinstance(segment.write(3, [b"def"]), UnknownWrite)
        assert segment.write(3, [b"d"]) == Written(4)
        [first, second] = sorted(store.generations())
        late = f"{store.folder()}/{first.name(chunk_name(3))}"
        assert store.first.put_if_absent(late, [b"def"], {})
        assert segment.write(4, [b"e"]) == Written(5)
        assert first < second
        for process in (writer, store.process(), store.process().take_over()):
            assert process.content() == b"abcde"

    def test_a_first_write_that_comes_late_cuts_nothing(self, store: Store) -> None:
        """A former writer's late first write never removes bytes of the current writer. It counts
        only if a later epoch manifest contains it."""
        first = store.process("first").take_over()
        segment = first.append(b"abcd")
        second = store.process("second").take_over()
        late = second.open()
        assert late.size() == 4
        put = second.client.put_if_absent
        held: list[Callable[[], object]] = []

        def hold(key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]) -> bool:
            if "/c." not in key:
                return put(key, buffers, metadata)
            held.append(lambda: put(key, [b"xy"], metadata))
            raise Unavailable("injected: no answer")

        second.client.put_if_absent = hold  # type: ignore[method-assign]
        assert isinstance(late.write(4, [b"xy"]), UnknownWrite)
        assert segment.write(4, [b"efghi"]) == Written(9)
        third = store.process("third").take_over()
        kept = third.append(b"jk")
        for arrive in held:
            arrive()
        assert kept.write(kept.size(), [b"lm"])
        assert store.process().content() == third.content() == b"abcdjklm"

    def test_who_has_no_epoch_helps_the_one_that_is_held(self, store: Store) -> None:
        """A process without an epoch can write while another process holds one, like the workers of
        a backfill."""
        owner = store.process().take_over()
        owner.append(b"abc")
        helper = store.process()
        helper.append(b"units", id=UNITS)
        assert store.generations(UNITS) == {Generation(1, 0)}
        for process in (owner, store.process(), store.process().take_over()):
            assert process.content(UNITS) == b"units"
        with pytest.raises(Fenced, match="epoch 1 has written here"):
            helper.open(UNITS).delete()

    def test_a_helper_is_fenced_with_the_epoch_that_it_helps(self, store: Store) -> None:
        store.process().take_over().append(b"abc")
        helper = store.process()
        segment = helper.append(b"units", id=UNITS)
        store.process("winner").take_over().append(b"def")
        assert segment.size() == 5  # by which it learns
        for call in (lambda: segment.write(5, [b"x"]), segment.seal):
            with pytest.raises(Fenced, match="epoch 1 was taken over: epoch 2"):
                call()

    def test_a_helper_makes_no_hole_in_what_the_owner_writes(self, store: Store) -> None:
        owner = store.process().take_over()
        segment = owner.append(b"abc")
        store.process().append(b"1234567", b"89")
        assert segment.write(3, [b"def"]) == Written(6)
        assert segment.write(6, [b"g"]) == Written(7)
        for process in (owner, store.process(), store.process().take_over()):
            assert process.content() == b"abcdefg"

    def test_a_tier_of_format_1_is_refused(self, store: Store) -> None:
        key = f"{store.folder()}/{chunk_name(0)}"
        store.first.put_if_absent(key, [b"abc"], {})
        process = store.process()
        for call in (process.open().size, lambda: list(process.tier.list())):
            with pytest.raises(Invalid, match="format version 1, this program reads 2"):
                call()

    def test_a_look_that_fails_after_a_lost_reply_leaves_the_outcome_unknown(
        self, store: Store
    ) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"abc")
        writer.fail_next(LOSE, *[FAIL] * 20)
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
