"""The tier that a job writes to: its configuration, and its folder if it is in one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.contracts.segment import SegmentProvider


@dataclass(frozen=True, slots=True)
class TierTarget:
    """Where a job writes: the whole configuration, and the tier's folder if it is in one."""

    config: StoreConfig
    url: str
    location: Path | None
    warnings: tuple[str, ...]

    def open_provider(self, *, create: bool) -> SegmentProvider | None:
        """The tier; None when it is not there and `create` is false. Raises Invalid,
        Unavailable."""
        if self.location is not None and not self.location.exists():
            if not create:
                return None
            try:
                self.location.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Invalid(
                    f"tier {self.url}: cannot be created: {error.strerror}", path=str(self.location)
                ) from error
        provider: SegmentProvider = registry.segment_provider(self.config)
        return provider
