"""The power fails under a loaded broker. After the next start the broker keeps every promise about
synced data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.power_cut.check import find_broken
from tests.kit.power_cut.disk import make_disk
from tests.kit.power_cut.load import Load, prepare

CUTS = 20
SETTINGS = {
    "messageStorePlugIn": "",
    "mappedFileSizeConsumeQueue": "20000",
    "flushDiskType": "SYNC_FLUSH",
    "transactionCheckInterval": "600000",
    "messageDelayLevel": "1s 2s",
    "diskSpaceWarningLevelRatio": "99",
    "diskSpaceCleanForciblyRatio": "98",
    "diskMaxUsedSpaceRatio": "95",
}


@pytest.mark.slow
@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
def test_l32_l01_power_cuts_under_load_keep_every_promise(store_type: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "storeType": store_type}
    with make_disk(tmp_path) as disk, BrokerProcess(disk.folder / "b", settings) as broker:

        async def run() -> None:
            await prepare(broker.addresses["remoting"])
            load = Load(broker.addresses["remoting"], broker.grpc, seed=7)
            working = asyncio.create_task(load.run())
            try:
                for number in range(CUTS):
                    await asyncio.sleep(2 + number % 4)
                    if working.done():
                        raise AssertionError(f"cut {number}: {broker.log()}") from (
                            working.exception()
                        )
                    promises = load.promises.copy()
                    with disk.cut_power(broker.pid) as copy:
                        sent = set(load.promises.sent)
                        with BrokerProcess(copy / "b", settings) as restarted:
                            found = await find_broken(
                                promises, sent, restarted.addresses["remoting"], restarted.grpc
                            )
                            assert found == {}, f"cut {number}: {restarted.log()}"
                            restarted.stop()
                assert all(vars(load.promises).values()), "something was never promised"
            finally:
                working.cancel()
                await asyncio.wait([working])

        asyncio.run(run())
