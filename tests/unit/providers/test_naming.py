"""Tests of segment names and queue paths in a tier."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Invalid
from tieredstore.providers import naming


def test_java_worked_examples() -> None:
    assert naming.cluster_directory_name("DefaultCluster") == "212d6b50_DefaultCluster"
    assert naming.hash8("TieredStorageDailyTest") == "161c08ff"
    for offset, name in {
        0: "cfcd208400000000000000000000",
        270: "3905972400000000000000000270",
        2000: "08f90c1a00000000000000002000",
        1073741824: "952eb02900000000001073741824",
        4294937144: "b10da56800000000004294937144",
    }.items():
        assert naming.segment_file_name(offset) == name
        assert naming.parse_segment_file_name(name) == offset


@given(st.integers(0, 2**63 - 1))
def test_segment_names_are_read_back(offset: int) -> None:
    assert naming.parse_segment_file_name(naming.segment_file_name(offset)) == offset


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cfcd20840000000000000000000",  # one digit short
        "cfcd2084000000000000000000000",
        "CFCD208400000000000000000000",
        "cfcd208400000000000000000001",  # the hash is another offset's
        "cfcd20840000000000000000000x",
        "cfcd2084٠0000000000000000000",
        "00000000" + "9" * 20,
        ".writer",
    ],
)
def test_foreign_names_are_not_segments(name: str) -> None:
    assert naming.parse_segment_file_name(name) is None


_names = st.text(min_size=1, max_size=20)


@given(_names, _names, st.integers(0, 70_000), st.integers(0, 2**63 - 1))
def test_i02_paths_are_refused_or_injective(
    broker: str, topic: str, queue_id: int, base: int
) -> None:
    segment = SegmentId(f"{broker}/{topic}/{queue_id}", FileSegmentType.INDEX, base)
    try:
        path = naming.relative_segment_path(segment)
    except Invalid:
        return
    parts = path.split("/")
    assert parts[:4] == [broker, topic, str(queue_id), "INDEX"]
    assert naming.parse_segment_file_name(parts[4]) == base
    assert not any(part in {"", ".", ".."} for part in parts)


@pytest.mark.parametrize("cluster", ["", "a/b", "..", "a\x00", "x" * 247])
def test_i02_clusters_that_are_no_folder_are_refused(cluster: str) -> None:
    with pytest.raises(Invalid):
        naming.cluster_directory_name(cluster)
