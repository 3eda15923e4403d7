"""Key index of the tier: local hash files that become INDEX segments when they are full."""

from __future__ import annotations

from tieredstore.tier.index.item import IndexItem
from tieredstore.tier.index.service import IndexStoreService

__all__ = ["IndexItem", "IndexStoreService"]
