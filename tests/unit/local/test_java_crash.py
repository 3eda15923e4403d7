"""Recovery of a killed Java broker's store has the same result as Java's own recovery."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import FOREVER, PUBLIC_A_SIZES, copy_store
from tests.kit.recovered import read_everything
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.log_scan import EndCause
from tieredstore.local.recovery.planning import plan_recovery
from tieredstore.message.record import decode_record


@pytest.fixture(scope="module")
def config(crash_c: Path, tmp_path_factory: pytest.TempPathFactory) -> StoreConfig:
    root = copy_store(crash_c / "before" / "store", tmp_path_factory.mktemp("crash") / "store")
    return StoreConfig(store_path_root_dir=str(root), **PUBLIC_A_SIZES)


@pytest.fixture(scope="module")
def store(config: StoreConfig) -> Iterator[DefaultMessageStore]:
    plan = plan_recovery(config.store_path_root_dir, config)
    assert not plan.was_clean
    assert (plan.end_cause, plan.needs_consent) == (EndCause.UNWRITTEN, "")
    owner = DefaultMessageStore(config, ManualClock())
    owner.load()
    owner.start()
    yield owner
    owner.shutdown()


def test_queues_begin_and_end_where_java_s_do(store: DefaultMessageStore, crash_c: Path) -> None:
    recovered = json.loads((crash_c / "recovered.json").read_bytes())
    queues = recovered["atStart"]["queues"]
    assert len(queues) > 20
    for queue in queues:
        place = queue["topic"], queue["queueId"]
        assert store.get_min_offset_in_queue(*place) == queue["localMin"], place
        assert store.get_max_offset_in_queue(*place) == queue["localMax"], place


def test_every_message_that_java_recovered_is_there(
    store: DefaultMessageStore, crash_c: Path
) -> None:
    wanted: list[dict[str, Any]] = json.loads((crash_c / "after.json").read_bytes())["messages"]
    found = read_everything(store)
    places = {(row["topic"], row["queueId"], row["queueOffset"]) for row in wanted}
    assert len(places) == len(wanted) == sum(len(records) for records in found.values()) > 1700
    for row in wanted:
        record = found[row["topic"], row["queueId"]][row["queueOffset"]]
        message = decode_record(record)
        assert hashlib.sha256(message.body).hexdigest() == row["bodySHA256"]
        assert message.uniq_key == row["uniqKey"]


def test_every_acknowledged_message_is_there(store: DefaultMessageStore, crash_c: Path) -> None:
    lines = (crash_c / "before" / "acked.jsonl").read_text().splitlines()
    assert len(lines) > 1700
    for row in map(json.loads, lines):
        place = row["topic"], row["queueId"], row["queueOffset"]
        (message,) = store.get_message("g", *place, 1).messages
        assert hashlib.sha256(message.body).hexdigest() == row["bodySHA256"]
        hits = store.query_message(row["topic"], row["msgId"], 9, *FOREVER)
        assert [hit.physical_offset for hit in hits] == [message.physical_offset]


def test_a_store_of_java_s_that_looks_killed_keeps_everything(
    public_a: Path, public_a_manifest: dict[str, Any], tmp_path: Path
) -> None:
    root = copy_store(public_a / "store", tmp_path / "store")
    (root / "abort").write_text("4711")
    config = StoreConfig(store_path_root_dir=str(root), **PUBLIC_A_SIZES)
    for how in ({}, {"rebuild": True}):
        owner = DefaultMessageStore(config, ManualClock())
        owner.load(**how)
        owner.start()
        for row in public_a_manifest["messages"]:
            place = row["topic"], row["queueId"], row["queueOffset"]
            (message,) = owner.get_message("g", *place, 1).messages
            assert hashlib.sha256(message.raw).hexdigest() == row["rawSHA256"]
        for row in public_a_manifest["queries"]["minMax"]:
            queue = row["topic"], row["queueId"]
            assert owner.get_min_offset_in_queue(*queue) == row["storeMin"]
            assert owner.get_max_offset_in_queue(*queue) == row["storeMax"]
        assert len(owner.get_message("g", "%LMQ%all", 0, 0, 32).messages) == 15
        owner.shutdown()
