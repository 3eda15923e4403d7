"""A store of flat files as its tier's writer."""

from __future__ import annotations

from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.writing import TierWriter


def become_writer(store: FlatFileStore, *, take_over: bool = False) -> TierWriter:
    """Take the right to write to the store's tier, for the caller to release."""
    writer = TierWriter.acquire(
        store.provider, store.metadata, store.config.broker_name, take_over=take_over
    )
    store.become_writer(writer)
    return writer
