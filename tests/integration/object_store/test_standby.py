"""A standby takes the epoch from a writer that is still running."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

from tests.kit.command_line import one_line, tieredstore
from tests.kit.local_stores import put_all, running, small_config
from tests.kit.object_store.servers import ObjectStore
from tests.kit.waiting import wait_for
from tieredstore import jobs
from tieredstore.errors import Fenced
from tieredstore.jobs.offloading.standby import ORDER_FILE
from tieredstore.jobs.stopping import StopSignal
from tieredstore.message.encoding import Message

CONF = """brokerName=b
brokerClusterName=c
tieredStoreIndexFileMaxHashSlotNum=40
tieredStoreIndexFileMaxIndexNum=100
tieredStoreDispatchInterval=200
tieredStoreGroupCommitTimeout=0
tieredStoreAdaptiveCommitMaxInterval=0
"""


class Follower:
    """An `offload --follow` that runs in a separate thread."""

    def __init__(self, url: str, store: Path, state: Path, conf: Path, **how: Any) -> None:
        self.stop = StopSignal()
        self.error: Exception | None = None
        self.report: Any = None

        def run() -> None:
            try:
                self.report = jobs.offload(
                    url, store, state=state, config=conf, follow=True, stop=self.stop, **how
                )
            except Exception as error:
                self.error = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join()


def fill(root: Path, first: int, count: int) -> None:
    messages = [Message.create("T", b"body %d" % n) for n in range(first, first + count)]
    with running(small_config(root)) as store:
        put_all(store, messages)


def test_a_standby_fences_the_writer_before_it_and_is_fenced_by_nobody_who_comes_back(
    versitygw: ObjectStore, tmp_path: Path
) -> None:
    url, conf = versitygw.url("tier"), tmp_path / "broker.conf"
    conf.write_text(CONF)

    def bodies() -> list[str]:
        where = ["--tier", url, "--topic", "T", "--output", "ndjson"]
        ran = tieredstore("cat", *where)
        return [row["body"] for row in ran.rows] if ran.code == 0 else []

    master, replica = tmp_path / "master", tmp_path / "replica"
    fill(master, 0, 10)
    shutil.copytree(master, replica)
    fill(replica, 10, 5)
    before = Follower(url, master, tmp_path / "state", conf)
    standby = Follower(url, replica, tmp_path / "standby", conf, standby=True)
    try:
        wait_for(lambda: len(bodies()) == 10)
        wait_for((tmp_path / "standby").is_dir)
        assert standby.thread.is_alive()
        (tmp_path / "standby" / ORDER_FILE).touch()
        wait_for(lambda: len(bodies()) == 15)
        assert bodies() == [f"body {number}" for number in range(15)]
        # The old one notices at its next write, and cannot come back by itself.
        fill(master, 10, 1)
        wait_for(lambda: not before.thread.is_alive())
        assert isinstance(before.error, Fenced)
        where = ["--tier", url, "--state", tmp_path / "state", "--config", conf]
        again = tieredstore("offload", master, *where)
        assert again.code == 5, one_line(again)
    finally:
        before.end()
        standby.end()
    assert standby.error is None
    assert (standby.report["messages"], standby.report["failed"]) == (5, [])
    verified = tieredstore("verify", "--tier", url, "--state", tmp_path / "standby")
    assert verified.code == 0, verified.out
