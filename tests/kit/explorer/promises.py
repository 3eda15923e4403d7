"""Promises to users of a tier, checked against the replies to the processes.

Each write of a scenario uses its own letters, so that bytes identify their writer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


class Piece(NamedTuple):
    """Bytes that a writer wants to store at a position of a file. `position` counts from the
    beginning of the file."""

    file: str
    position: int
    text: bytes
    epoch: int

    @property
    def end(self) -> int:
        return self.position + len(self.text)

    def __str__(self) -> str:
        text = self.text.decode()
        return f"{text!r} at {self.position} of {self.file} (epoch {self.epoch})"


@dataclass(frozen=True)
class Attempt:
    """A writer sends a piece."""

    piece: Piece

    def __str__(self) -> str:
        return f"writes {self.piece}"


@dataclass(frozen=True)
class Acknowledged:
    """The store acknowledged a piece to its writer."""

    piece: Piece

    def __str__(self) -> str:
        return f"acknowledges {self.piece}"


@dataclass(frozen=True)
class Milestone:
    """A process reached a point that other processes wait for."""

    name: str

    def __str__(self) -> str:
        return f"is so far: {self.name}"


@dataclass(frozen=True)
class Began:
    """A writer acquired the writer epoch."""

    writer: str
    epoch: int

    def __str__(self) -> str:
        return f"has epoch {self.epoch}"


@dataclass(frozen=True)
class Disturbed:
    """A writer cannot continue in a segment of its own, or cannot write at all."""

    piece: Piece
    what: str

    def __str__(self) -> str:
        return f"cannot write {self.piece}: {self.what}"


@dataclass(frozen=True)
class Inherited:
    """A new writer takes over the bytes [start, end) of a file."""

    file: str
    start: int
    end: int
    epoch: int

    def __str__(self) -> str:
        return f"starts from [{self.start}, {self.end}) of {self.file} (epoch {self.epoch})"


@dataclass(frozen=True)
class DeleteBegins:
    """A writer begins to delete bytes [start, end) of a file."""

    file: str
    start: int
    end: int
    epoch: int

    def covers(self, piece: Piece) -> bool:
        return self.file == piece.file and self.start <= piece.position < self.end

    def __str__(self) -> str:
        return f"begins to delete {self.file} from {self.start} (epoch {self.epoch})"


@dataclass(frozen=True)
class DeleteEnds(DeleteBegins):
    """A writer got the reply that files were deleted."""

    def __str__(self) -> str:
        return f"deleted {self.file} from {self.start} (epoch {self.epoch})"


@dataclass(frozen=True)
class SessionBegins:
    """A reader begins to read the tier."""

    reader: str

    def __str__(self) -> str:
        return "begins to read"


@dataclass(frozen=True)
class Seen:
    """A reader got the bytes of a file. If bytes are missing, `fault` is the reason."""

    reader: str
    file: str
    parts: tuple[tuple[int, bytes], ...]
    fault: str = ""

    def __str__(self) -> str:
        return f"gets {dict(self.parts)} of {self.file} {self.fault}".rstrip()


@dataclass(frozen=True)
class Stopped:
    """A process ended its program early for the given reason."""

    reason: str

    def __str__(self) -> str:
        return f"stops: {self.reason}"


@dataclass(frozen=True)
class Broken:
    """A broken promise with a description of the violation."""

    what: str


Pieces: TypeAlias = frozenset[Piece]


class Ledger(NamedTuple):
    """All writes and promises in one state of the search. `attempts`: all pieces that were ever
    sent. `owed`: pieces that every later reader must get, each with the newest epoch that relies on
    it. `gone`: deleted pieces, which no later reader may get. `deletions`: finished deletions.
    `sessions`: the owed and gone pieces at the beginning of each reader. `newest`: epoch of the
    last writer that began."""

    attempts: Pieces = frozenset()
    owed: frozenset[tuple[Piece, int]] = frozenset()
    gone: Pieces = frozenset()
    deletions: frozenset[DeleteEnds] = frozenset()
    sessions: frozenset[tuple[str, Pieces, Pieces]] = frozenset()
    newest: int = 0

    @property
    def owed_pieces(self) -> Pieces:
        return frozenset(piece for piece, _ in self.owed)

    def after(self, note: Hashable) -> Ledger | Broken:
        """Return the ledger after a process recorded a note, or the promise that the note
        breaks."""
        if isinstance(note, Attempt):
            late = any(
                deletion.covers(note.piece) and deletion.epoch > note.piece.epoch
                for deletion in self.deletions
            )
            gone = self.gone | {note.piece} if late else self.gone
            return self._replace(attempts=self.attempts | {note.piece}, gone=gone)
        if isinstance(note, Acknowledged):
            return self._replace(owed=self.owed | {(note.piece, note.piece.epoch)})
        if isinstance(note, Began):
            return self._replace(newest=max(self.newest, note.epoch))
        if isinstance(note, Disturbed) and note.piece.epoch == self.newest:
            return Broken(f"a writer that lost its epoch changed live bytes: {note}")
        if isinstance(note, Inherited):
            return self._inherit(note)
        if isinstance(note, DeleteEnds):
            deleted = {p for p in self.attempts if note.covers(p) and p.epoch <= note.epoch}
            return self._replace(gone=self.gone | deleted, deletions=self.deletions | {note})
        if isinstance(note, DeleteBegins):
            left = {(p, e) for p, e in self.owed if not note.covers(p) or e > note.epoch}
            return self._replace(owed=frozenset(left))
        if isinstance(note, SessionBegins):
            others = {found for found in self.sessions if found[0] != note.reader}
            return self._replace(
                sessions=frozenset({*others, (note.reader, self.owed_pieces, self.gone)})
            )
        if isinstance(note, Seen):
            owed, gone = next(found[1:] for found in self.sessions if found[0] == note.reader)
            in_file = frozenset(piece for piece in owed if piece.file == note.file)
            return self.check([note], in_file & self.owed_pieces, gone) or self
        return self

    def check(self, seen: Iterable[Seen], owed: Pieces, gone: Pieces) -> Broken | None:
        """Check the bytes that a reader saw. Return the broken promise with expected and actual
        bytes, or None."""
        files = {found.file: found for found in seen}
        for piece in sorted(owed):
            found = files.get(piece.file)
            fault = f" ({found.fault})" if found is not None and found.fault else ""
            there = _cut(found, piece.position, piece.end)
            if there != piece.text:
                return Broken(f"{piece} was acknowledged, but a reader gets {there!r}{fault}")
        for found in files.values():
            for start, content in found.parts:
                for position, byte in enumerate(content, start):
                    meant = self._meant(found.file, position, byte)
                    if not meant:
                        return Broken(
                            f"a reader gets {bytes([byte])!r} at {position} of {found.file}, which "
                            "was never written there"
                        )
                    if meant <= gone:
                        return Broken(f"a reader gets {min(meant)}, of a deleted life")
        return None

    def _meant(self, file: str, position: int, byte: int) -> Pieces:
        return frozenset(
            piece
            for piece in self.attempts
            if piece.file == file
            and piece.position <= position < piece.end
            and piece.text[position - piece.position] == byte
        )

    def _inherit(self, note: Inherited) -> Ledger | Broken:
        owed = set(self.owed)
        for piece, epoch in self.owed:
            if piece.file == note.file and epoch < note.epoch:
                if not note.start <= piece.position <= piece.end <= note.end:
                    return Broken(
                        f"{piece} was acknowledged, but the writer of epoch {note.epoch} has "
                        f"[{note.start}, {note.end})"
                    )
                owed -= {(piece, epoch)}
                owed |= {(piece, note.epoch)}
        return self._replace(owed=frozenset(owed))


def _cut(found: Seen | None, start: int, end: int) -> bytes:
    """Return the bytes of [start, end) that a reader saw, with '?' for missing bytes."""
    content = bytearray(b"?" * (end - start))
    for position, part in found.parts if found is not None else ():
        for index, byte in enumerate(part, position):
            if start <= index < end:
                content[index - start] = byte
    return bytes(content)
