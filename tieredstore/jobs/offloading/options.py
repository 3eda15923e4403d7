"""What an offload is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """What to copy, from where to where. `store`, `state`: directories; `tier`: a URL.

    broker, cluster: names in the tier; None to take them from `config`. properties: settings of a
    broker.conf that beat it. topics: only these (shell patterns such as `order_*`); empty for all.
    workers: threads that upload; None for the configured number. take_over: end the right of
    another writer where the backend can. dry_run: write nothing and take no right. follow: go on as
    the store grows, until it is stopped. recovered: of a store that was not stopped cleanly, and
    that nobody owns, copy what a recovery would keep. standby: with follow, of a replica's store;
    wait until it is told to take over.
    """

    store: Path
    tier: str
    state: Path
    config: Path | None = None
    broker: str | None = None
    cluster: str | None = None
    topics: Sequence[str] = ()
    workers: int | None = None
    take_over: bool = False
    dry_run: bool = False
    follow: bool = False
    recovered: bool = False
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    standby: bool = False
