"""Names of the objects of a segment (`docs/formats/chunk-log.md`), below the segment's folder:

    e<epoch>.<sequence>/c.<start>         one write; an empty one at the end is the seal marker
    e<epoch>.<sequence>/u.<place>         one write to a commit log, then the units of its messages
    e<epoch>.<sequence>/m.<start>-<end>   a merged run of writes
    e<epoch>.<sequence>/s                 the whole content of a sealed segment
    e<epoch>.<sequence>/t                 tombstone: earlier generations are deleted

Only one process writes a generation, one write at a time. It begins a new generation after a
request without a response. Each position therefore has one successor. If writers share a generation
(sequence 0), the condition on `c.<start>` decides between them.

`<place>` is `<start>-<end>.<base>.<sequence>.<first>-<last>`: the bytes of the commit log segment,
then the base offset of the consume queue segment, its generation (of the same epoch), and its
bytes. The manifest of that segment names such units `e<epoch>.<sequence>/u@<object>`, relative to
the queue's folder. It names bytes in a group object (`groups`) `e<epoch>.<sequence>/g@<group>` for
one write, and `…/r@<group>` for a run of writes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

WHOLE_NAME = "s"
TOMBSTONE_NAME = "t"
GROUPS_FOLDER = ".groups"
"""Folder below the broker's folder, for objects that the segments of many queues share."""
_WRITE_KINDS = ("c", "u", "g")
_PLACE = r"([0-9]{20})-([0-9]{20})\.([0-9]{20})\.([0-9]{10})\.([0-9]{20})-([0-9]{20})"
_LIFE = r"e([0-9]{10})\.([0-9]{10})"
_OBJECT = re.compile(
    rf"{_LIFE}/(?:c\.([0-9]{{20}})|m\.([0-9]{{20}})-([0-9]{{20}})|u\.{_PLACE}|s|t)", re.ASCII
)
_FORMER = re.compile(r"c\.[0-9]{20}|m\.[0-9]{20}-[0-9]{20}|s", re.ASCII)


class Generation(NamedTuple):
    """Generation of a segment: a folder to which one epoch writes. Later generations compare as
    greater."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"e{self.epoch:010d}.{self.sequence:010d}"

    def name(self, name: str) -> str:
        """Return the name of an object in the generation, relative to the segment's folder."""
        return f"{self}/{name}"


class CarriedUnits(NamedTuple):
    """Units carried by a commit log object: bytes [start, end) of the consume queue segment at
    `base_offset`, written in its generation `sequence`."""

    base_offset: int
    generation: Generation
    start: int
    end: int


class ObjectName(NamedTuple):
    """Parsed name of an object. `kind`: `c`, `u`, `m`, `s` or `t`. `end`: -1 if the name does not
    contain the end. `units`: units that follow bytes [start, end) in the object, for kind `u`
    only."""

    generation: Generation
    kind: str
    start: int = 0
    end: int = -1
    units: CarriedUnits | None = None

    @property
    def size_bytes(self) -> int | None:
        """Size of the object, if the name contains the size."""
        if self.end < 0:
            return None
        units = self.units.end - self.units.start if self.units is not None else 0
        return self.end - self.start + units

    @property
    def is_write(self) -> bool:
        """Whether the object contains a single write."""
        return self.kind in _WRITE_KINDS


def chunk_name(start: int) -> str:
    """Return the object name of a write, relative to its generation."""
    return f"c.{start:020d}"


def make_carrier_name(start: int, end: int, units: CarriedUnits) -> str:
    """Return the object name of a write that also contains units, relative to its generation."""
    place = f"{units.base_offset:020d}.{units.generation.sequence:010d}"
    return f"u.{start:020d}-{end:020d}.{place}.{units.start:020d}-{units.end:020d}"


def make_carried_name(generation: Generation, carrier: str) -> str:
    """Return the manifest name of units that are stored in a commit log object. `carrier`: name of
    that object, relative to the queue's folder."""
    return generation.name(f"u@{carrier}")


def make_grouped_name(generation: Generation, group: str, *, is_write: bool) -> str:
    """Return the manifest name of bytes in a group object."""
    return generation.name(f"{'g' if is_write else 'r'}@{group}")


def is_write_name(name: str) -> bool:
    """Return whether a name, relative to a segment's folder, is the name of one write."""
    return name[name.find("/") + 1 :][:1] in _WRITE_KINDS


def is_carried_name(name: str) -> bool:
    """Return whether a name refers to units in a commit log object."""
    return "/u@" in name


def is_shared_name(name: str) -> bool:
    """Return whether a name refers to bytes in an object that other segments share."""
    return "@" in name


def is_grouped_name(name: str) -> bool:
    """Return whether a name refers to bytes in a group object."""
    return "/g@" in name or "/r@" in name


def find_group(name: str) -> str:
    """Return the name of the group at the end of a name such as `e1.2/g@<group>`."""
    return name.partition("@")[2]


def find_queue_folder(folder: str) -> str:
    """Return the queue folder that contains a segment folder."""
    return folder.rsplit("/", 2)[0]


def make_key(folder: str, name: str) -> str:
    """Return the key of an object that has bytes of a segment. `folder`: the segment's folder.
    `name`: the object's name in the segment's manifest."""
    _, _, carrier = name.partition("@")
    if not carrier:
        return f"{folder}/{name}"
    if is_grouped_name(name):
        return f"{folder.rsplit('/', 4)[0]}/{GROUPS_FOLDER}/{carrier}"
    return f"{find_queue_folder(folder)}/{carrier}"


def parse_generation(name: str) -> Generation:
    """Return the generation at the beginning of a manifest name."""
    return _parse_folder(name.partition("/")[0])


@lru_cache(maxsize=256)  # Names of one segment are consecutive.
def _parse_folder(folder: str) -> Generation:
    epoch, _, sequence = folder.removeprefix("e").partition(".")
    return Generation(int(epoch), int(sequence))


def make_merged_name(start: int, end: int) -> str:
    """Return the object name of a merged run of writes, relative to its generation."""
    return f"m.{start:020d}-{end:020d}"


def parse_object_name(name: str) -> ObjectName | None:
    """Parse a name relative to a segment's folder. Returns None for any other name."""
    match = _OBJECT.fullmatch(name)
    if match is None:
        return None
    generation = Generation(int(match[1]), int(match[2]))
    if match[3]:
        return ObjectName(generation, "c", int(match[3]))
    if match[4]:
        return ObjectName(generation, "m", int(match[4]), int(match[5]))
    if match[6]:
        start, end, base_offset, sequence, first, last = map(int, match.group(*range(6, 12)))
        units = CarriedUnits(base_offset, Generation(generation.epoch, sequence), first, last)
        return ObjectName(generation, "u", start, end, units)
    return ObjectName(generation, name[-1])


def is_former_name(name: str) -> bool:
    """Return whether a name, relative to the segment's folder, is the name of a format 1 object."""
    return _FORMER.fullmatch(name) is not None
