"""A store, its state and its tier are combined in all ways. No start loses or duplicates a
message."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.parts import TOPIC, Part, Parts, Place
from tests.kit.tiered_local import TieredLocal
from tieredstore.errors import TieredStoreError

ALL = list(itertools.product(Part, Part, Part))
FEW = [cell for cell in ALL if sum(part is not Part.SAME for part in cell) < 2]
MUST_START = [
    (Part.SAME, Part.SAME, Part.SAME),
    (Part.NONE, Part.NONE, Part.NONE),
    (Part.SAME, Part.SAME, Part.NONE),
    (Part.SAME, Part.NONE, Part.SAME),
    (Part.NONE, Part.SAME, Part.SAME),
    (Part.JAVA, Part.SAME, Part.SAME),
    (Part.SAME, Part.JAVA, Part.SAME),
    (Part.JAVA, Part.JAVA, Part.SAME),
    (Part.JAVA, Part.JAVA, Part.NONE),
    (Part.OLDER, Part.OLDER, Part.OLDER),
    (Part.OTHER, Part.OTHER, Part.OTHER),
]


PLACES = {
    "files": Place(),
    "files, cleaned": Place(is_cleaned=True),
    "objects": Place(has_objects=True),
    "objects, cleaned": Place(has_objects=True, is_cleaned=True),
    "objects, cleaned, RocksDB": Place(
        has_objects=True, is_cleaned=True, keys=(("storeType", "defaultRocksDB"),)
    ),
}


@pytest.fixture(scope="module", params=["files", "objects, cleaned"])
def parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return Parts(tmp_path_factory.mktemp("parts"), PLACES[request.param])


def open_or_refuse(parts: Parts, folder: Path) -> tuple[TieredLocal | None, str]:
    try:
        return parts.open(folder), ""
    except TieredStoreError as error:
        return None, str(error)


def start(parts: Parts, folder: Path, cell: tuple[Part, Part, Part]) -> str:
    """Combine a store, a state and a tier, and start a broker. Check the result, and return a name
    for the outcome."""
    parts.place(folder, *cell)
    before = parts.hash_tier(folder)
    local, tier = parts.find_messages(cell[0], cell[2])
    held = {offset: {d[offset] for d in (local, tier) if offset in d} for offset in local | tier}
    world, refusal = open_or_refuse(parts, folder)
    if world is None:
        assert parts.hash_tier(folder) == before, refusal
        return f"refused: {refusal}"
    try:
        assert all(len(bodies) == 1 for bodies in held.values()), "two histories were mixed"
        expected = {offset: held[offset].pop() for offset in sorted(held)}
        assert list(expected) == list(range(len(expected))), "messages of the tier are gone"
        assert dict(world.read(TOPIC)) == expected
        [offset] = world.put(TOPIC, b"new")
        assert offset == len(expected), "an offset was given out again"
        world.upload()
        assert dict(world.read(TOPIC)) == {**expected, offset: b"new"}
        world.close()
        world.open(tieredStorageLevel="FORCE")
        assert dict(world.read(TOPIC)) == {**expected, offset: b"new"}
    finally:
        world.close()
    return "started"


@pytest.mark.parametrize("cell", FEW, ids=lambda cell: "-".join(part.value for part in cell))
def test_w33_a_part_that_does_not_fit_loses_and_doubles_nothing(
    parts: Parts, tmp_path: Path, cell: tuple[Part, Part, Part]
) -> None:
    start(parts, tmp_path / "broker", cell)


@pytest.mark.parametrize("cell", MUST_START, ids=lambda cell: "-".join(p.value for p in cell))
def test_w33_parts_that_fit_start(
    parts: Parts, tmp_path: Path, cell: tuple[Part, Part, Part]
) -> None:
    assert start(parts, tmp_path / "broker", cell) == "started"


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_w33_no_combination_of_parts_loses_or_doubles_a_message(place: str, tmp_path: Path) -> None:
    parts = Parts(tmp_path / "parts", PLACES[place])
    outcomes = Counter(
        start(parts, tmp_path / str(number), cell).partition(":")[0]
        for number, cell in enumerate(ALL)
    )
    assert outcomes["started"] >= len(MUST_START)
    assert sum(outcomes.values()) == len(ALL)
