"""Tests of uploading index files to an append-only backend. Existing bytes are compared and never
sent again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.tier.index import Node, all_found, fill, find, offsets_of, put
from tests.kit.tier.wrappers import AppendOnlyProvider
from tieredstore.contracts.segment import Buffer, SegmentId, WriteResult
from tieredstore.errors import Unavailable
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.tier.index import segments


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(segments, "PIECE_BYTES", 200)
    return Node(tmp_path, provider=AppendOnlyProvider())


@pytest.mark.parametrize("failing", [1, 2, 4])
def test_o03_a_lost_reply_is_no_second_write(node: Node, failing: int) -> None:
    faults = Faults({failing: Fault.LOSE_REPLY})
    node.provider = FaultyProvider(node.provider, faults)
    service = node.open()
    keys = fill(service, 1)
    service.seal_and_upload()
    assert [call.split()[0] for call in faults.calls] == ["write"] * 4 + ["seal"]
    assert all_found(service, keys)


def test_an_upload_goes_on_after_a_restart(node: Node) -> None:
    plain = node.provider
    node.provider = FaultyProvider(plain, Faults({3: Fault.FAIL}))
    service = node.open()
    keys = fill(service, 1)
    with pytest.raises(Unavailable):
        service.seal_and_upload()
    faults = Faults()
    node.provider = FaultyProvider(plain, faults)
    service = node.open()
    service.seal_and_upload()
    assert [call.split()[0] for call in faults.calls] == ["write", "write", "seal"]
    assert all_found(service, keys)


def test_a_part_of_another_state_of_the_file_is_removed(node: Node) -> None:
    """An upload removes the incomplete segment of an interrupted upload if the index file has
    changed since."""
    plain = node.provider
    node.provider = FaultyProvider(plain, Faults({3: Fault.FAIL}))
    service = node.open()
    put(service, [f"key-{number}" for number in range(15)])
    with pytest.raises(Unavailable):
        service.seal_and_upload(force=True)
    node.provider = plain
    service = node.open()
    put(service, ["key-15"], first_offset=1500)
    service.seal_and_upload(force=True)
    assert node.local_names() == []
    for number in range(16):
        assert offsets_of(find(service, f"key-{number}")) == [number * 100]


@pytest.mark.parametrize("same", [True, False])
def test_w02_pieces_of_a_writer_that_lost_the_right_are_ours_or_go(node: Node, same: bool) -> None:
    service = node.open()
    keys = fill(service, 1)
    plain: Any = node.provider.open
    met: list[bool] = []

    def with_the_other(id: SegmentId, listing: Any = None) -> Any:
        segment = plain(id, listing)
        write = segment.write

        def racing(position: int, buffers: Sequence[Buffer]) -> WriteResult:
            if position == 200 and not met:
                met.append(True)
                write(position, buffers if same else [b"x" * 200])
            result: WriteResult = write(position, buffers)
            return result

        segment.stale = True
        segment.write = racing
        return segment

    node.provider.open = with_the_other  # type: ignore[method-assign]
    service = node.open()
    if not same:
        with pytest.raises(Unavailable, match="another, which was fenced"):
            service.seal_and_upload()
    service.seal_and_upload()
    assert node.local_names() == []
    assert all_found(service, keys)
