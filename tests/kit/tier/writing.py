"""Acquires writer epochs for tests that write to flat files."""

from __future__ import annotations

from pathlib import Path

from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.writing import TierWriter


def become_writer(
    store: FlatFileStore, *, state: Path | None = None, take_over: bool = False
) -> TierWriter:
    """Acquire the writer epoch of a flat file store's tier. The caller releases it."""
    writer = TierWriter.acquire(
        store.provider, store.metadata, store.config.broker_name, state, take_over=take_over
    )
    store.become_writer(writer)
    return writer
