"""Another process truncates, deletes or replaces consume queue files under a running store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Corrupt
from tieredstore.service_thread import ServiceState


@pytest.mark.parametrize("how", ["cut", "deleted", "replaced"])
def test_a_queue_file_that_is_written_is_looked_at_by_the_next_flush(
    tmp_path: Path, how: str
) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(number=number) for number in range(3)])
        store.flush()
        path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
        if how == "cut":
            os.truncate(path, 20)
        else:
            path.unlink()
        if how == "replaced":
            path.write_bytes(bytes(200))
        put_all(store, [plain(number=3)])
        with pytest.raises(Corrupt, match=f"{path.name}: expected a file of 200 bytes"):
            store.flush()
        [health] = [it for it in store.health() if it.name == "store"]
        assert health.state is ServiceState.FAILED
        assert path.name in str(health.error)
        refused = store.put_message(plain(number=4))
        assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
        with pytest.raises(Corrupt):
            store.shutdown()
    assert (root / "abort").exists()
