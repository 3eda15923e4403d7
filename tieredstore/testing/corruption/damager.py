"""Planted damage in a copy of a tier, to test damage detection.

`TierImage.read` reads a tier into memory. `Damager` plants damage at seeded random positions.
`TierImage.write` writes the image to an empty tier of any provider, and the metadata to a state
directory:

    image = TierImage.read(provider, metadata)
    planted = Damager(image, seed=7).plant("body-bit")
    image.write(other_provider, state)

Each `Planted` describes the damage and the expected finding of `tieredstore verify --state`. The
whole tier is held in memory.
"""

from __future__ import annotations

from tieredstore.errors import Invalid
from tieredstore.testing.corruption.image import StoredAt, TierImage
from tieredstore.testing.corruption.kinds import KINDS
from tieredstore.testing.corruption.places import Places, Planted

__all__ = ["KINDS", "Damager", "Planted", "StoredAt", "TierImage"]


class Damager(Places):
    """Plants damage in an intact image."""

    def plant(self, kind: str) -> Planted:
        """Plant one of the `KINDS` of damage at a random position. Raises Invalid for an unknown
        kind, or if the tier has no suitable position left."""
        if kind not in KINDS:
            raise Invalid(f"kind of damage {kind!r}: expected one of {', '.join(KINDS)}")
        return KINDS[kind](self)
