"""Names of the objects of a segment (`docs/formats/chunk-log.md`), below the segment's folder:

    e<epoch>.<sequence>/c.<start>         one write; an empty one at the end is the seal marker
    e<epoch>.<sequence>/m.<start>-<end>   a merged run of writes
    e<epoch>.<sequence>/s                 the whole content of a sealed segment
    e<epoch>.<sequence>/t                 tombstone: what is in lives before this one is deleted

A write's key holds its start only: each position of a life has one successor.
"""

from __future__ import annotations

import re
from typing import NamedTuple

WHOLE_NAME = "s"
TOMBSTONE_NAME = "t"
_LIFE = r"e([0-9]{10})\.([0-9]{10})"
_OBJECT = re.compile(rf"{_LIFE}/(?:c\.([0-9]{{20}})|m\.([0-9]{{20}})-([0-9]{{20}})|s|t)", re.ASCII)
_FORMER = re.compile(r"c\.[0-9]{20}|m\.[0-9]{20}-[0-9]{20}|s", re.ASCII)


class Life(NamedTuple):
    """A folder of a segment, in which one epoch writes; those that are greater were made later."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"e{self.epoch:010d}.{self.sequence:010d}"

    def name(self, name: str) -> str:
        """Return the name of one of its objects, below the segment's folder."""
        return f"{self}/{name}"


class ObjectName(NamedTuple):
    """kind: `c`, `m`, `s` or `t`. end: -1 where the name does not tell."""

    life: Life
    kind: str
    start: int = 0
    end: int = -1


def chunk_name(start: int) -> str:
    """Return the name of a write, in its life."""
    return f"c.{start:020d}"


def make_merged_name(start: int, end: int) -> str:
    """Return the name of a merged run, in its life."""
    return f"m.{start:020d}-{end:020d}"


def parse_object_name(name: str) -> ObjectName | None:
    """Parse a name below a segment's folder; None for one that is not a chunk log's."""
    match = _OBJECT.fullmatch(name)
    if match is None:
        return None
    life = Life(int(match[1]), int(match[2]))
    if match[3]:
        return ObjectName(life, "c", int(match[3]))
    if match[4]:
        return ObjectName(life, "m", int(match[4]), int(match[5]))
    return ObjectName(life, name[-1])


def is_former_name(name: str) -> bool:
    """Tell whether an object of format 1 has such a name, below the segment's folder."""
    return _FORMER.fullmatch(name) is not None
