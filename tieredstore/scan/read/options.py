"""Options for reading columns."""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.errors import Invalid
from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES
from tieredstore.message.hashes import tags_code
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.read.batches import BATCH_BYTES

MOST_BATCH_BYTES = 1 << 30
"""Maximum size of a batch in bytes. Arrow's offsets have 32 bits, and several copies of a batch are
in memory."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a range. Picklable. Raises Invalid for batches of more than 1 GiB.

    `batch_bytes`: maximum commit log bytes of a batch.
    `body_crcs`: compare bodies with their CRCs.
    `body_limit_bytes`: maximum size of one decompressed body.
    `tags`: only messages with one of these TAGS values.
    `keys`: only messages with one of these keys, as UNIQ_KEY or in KEYS.
    `verify_records`: read and check every record, even if all columns are in the consume queue.
    `limit`: maximum number of rows of one range.
    `on_damage`: reaction to damage if no `on_finding` is given.
    """

    batch_bytes: int = BATCH_BYTES
    body_crcs: bool = True
    body_limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES
    tags: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    verify_records: bool = False
    limit: int | None = None
    on_damage: OnDamage = OnDamage.FAIL

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
