"""One key query over many index files, newest first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import itemgetter

from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.tier.index.item import IndexItem
from tieredstore.tier.index.local_file import LocalIndexStoreFile
from tieredstore.tier.index.matching import Wanted
from tieredstore.tier.index.uploaded_file import UploadedIndexStoreFile
from tieredstore.tier.joined_reading import join_readings
from tieredstore.tier.reading import Reading

FAN_OUT = 16
"""Uploaded files that are read at once."""

_PLACE = itemgetter(1, 2, 0)  # of an IndexItem: queue, offset, topic
_log = logging.getLogger(__name__)


def query_files(
    wanted: Wanted,
    local: Sequence[LocalIndexStoreFile],
    uploaded: Sequence[UploadedIndexStoreFile],
    on_failure: Callable[[str, TieredStoreError], None],
) -> Reading[list[IndexItem]]:
    """Find the newest `wanted.limit` distinct items, by topic, queue and offset.

    Files are given by ascending age of creation and asked from the last on. One that fails is left
    out (`on_failure` gets its name and error); Unavailable is raised only when nothing was found
    and a file could not be reached, since that is not an answer.
    """
    found: dict[tuple[int, ...], IndexItem] = {}
    unreachable: Unavailable | None = None
    for local_file in reversed(local):
        if len(found) >= wanted.limit:
            break
        try:
            _merge(found, local_file.find(wanted))
        except TieredStoreError as error:
            on_failure(str(local_file.path), error)
    may_hold = [file for file in reversed(uploaded) if file.latest_ms >= wanted.begin_ms]
    for start in range(0, len(may_hold), FAN_OUT):
        if len(found) >= wanted.limit:
            break
        group = may_hold[start : start + FAN_OUT]
        outcomes = yield from join_readings([file.find(wanted) for file in group])
        for file, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, list):
                _merge(found, outcome)
                continue
            if file.is_expired:
                continue  # it went while it was read
            on_failure(str(file), outcome)
            if isinstance(outcome, Unavailable):
                unreachable = outcome
    if unreachable is not None and not found:
        raise unreachable
    newest = list(found.values())[: wanted.limit]
    newest.sort(key=_PLACE)
    return newest


def _merge(found: dict[tuple[int, ...], IndexItem], items: list[IndexItem]) -> None:
    for item in items:
        found.setdefault(item[:3], item)
