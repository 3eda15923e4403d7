"""Each kind of damage is planted at random locations of real tiers, and is found there."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.memory_chunks import chunk_provider
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import TASK_BYTES, verify
from tieredstore.testing.corruption.damager import KINDS, Damager, Planted, StoredAt, TierImage

CLUSTER, BROKER = "LabCluster", "labBroker"
FINDING_OF = {
    "record-size": "record-size",
    "magic": "record-magic",
    "body-crc": "record-body-crc",
    "queue-id": "record-queue-id",
    "queue-offset": "record-queue-offset",
    "physical-offset": "record-physical-offset",
    "body-bit": "record-body-crc",
    "tags-bit": "unit-tags-code",
    "key-bit": "index-item",
    "topic": "record-topic",
    "body-length": "record-structure",
    "record-overwritten": "record-queue-offset",
    "log-truncated": "record-missing",
    "log-missing": "segment-missing",
    "zeroed-page": "record-magic",
    "log-grown": "segment-overlap",
    "unit-elsewhere": "record-size or record-queue-offset",
    "units-swapped": "record-queue-offset",
    "unit-size": "record-size",
    "unit-tags": "unit-tags-code",
    "units-torn": "unit-torn",
    "units-missing": "segment-missing",
    "index-count": "index-header",
    "index-used": "index-header",
    "slot-length": "index-slot",
    "slot-position": "index-slot",
    "item-place": "index-item",
    "item-hash": "index-item",
    "item-time": "index-item",
    "item-missing": "index-header",
    "metadata-size": "segment-truncated",
    "metadata-time": "metadata-time",
    "metadata-lacks": "segment-unknown",
    "metadata-invents": "segment-missing",
    "topic-id": "metadata-topic-id",
    "stray-segment": "segment-unknown",
}
"""For each kind of damage, the kind of finding that reports it."""
WHOLE = [
    kind
    for kind in ("log-grown", *KINDS)
    if kind.startswith(("log-", "zeroed", "units-torn", "units-missing", "metadata-", "stray"))
]
"""Kinds of damage that affect a whole queue. They are planted first."""
TOGETHER = [
    *dict.fromkeys(WHOLE),
    *(kind for kind in KINDS if kind not in WHOLE and kind != "topic-id"),
]
"""Kinds of damage that are planted together. A topic id that two topics have is planted alone,
because the index items of both topics are then ambiguous."""
SEEDS = (1, 2)


@pytest.fixture(scope="module")
def images(public_a: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TierImage]:
    """Two tiers of the public-a fixture: the tier that Java wrote, and a tier that this project
    offloaded from the fixture's store."""
    root = tmp_path_factory.mktemp("ours")
    ran = tieredstore(
        *("offload", public_a / "store", "--upload-index", "--tier", f"file://{root / 'tier'}"),
        *("--state", root / "state", "--config", public_a / "broker.conf", "--quiet"),
    )
    assert ran.code == 0, ran.err
    return {
        "java": image_of(public_a / "tiered", public_a / "store"),
        "ours": image_of(root / "tier", root / "state"),
    }


def image_of(tier: Path, state: Path) -> TierImage:
    provider = PosixProvider(tier, CLUSTER)
    path = state / "config" / "tieredStoreMetadata.json"
    metadata = DefaultMetadataStore(path, BROKER, read_only=True)
    try:
        return TierImage.read(provider, metadata)
    finally:
        provider.close()
        metadata.close()


def findings_of(
    image: TierImage, provider: SegmentProvider, state: Path, task_bytes: int = TASK_BYTES
) -> list[Finding]:
    """Return the findings of `verify` for an image. First writes the image through `provider`."""
    image.write(provider, state)
    metadata = DefaultMetadataStore(
        state / "config" / "tieredStoreMetadata.json", BROKER, read_only=True
    )
    found: list[Finding] = []
    try:
        verify(provider, load_catalogue(provider, metadata), found.append, task_bytes=task_bytes)
    finally:
        metadata.close()
    return found


def is_told(planted: Planted, found: Finding) -> bool:
    return (planted.finding, planted.segment, planted.position, planted.queue_offset) == (
        found.kind,
        found.segment,
        found.position,
        found.queue_offset,
    )


def follows(planted: Planted, found: Finding, owners: Callable[[Finding], StoredAt | None]) -> bool:
    """Return whether a finding that is not the expected one is another consequence of the planted
    damage."""
    if found.kind not in planted.also:
        return False
    if found.kind == "index-item" and found.segment is not None:
        owner = owners(found)
        return (
            planted.segment is None
            or (
                owner is not None
                and owner.path == planted.path
                and owner.queue_offset in planted.offsets
            )
            or found.segment == planted.segment
        )
    if found.segment is None or found.segment.path != planted.path:
        return False
    return found.queue_offset is None or found.queue_offset in planted.offsets


def check(planted: list[Planted], found: list[Finding], items: Damager) -> None:
    """Check that every damage is reported at its location, and that intact files have no
    finding."""

    def owner(finding: Finding) -> StoredAt | None:
        return next(
            (
                item.message
                for item in items.items
                if item.segment == finding.segment
                and 0 <= (finding.position or 0) - item.position < 28
            ),
            None,
        )

    damage = [one for one in found if one.severity is Severity.DAMAGE]
    for piece in planted:
        assert any(is_told(piece, one) for one in damage), (piece, damage)
    wrong = [
        one
        for one in damage
        if not any(is_told(piece, one) or follows(piece, one, owner) for piece in planted)
    ]
    assert wrong == [], planted
    paths = {piece.path for piece in planted}
    for one in found:
        if one.severity is Severity.NOTE and one.kind != "index-item-dangling":
            assert one.segment is not None
            assert one.segment.path in paths, (one, planted)


def plant_together(damager: Damager) -> list[Planted]:
    """Plant all kinds of damage for which the tier has a suitable location."""
    planted = []
    for kind in TOGETHER:
        with contextlib.suppress(Invalid):
            planted.append(damager.plant(kind))
    assert len(planted) > 25
    return planted


def test_the_kinds_are_these() -> None:
    assert list(FINDING_OF) == list(KINDS)
    assert len(KINDS) >= 20


@pytest.mark.parametrize("tier", ["java", "ours"])
def test_the_tiers_are_sound_before(
    images: dict[str, TierImage], tmp_path: Path, tier: str
) -> None:
    provider = PosixProvider(tmp_path / "tier", CLUSTER, fsync=False)
    found = findings_of(images[tier], provider, tmp_path)
    assert {one.kind for one in found} <= {"index-item-dangling"}


@pytest.mark.parametrize("kind", FINDING_OF)
@pytest.mark.parametrize("tier", ["java", "ours"])
def test_each_kind_alone_is_told_at_its_place_and_nothing_else(
    images: dict[str, TierImage], tmp_path: Path, tier: str, kind: str
) -> None:
    image = images[tier].copy()
    damager = Damager(image, len(tier + kind))
    planted = damager.plant(kind)
    assert planted.finding in FINDING_OF[kind]
    provider = PosixProvider(tmp_path / "tier", CLUSTER, fsync=False)
    found = findings_of(image, provider, tmp_path)
    provider.close()
    check([planted], found, damager)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tier", ["java", "ours"])
def test_all_kinds_at_once_are_told_and_the_same_however_the_tier_is_cut(
    images: dict[str, TierImage], tmp_path: Path, tier: str, seed: int
) -> None:
    image = images[tier].copy()
    damager = Damager(image, seed)
    planted = plant_together(damager)
    provider = PosixProvider(tmp_path / "tier", CLUSTER, fsync=False)
    whole = findings_of(image, provider, tmp_path)
    check(planted, whole, damager)
    for task_bytes in (997, 50_000):
        assert findings_of(image, provider, tmp_path, task_bytes=task_bytes) == whole


@pytest.mark.parametrize("kind", ["body-bit", "magic", "unit-tags", "item-place", "log-missing"])
def test_damage_on_an_object_store_is_told_at_its_place(
    images: dict[str, TierImage], tmp_path: Path, kind: str
) -> None:
    image = images["java"].copy()
    damager = Damager(image, 5)
    planted = damager.plant(kind)
    provider = chunk_provider()
    found = findings_of(image, provider, tmp_path)
    provider.close()
    check([planted], found, damager)


def test_the_same_seed_plants_the_same(images: dict[str, TierImage]) -> None:
    first, second, other = (images["java"].copy() for _ in range(3))
    assert plant_together(Damager(first, 9)) == plant_together(Damager(second, 9))
    assert first.segments == second.segments
    places = Counter(Damager(other.copy(), seed).plant("body-bit") for seed in range(20))
    assert len(places) > 10


def test_the_image_is_a_tier_that_is_the_same_again(
    images: dict[str, TierImage], tmp_path: Path
) -> None:
    image = images["java"]
    provider = PosixProvider(tmp_path / "tier", CLUSTER, fsync=False)
    image.write(provider, tmp_path)
    again = image_of(tmp_path / "tier", tmp_path)
    assert again.segments == image.segments
    assert again.entries == image.entries
    assert sum(one.type is FileSegmentType.INDEX for one in again.segments) == 8
