"""Plants damage in a copy of a tier, so that one can see whether it is found.

`TierImage.read` reads a tier into memory, `Damager` plants kinds of damage at seeded random places
of it, `TierImage.write` makes it a tier again (on any provider) and its metadata a state directory:

    image = TierImage.read(provider, metadata)
    planted = Damager(image, seed=7).plant("body-bit")
    image.write(other_provider, state)

Each `Planted` says what was done, and which finding of `tieredstore verify --state` it must lead
to. All of the tier is held in memory.
"""

from __future__ import annotations

from tieredstore.errors import Invalid
from tieredstore.testing.corruption.image import StoredAt, TierImage
from tieredstore.testing.corruption.kinds import KINDS
from tieredstore.testing.corruption.places import Places, Planted

__all__ = ["KINDS", "Damager", "Planted", "StoredAt", "TierImage"]


class Damager(Places):
    """Plants damage in an image that is sound when this is made: `Damager(image, seed)`."""

    def plant(self, kind: str) -> Planted:
        """Plant one piece of a kind of `KINDS`. Raises Invalid for another kind, and where the tier
        has no place for it (left)."""
        if kind not in KINDS:
            raise Invalid(f"kind of damage {kind!r}: expected one of {', '.join(KINDS)}")
        return KINDS[kind](self)
