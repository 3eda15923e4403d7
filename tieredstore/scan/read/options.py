"""How ranges are read as columns."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.errors import Invalid
from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES
from tieredstore.message.hashes import tags_code
from tieredstore.scan.read.batches import BATCH_BYTES

MOST_BATCH_BYTES = 1 << 30
"""Arrow's offsets have 32 bits, and a batch is in memory several times."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a range is read. Picklable. Raises Invalid for batches of more than 1 GiB.

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

    def __post_init__(self) -> None:
        if self.batch_bytes > MOST_BATCH_BYTES:
            raise Invalid(
                f"batch_bytes (batchBytes): expected at most {MOST_BATCH_BYTES}, "
                f"found {self.batch_bytes}"
            )

    @property
    def tags_codes(self) -> frozenset[int] | None:
        return None if self.tags is None else frozenset(map(tags_code, self.tags))


DEFAULT_OPTIONS = ReadOptions()
