"""The server versitygw behind a proxy that simulates other vendors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from tests.kit.fault_proxy.http import Credentials
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.fault_proxy.vendors import (
    CosStore,
    GoogleStore,
    ObsStore,
    OssStore,
)
from tests.kit.object_store.servers import CREDENTIALS, ObjectStore
from tests.kit.object_store.tiers import CLUSTER, s3_client
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.dialects.dialect import DIALECTS
from tieredstore.providers.s3.place import S3Place
from tieredstore.providers.s3.provider import S3Provider

Vendor = OssStore | CosStore | ObsStore | GoogleStore
VENDORS: Mapping[str, type[Vendor]] = {
    "oss": OssStore,
    "cos": CosStore,
    "obs": ObsStore,
    "google": GoogleStore,
}
"""Classes of the vendors, by dialect name."""


@dataclass(frozen=True, slots=True)
class VendorStore:
    """A bucket behind a proxy that simulates a vendor's store. `options` are the properties of a
    tier in the bucket."""

    store: ObjectStore
    vendor: Vendor
    proxy: FaultProxy
    dialect: str
    shared: S3Client

    @property
    def options(self) -> dict[str, str]:
        return options_of(self.dialect)

    def client(self, prefix: str) -> S3Client:
        """Return a client for the keys below a prefix. All clients share connections, because
        connecting is slow."""
        return _View(self.shared, prefix)

    def tier(self, prefix: str) -> S3Provider:
        """Open a tier with a client of its own, as another process would."""
        client = self.client(prefix)
        return S3Provider(client, CLUSTER, settings=client._settings.chunk_settings())


class _View(S3Client):
    """A client for another prefix that shares an existing client's connections."""

    def __init__(self, shared: S3Client, prefix: str) -> None:
        place = S3Place(shared._place.bucket, prefix)
        self._assemble(shared._settings, place, shared._lane, shared._bulk_lane)

    def close(self) -> None:
        """Do nothing, so that the shared connections stay open."""


def options_of(dialect: str) -> dict[str, str]:
    fencing = "epoch" if DIALECTS[dialect].promises_exclusion else "none"
    return {"dialect": dialect, "fast_reads": "false", "fencing": fencing}


_NUMBERS = itertools.count()


def new_prefix() -> str:
    return f"tier-{next(_NUMBERS)}"


@contextmanager
def vendor_store(behind: ObjectStore, dialect: str) -> Iterator[VendorStore]:
    credentials = Credentials(*CREDENTIALS)
    with FaultProxy(behind.endpoint, credentials) as proxy:
        vendor = VENDORS[dialect](credentials)
        proxy.inject(vendor)
        store = behind.through(proxy.endpoint)
        with closing(s3_client(store, **options_of(dialect))) as shared:
            yield VendorStore(store, vendor, proxy, dialect, shared)
