"""How ranges are read as columns."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES
from tieredstore.message.hashes import tags_code
from tieredstore.scan.read.batches import BATCH_BYTES


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a range is read. Picklable.

    batch_bytes: commit log bytes of a batch, at most. body_crcs: compare bodies with their CRCs.
    body_limit_bytes: most that one compressed body may inflate to. tags: only messages whose TAGS
    value is one of these; keys: only messages that have one of these as UNIQ_KEY or in KEYS.
    verify_records: read and check every record, also where the consume queue alone answers. limit:
    most rows of one range.
    """

    batch_bytes: int = BATCH_BYTES
    body_crcs: bool = True
    body_limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES
    tags: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    verify_records: bool = False
    limit: int | None = None

    @property
    def tags_codes(self) -> frozenset[int] | None:
        return None if self.tags is None else frozenset(map(tags_code, self.tags))


DEFAULT_OPTIONS = ReadOptions()
