"""The first group object of a tier increases the tier's format version."""

from __future__ import annotations

import json
import zlib

import pytest

from tests.kit.chunks import Store
from tests.kit.gathered import REGROUP_MS, Gathering, list_groups, read_queue
from tieredstore.errors import Invalid
from tieredstore.providers.chunks.manifests import epoch_manifest


@pytest.fixture
def store() -> Store:
    return Store()


def find_formats(store: Store, folder: str) -> dict[str, int]:
    """Return the format version of each object in a folder, by the last part of its key."""
    found = {}
    for info in store.first.list(""):
        if f"/{folder}/" in info.key and info.size_bytes:
            packed = bytes(store.first.get_range(info.key, 0, info.size_bytes) or b"")
            content = packed if folder == ".writer" else zlib.decompress(packed)
            found[info.key.rpartition("/")[2].lstrip("0")] = json.loads(content)["format"]
    return found


def test_a_tier_with_groups_says_so_before_the_first_of_them(store: Store) -> None:
    writer = Gathering(store)
    writer.take("A", b"m", b"u")
    assert list_groups(store) == []
    assert find_formats(store, ".inherited") == {"1": 3}
    assert find_formats(store, ".writer") == {"1": 3}
    writer.epoch.confirm()
    writer.epoch.release()
    assert find_formats(store, ".inherited") == {"1": 3, "1.left": 3}


def test_a_tier_without_groups_says_what_it_said(store: Store) -> None:
    writer = Gathering(store, group_bytes=0)
    writer.write("A")
    writer.epoch.release()
    assert find_formats(store, ".inherited") == {"1": 2, "1.left": 2}
    assert find_formats(store, ".writer") == {"1": 2}


def test_the_lower_version_comes_back_with_the_last_group_gone(store: Store) -> None:
    Gathering(store).write("A")
    heir = Gathering(store, group_bytes=0)
    assert find_formats(store, ".inherited")["2"] == 3
    for _ in range(2):
        heir.keep(store, 2 * REGROUP_MS)
    assert list_groups(store) == []
    Gathering(store, group_bytes=0)
    assert find_formats(store, ".inherited")["3"] == 2
    assert read_queue(store, "A") == (b"A0123456789", b"01")


def test_who_does_not_know_groups_refuses_the_tier_in_one_line(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gathering(store).write("A")
    monkeypatch.setattr(epoch_manifest, "GROUPS_FORMAT_VERSION", 2)
    for use in (
        lambda: read_queue(store, "A"),
        lambda: Gathering(store, group_bytes=0),
    ):
        with pytest.raises(Invalid, match=r"the tier has format version 3, this program reads 2"):
            use()
