"""Where the queues of a tier ended at a clean stop, so that the next start need not find out.

A file in the state directory names the writer epoch that stopped, and for each queue the ends of
its two files at that moment, when each unit had its message and each message its unit. It counts
for the next epoch alone, between which and that one nobody can have written, and for a queue that
ends there still.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tieredstore.disk.file_operations import FILES

ENDS_FILE: Final = "tieredstore.ends.json"
"""In a state directory; Java ignores it."""
_FORMAT = 1
_log = logging.getLogger(__name__)


class QueueEnds(NamedTuple):
    """Offsets behind the last committed byte."""

    commit_log: int
    consume_queue: int


class _Ends(msgspec.Struct, frozen=True):
    """queues: by path."""

    format: int
    epoch: int
    queues: dict[str, QueueEnds]


def keep_clean_ends(state: Path, epoch: int, queues: Mapping[str, QueueEnds]) -> None:
    """Write the file, as that epoch stops. Without room the next start asks the tier."""
    try:
        FILES.replace_file(
            state / ENDS_FILE, msgspec.json.encode(_Ends(_FORMAT, epoch, dict(queues)))
        )
    except OSError as error:
        _log.info("%s: not written: %s", state / ENDS_FILE, error)


def find_clean_ends(state: Path, epoch: int) -> Mapping[str, QueueEnds]:
    """Find where the queues ended, for that epoch; nothing unless the one before it stopped with
    this state directory."""
    found = _read(state)
    return found.queues if found is not None and found.epoch == epoch - 1 else {}


def has_clean_ends(state: Path) -> bool:
    """Tell whether any writer that stopped with this state directory left queues in a tier."""
    found = _read(state)
    return found is not None and bool(found.queues)


def _read(state: Path) -> _Ends | None:
    path = state / ENDS_FILE
    try:
        found = msgspec.json.decode(FILES.read(path), type=_Ends)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.info("%s: not read: %s", path, error)
        return None
    return found if found.format == _FORMAT else None
