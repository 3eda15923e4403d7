"""Key index of the tier: local hash files that become INDEX segments when full."""

from __future__ import annotations

from tieredstore.tier.index.index_file import IndexItem, IndexStatus, IndexStoreFile
from tieredstore.tier.index.service import IndexStoreService

__all__ = ["IndexItem", "IndexStatus", "IndexStoreFile", "IndexStoreService"]
