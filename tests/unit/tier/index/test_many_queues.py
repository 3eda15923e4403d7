"""Tests of the index's writes in a tier with many queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.tier.index import Node, put
from tieredstore.tier.index import writer
from tieredstore.tier.index.watermarks import Watermarks, load_watermarks, save_watermarks


def count_marks(tmp_path: Path, queues: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of watermarks written while each queue puts one key."""
    written = 0

    def counted(directory: Path, watermarks: Watermarks) -> None:
        nonlocal written
        written += len(watermarks.indexed_until)
        save_watermarks(directory, watermarks)

    node = Node(tmp_path, slots=queues, max_items=2 * queues)
    service = node.open()
    with monkeypatch.context() as patched:
        patched.setattr(writer, "save_watermarks", counted)
        for queue_id in range(queues):
            service.mark_indexed(1, queue_id, 0)
        for queue_id in range(queues):
            put(service, ["key"], queue_id=queue_id)
        service.stop(force=False)
    assert len(load_watermarks(node.directory).indexed_until) == queues
    return written


def test_the_marks_that_are_written_grow_with_the_queues_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = count_marks(tmp_path / "few", 1_000, monkeypatch)
    many = count_marks(tmp_path / "many", 8_000, monkeypatch)
    assert few <= 12 * 1_000
    assert many <= 12 * 8_000
