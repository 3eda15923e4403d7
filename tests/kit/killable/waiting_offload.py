"""An offload that reports its progress and waits: `python -m … STORE ROOT CONF`.

It prints `writer` once it owns the writer epoch, and continues after a line of input. It prints
`uploaded` when its messages are in the tier, and waits to be killed before its clean shutdown.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tieredstore import registry
from tieredstore.contracts.segment import WriterEpoch
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.wrapping import WrapperProvider
from tieredstore.jobs.offloading.job import offload_store
from tieredstore.jobs.options import OffloadOptions
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
        OffloadOptions(f"file://{root}/tier", store, state=Path(root) / "state", config=conf)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
