"""An offload that says how far it is, and waits there: `python -m … STORE ROOT CONF`.

It prints `writer` when it has the right to write and goes on at a line from outside; it prints
`uploaded` when its messages are in the tier, before it ends in good order, and waits to be killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tieredstore import registry
from tieredstore.contracts.epoch_record import EpochRecord
from tieredstore.contracts.segment import WriterEpoch
from tieredstore.contracts.wrapping import WrapperProvider
from tieredstore.jobs.offloading.job import offload_store
from tieredstore.jobs.offloading.options import OffloadOptions
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider


def _say_and_wait(line: str) -> None:
    print(line, flush=True)
    sys.stdin.readline()


class WaitingProvider(WrapperProvider):
    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        epoch = super().acquire_writer(broker_name, take_over=take_over, record=record)
        _say_and_wait("writer")
        return epoch


class WaitingMetadataStore(DefaultMetadataStore):
    def flush(self) -> None:
        _say_and_wait("uploaded")


def main(store: str, root: str, conf: str) -> None:
    registry.segment_provider = lambda config: WaitingProvider(PosixProvider.from_config(config))
    registry.metadata_store = lambda config, clock, **_: WaitingMetadataStore.from_config(
        config, clock
    )
    offload_store(
        OffloadOptions(Path(store), f"file://{root}/tier", Path(root) / "state", Path(conf))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
