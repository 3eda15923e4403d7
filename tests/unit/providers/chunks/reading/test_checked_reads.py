"""Tests of the damage detected by reads with a CRC, and by checks of whole objects."""

from __future__ import annotations

import pytest

from tests.kit.chunks import LOG, Store
from tests.kit.gathered import Gathering, queue_ids
from tieredstore.contracts.block_checksums import BlockChecked, BlockCovering, BlocksDamaged
from tieredstore.contracts.segment import Companion, FileSegmentType, SegmentId
from tieredstore.errors import Corrupt
from tieredstore.providers.chunks.reading import reader as reading

UNITS = SegmentId(LOG.path, FileSegmentType.CONSUME_QUEUE, 0)


@pytest.fixture
def store() -> Store:
    return Store()


def damage(store: Store, text: bytes, at: int = 0) -> str:
    """Change one byte in the object that contains `text`. Return the first character of the
    object's name, which indicates its kind."""
    for info in store.first.list(""):
        content = bytearray(store.first.get_range(info.key, 0, info.size_bytes) or b"")
        if text in content:
            content[content.index(text) + at] ^= 1
            metadata = (store.first.head(info.key) or info).metadata or {}
            store.first.delete([info.key])
            store.first.put_if_absent(info.key, [content], metadata)
            return info.key.rpartition("/")[2][:1]
    raise AssertionError(text)


def write_groups(store: Store) -> Gathering:
    """Write queues A and B three times in groups, with messages of 11 bytes and units of 2
    bytes."""
    writer = Gathering(store)
    for text in (b"first_text", b"other_text", b"third_text"):
        writer.write("A", "B", text=text)
    return writer


class TestReads:
    def test_bytes_in_groups_are_compared(self, store: Store) -> None:
        write_groups(store)
        damage(store, b"Aother_text", 5)
        log, _ = queue_ids("A")
        segment = store.process().open(log)
        with pytest.raises(BlocksDamaged) as error:
            segment.read(0, 33)
        assert [(block.start, block.end) for block in error.value.blocks] == [(11, 22)]
        assert (error.value.id, error.value.offset) == (log, 0)
        assert bytes(error.value.found) == b"Afirst_textAothes_textAthird_text"
        assert bytes(segment.read(0, 11)) == b"Afirst_text"
        assert bytes(segment.read(22, 11)) == b"Athird_text"
        other = store.process().open(queue_ids("B")[0])
        assert bytes(other.read(11, 11)) == b"Bother_text"

    @pytest.mark.parametrize(("position", "length"), [(12, 2), (11, 1), (21, 1), (5, 8), (20, 9)])
    def test_some_of_few_bytes_are_compared_with_the_others(
        self, store: Store, position: int, length: int
    ) -> None:
        write_groups(store)
        damage(store, b"Aother_text", 5)
        segment = store.process().open(queue_ids("A")[0])
        with pytest.raises(BlocksDamaged, match="block at 11 "):
            segment.read(position, length)

    def test_some_of_many_bytes_cannot_be(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "CHECKED_BYTES", 10)
        write_groups(store)
        damage(store, b"Aother_text", 5)
        segment = store.process().open(queue_ids("A")[0])
        assert bytes(segment.read(14, 4)) == b"hes_"
        with pytest.raises(BlocksDamaged):
            segment.read(11, 11)

    def test_units_beside_damaged_ones_are_read(self, store: Store) -> None:
        writer = Gathering(store)
        for text in (b"un", b"ot", b"th"):
            writer.take("A", b"m", text)
            writer.epoch.confirm()
        damage(store, b"mot", 2)
        segment = store.process().open(queue_ids("A")[1])
        assert bytes(segment.read(0, 2)) == b"un"
        assert bytes(segment.read(4, 2)) == b"th"
        for place in ((2, 2), (3, 1), (0, 6)):
            with pytest.raises(BlocksDamaged, match="block at 2 "):
                segment.read(*place)
        assert segment.read_nowait(2, 2) is None

    def test_what_was_damaged_on_its_way_is_read_again(self, store: Store) -> None:
        write_groups(store)
        process = store.process()
        get = process.client.get_range
        changed: list[str] = []

        def change_once(key: str, position: int, length: int) -> bytes | None:
            found = get(key, position, length)
            if found and b"Aother_text" in found and not changed:
                changed.append(key)
                return found.replace(b"other", b"0ther")
            return found

        process.client.get_range = change_once  # type: ignore[method-assign]
        assert b"Aother_text" in bytes(process.open(queue_ids("A")[0]).read(0, 33))
        assert changed

    def test_a_read_takes_as_many_requests_as_without(self, store: Store) -> None:
        write_groups(store)
        process = store.process()
        segment = process.open(queue_ids("A")[0])
        segment.size()
        process.operations()
        segment.read(12, 3)
        assert process.operations() == ["GET"]


class TestWholeObjects:
    def test_every_kind_of_object_is_compared(self, store: Store) -> None:
        process = store.process().take_over()
        process.append(b"the first", b"the second", b"the third", b"the fourth")
        process.tier.run_maintenance()
        end = process.open().size()
        process.append(b"by itself")
        place = Companion(process.open(UNITS), 0, [b"units"])
        process.open().write_with(end + 9, [b"with units"], place)
        assert {name[:1] for name in store.names()} >= {"m", "c", "u"}
        tier = store.process().tier
        coverage = tier.check_blocks(LOG)
        assert (coverage.size_bytes, coverage.covered_bytes) == (end + 19, end + 19)
        assert coverage.damaged == ()
        for text, kind, block in (
            (b"first", "m", (0, end)),
            (b"by itself", "c", (end, end + 9)),
            (b"with units", "u", (end + 9, end + 19)),
        ):
            while damage(store, text) != kind:
                pass
            found = tier.check_blocks(LOG).damaged
            assert block in [(one.start, one.end) for one in found]
        assert tier.check_blocks(UNITS).damaged != ()

    def test_bytes_in_groups_are_compared_however_many(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reading, "CHECKED_BYTES", 10)
        write_groups(store)
        damage(store, b"Aother_text", 5)
        tier = store.process(read_part_bytes=4).tier
        for topic, expected in (("A", [(11, 22)]), ("B", [])):
            coverage = tier.check_blocks(queue_ids(topic)[0])
            assert [(block.start, block.end) for block in coverage.damaged] == expected
            assert (coverage.size_bytes, coverage.covered_bytes) == (33, 33)

    def test_what_the_server_put_together_has_no_crc(self, store: Store) -> None:
        process = store.process().take_over()
        process.append(b"x" * 150, b"y" * 150).seal()
        process.tier.run_maintenance()
        assert "s" in store.names()
        coverage = store.process().tier.check_blocks(LOG)
        assert (coverage.size_bytes, coverage.covered_bytes) == (300, 0)

    def test_a_segment_that_is_not_there_is_told(self, store: Store) -> None:
        with pytest.raises(Corrupt, match="not there"):
            store.process().tier.check_blocks(LOG)

    def test_a_provider_checks_and_has_nothing_to_cover(self, store: Store) -> None:
        tier = store.process().tier
        assert isinstance(tier, BlockChecked)
        assert not isinstance(tier, BlockCovering)
