"""Names of the objects of a segment (`docs/formats/chunk-log.md`), below the segment's folder:

    e<epoch>.<sequence>/c.<start>         one write; an empty one at the end is the seal marker
    e<epoch>.<sequence>/u.<place>         one write to a commit log, then the units of its messages
    e<epoch>.<sequence>/m.<start>-<end>   a merged run of writes
    e<epoch>.<sequence>/s                 the whole content of a sealed segment
    e<epoch>.<sequence>/t                 tombstone: what is in lives before this one is deleted

A life is written by one process, one write after the other, and is left when a request got no
answer: so each position of it has one successor. Where writers share a life (sequence 0), the
condition on `c.<start>` decides between them.

`<place>` is `<start>-<end>.<base>.<sequence>.<first>-<last>`: the bytes of the commit log segment,
then the base offset of the consume queue segment, the life there (of the same epoch), and the bytes
there. In a chain of that segment such units are called `e<epoch>.<sequence>/u@<object>`, the object
being named from the queue's folder on. What lies in a group object (`groups`) is called
`e<epoch>.<sequence>/g@<group>` where it is one write, `…/r@<group>` where it is a run of them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

WHOLE_NAME = "s"
TOMBSTONE_NAME = "t"
GROUPS_FOLDER = ".groups"
"""Below the broker's folder: objects that the segments of many queues have in common."""
_WRITE_KINDS = ("c", "u", "g")
_PLACE = r"([0-9]{20})-([0-9]{20})\.([0-9]{20})\.([0-9]{10})\.([0-9]{20})-([0-9]{20})"
_LIFE = r"e([0-9]{10})\.([0-9]{10})"
_OBJECT = re.compile(
    rf"{_LIFE}/(?:c\.([0-9]{{20}})|m\.([0-9]{{20}})-([0-9]{{20}})|u\.{_PLACE}|s|t)", re.ASCII
)
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


class CarriedUnits(NamedTuple):
    """Bytes [start, end) of the consume queue segment at `base_offset`, written in a life there."""

    base_offset: int
    life: Life
    start: int
    end: int


class ObjectName(NamedTuple):
    """kind: `c`, `u`, `m`, `s` or `t`. end: -1 where the name does not tell. units: that are in the
    object behind bytes [start, end), of kind `u` alone."""

    life: Life
    kind: str
    start: int = 0
    end: int = -1
    units: CarriedUnits | None = None

    @property
    def size_bytes(self) -> int | None:
        """Of the object, where its name tells."""
        if self.end < 0:
            return None
        units = self.units.end - self.units.start if self.units is not None else 0
        return self.end - self.start + units

    @property
    def is_write(self) -> bool:
        """Whether it is one write."""
        return self.kind in _WRITE_KINDS


def chunk_name(start: int) -> str:
    """Return the name of a write, in its life."""
    return f"c.{start:020d}"


def make_carrier_name(start: int, end: int, units: CarriedUnits) -> str:
    """Return the name of a write with units, in its life."""
    place = f"{units.base_offset:020d}.{units.life.sequence:010d}"
    return f"u.{start:020d}-{end:020d}.{place}.{units.start:020d}-{units.end:020d}"


def make_carried_name(life: Life, carrier: str) -> str:
    """Return what units are called in the chain of their segment; carrier: the name of the object
    that they are in, from the queue's folder on."""
    return life.name(f"u@{carrier}")


def make_grouped_name(life: Life, group: str, *, is_write: bool) -> str:
    """Return what bytes in a group object of that name are called in the chain of their segment."""
    return life.name(f"{'g' if is_write else 'r'}@{group}")


def is_write_name(name: str) -> bool:
    """Tell whether a name below a segment's folder is that of one write."""
    return name[name.find("/") + 1 :][:1] in _WRITE_KINDS


def is_carried_name(name: str) -> bool:
    """Tell whether it is a name of units in an object of the commit log."""
    return "/u@" in name


def is_shared_name(name: str) -> bool:
    """Tell whether it is a name of bytes in an object that other segments have a part in, too."""
    return "@" in name


def is_grouped_name(name: str) -> bool:
    """Tell whether it is a name of bytes in a group object."""
    return "/g@" in name or "/r@" in name


def find_group(name: str) -> str:
    """Return the name of the object that shared bytes are in, as their name in a chain has it."""
    return name.partition("@")[2]


def find_queue_folder(folder: str) -> str:
    """Return the folder of the queue that a segment's folder is in."""
    return folder.rsplit("/", 2)[0]


def make_key(folder: str, name: str) -> str:
    """Return the key of the object that bytes of the segment with this folder are in, from what
    they are called in its chain."""
    _, _, carrier = name.partition("@")
    if not carrier:
        return f"{folder}/{name}"
    if is_grouped_name(name):
        return f"{folder.rsplit('/', 4)[0]}/{GROUPS_FOLDER}/{carrier}"
    return f"{find_queue_folder(folder)}/{carrier}"


def parse_life(name: str) -> Life:
    """Return the life of a name in a chain."""
    return _parse_folder(name.partition("/")[0])


@lru_cache(maxsize=256)  # names of one segment come one after the other
def _parse_folder(folder: str) -> Life:
    epoch, _, sequence = folder.removeprefix("e").partition(".")
    return Life(int(epoch), int(sequence))


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
    if match[6]:
        start, end, base_offset, sequence, first, last = map(int, match.group(*range(6, 12)))
        units = CarriedUnits(base_offset, Life(life.epoch, sequence), first, last)
        return ObjectName(life, "u", start, end, units)
    return ObjectName(life, name[-1])


def is_former_name(name: str) -> bool:
    """Tell whether an object of format 1 has such a name, below the segment's folder."""
    return _FORMER.fullmatch(name) is not None
