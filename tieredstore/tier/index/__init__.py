"""Key index of the tier: local hash files that become INDEX segments when they are full."""

from __future__ import annotations

from tieredstore.tier.index.item import IndexItem
from tieredstore.tier.index.service import IndexStoreService
from tieredstore.tier.index.store_file import IndexStatus, IndexStoreFile

__all__ = ["IndexItem", "IndexStatus", "IndexStoreFile", "IndexStoreService"]
