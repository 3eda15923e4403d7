"""Configuration of a small, local development broker in one folder. Topics are created by the first
message."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
NAMESRV_PORT: Final = 9876


def development_properties(folder: Path, *, port: int | None = None) -> dict[str, str]:
    """Return broker.conf keys for a development broker. `folder` will contain the store (`store`)
    and its tier (`tier`). `port`: 0 chooses free ports, None uses the default ports."""
    ports = ("listenPort", "grpcServerPort", "metricsPromExporterPort", "namesrvListenPort")
    properties = {
        "brokerName": "broker-dev",
        "brokerClusterName": "DefaultCluster",
        "brokerIP1": LOOPBACK,
        "bindAddress": LOOPBACK,
        "namesrvListenPort": str(NAMESRV_PORT),
        "storePathRootDir": str(folder / "store"),
        "mappedFileSizeCommitLog": str(16 << 20),
        "mappedFileSizeConsumeQueue": str(20 * 10_000),
        "maxHashSlotNum": "10000",
        "maxIndexNum": "40000",
        "enablePropertyFilter": "true",
        "autoCreateMixedTopics": "true",
        "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
        "messageStorePlugIn": "tiered",
        "tieredBackendServiceProvider": "posix",
        "tieredStoreFilePath": str(folder / "tier"),
        "tieredStoreFileReservedTime": "72",
        "tieredStoreIndexFileMaxHashSlotNum": "10000",
        "tieredStoreIndexFileMaxIndexNum": "40000",
        "readAheadCacheSizeBytes": str(64 << 20),
    }
    if port is not None:
        properties |= dict.fromkeys(ports, str(port))
    return properties
