"""Open or locate the tier named by a verb's options."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from tieredstore.cli.logs.lines import log_to_stderr
from tieredstore.cli.options.tier import TierOptions
from tieredstore.scan import location

if TYPE_CHECKING:
    from tieredstore.scan.opening import OpenTier


def open_tier(options: TierOptions) -> AbstractContextManager[OpenTier]:
    """Open a tier for reading (see `scan.opening.open_location`). Raises Invalid or Unavailable."""
    from tieredstore.scan.opening import open_location

    return open_location(locate_tier(options))


def locate_tier(options: TierOptions) -> location.TierLocation:
    """Return the location of a tier that a job will read, without connecting to it. Raises Invalid
    or Unavailable."""
    log_to_stderr()
    location.refuse_memory(options.tier)
    return location.locate(
        options.tier,
        cluster=options.cluster,
        broker=options.broker,
        state=options.state,
        config=options.config,
        properties=options.properties,
    )


def check_target(options: TierOptions) -> None:
    """Raise Invalid for a tier that a verb cannot write to. The tier may not exist yet."""
    log_to_stderr()
    location.refuse_memory(options.tier)
