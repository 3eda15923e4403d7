"""Tests of overlapping upload rounds of a queue, the later of which ends first."""

from __future__ import annotations

from pathlib import Path

from tests.kit.tiered_local import TieredLocal
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.tier.upload.outcome import DispatchStatus
from tieredstore.tier.upload.queue_upload import RoundOptions, UploadRound

KEY = QueueKey("T", 0)


def test_w77_a_round_that_another_one_overtook_reports_no_lost_messages(tmp_path: Path) -> None:
    """An upload round that ends after a later one does not report lost messages, although its view
    of the queue is outdated."""
    world = TieredLocal(tmp_path)
    world.put("T", b"0")
    world.upload()
    dispatcher = world.store.dispatcher
    before = world.local.dispatch_source.queue_range(KEY)
    file = world.store.flat_files.get(*KEY)
    assert before is not None
    assert file is not None
    world.put("T", b"1")
    world.upload()
    file.wait_for_lock()
    try:
        state, options = dispatcher._states[KEY], RoundOptions(force=True)
        outcome = dispatcher._upload.run(UploadRound(KEY, file, before, state, None, options))
    finally:
        file.lock.release()
    assert (outcome.error, outcome.status) == (None, DispatchStatus.IDLE)
    world.close()
