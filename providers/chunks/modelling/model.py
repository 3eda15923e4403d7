"""ChunkRequestModel: what all queues of a modelled chunk log have in common."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tieredstore.contracts.request_model import GroupRules, Requests
from tieredstore.contracts.segment import Capabilities
from tieredstore.providers.chunks.client import ClientLimits
from tieredstore.providers.chunks.modelling.queue import ModelledChunks
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.upkeep.garbage import MAX_DELETED_KEYS
from tieredstore.providers.chunks.upkeep.maintenance import GATHER_MS

_LIST_KEYS = 1_000
_GROUP_KEY = "tieredStoreChunkGroupSize"
_DAY_MS = 24 * 3_600_000


class ChunkRequestModel:
    """The rules of a chunk log with these settings, over an object store with these limits."""

    def __init__(
        self,
        settings: ChunkSettings | None = None,
        limits: ClientLimits | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.settings = settings if settings is not None else ChunkSettings()
        self.limits = limits if limits is not None else ClientLimits()
        self._capabilities = capabilities or Capabilities(
            rewritable=False,
            conditional=True,
            durable=True,
            preferred_batch_bytes=self.settings.preferred_batch_bytes,
            paired=True,
            gathered_bytes=self.settings.group_bytes,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def groups(self) -> GroupRules:
        settings = self.settings
        return GroupRules(
            _GROUP_KEY,
            settings.group_bytes,
            settings.regroup_interval_ms,
            settings.regrouped_bytes,
            settings.split_age_ms,
        )

    def with_group_bytes(self, group_bytes: int) -> ChunkRequestModel:
        """Return the rules with another size of groups."""
        return ChunkRequestModel(
            replace(self.settings, group_bytes=group_bytes),
            self.limits,
            replace(self._capabilities, gathered_bytes=group_bytes),
        )

    @property
    def is_metered(self) -> bool:
        return True

    @property
    def read_operation(self) -> str:
        return "GetObject"

    @property
    def delete_batch(self) -> int:
        return MAX_DELETED_KEYS

    @property
    def gather_ms(self) -> int:
        return GATHER_MS

    def make_queue(self, share: float) -> ModelledChunks:
        """Make an empty queue. share: of the caches of the writer, which queues fill together."""
        return ModelledChunks(self.settings, self.limits, min(max(share, 0.0), 1.0))

    def count_a_day(self, objects: int) -> Requests:
        """Count the sweep over the listing, and the look for uploads that nobody ends."""
        sweeps = _DAY_MS / max(self.settings.sweep_interval_ms, 1)
        pages = max(-(-objects // _LIST_KEYS), 1)
        return Counter(
            {
                ("ListObjectsV2", "OTHER"): round(sweeps * pages),
                ("ListMultipartUploads", "OTHER"): round(sweeps),
            }
        )
