"""The writer epoch of a broker prefix: a number that only grows, in objects made conditionally.

    <cluster folder>/<broker>/.writer/<number, 20 digits>            who holds it, JSON
    <cluster folder>/<broker>/.writer/<number, 20 digits>.released   empty: nobody does any more
    <cluster folder>/<broker>/.writer/<number, 20 digits>.renewed.…  signs of life (`renewal`)

The highest number wins. Its claim (number and random token) is in the record of the state directory
before it is made: whoever holds that directory goes on after a crash.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from tieredstore.contracts.epoch_record import EpochRecord
from tieredstore.errors import Busy, Fenced, TieredStoreError, Unavailable
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.epochs.looks import SharedLook
from tieredstore.providers.chunks.epochs.processes import describe_process, has_ended
from tieredstore.providers.chunks.epochs.renewal import Renewal, choose_interval_ms, wait_for_change
from tieredstore.providers.chunks.lives.inheritance import (
    FORMAT_VERSION,
    check_format,
    choose_format,
)
from tieredstore.providers.chunks.lives.own import Lives, OwnLives, SharedLife
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.timestamps import format_time

WRITER_FOLDER = ".writer"
_KEPT_EPOCHS = 16
_SWEPT_EPOCHS = 64
"""So far back markers are deleted that nobody needs: what could not be deleted is tried again."""
_KEPT_CLAIMS = 64
_MAX_OWNER_BYTES = 4_096
_log = logging.getLogger(__name__)
_NAME = re.compile(r"([0-9]{20})(\.released)?", re.ASCII)
_RENEWED_NAME = re.compile(r"([0-9]{20})\.renewed\.[0-9]{20}", re.ASCII)


def make_own_name(now_ms: int) -> str:
    """Make a name of host, process, time and a random part: ASCII, as it becomes a header."""
    host = socket.gethostname().encode("ascii", "replace").decode()
    return f"{host}:{os.getpid()}:{now_ms}:{uuid.uuid4().hex[:8]}"


@dataclass(slots=True)
class UnheldAuthority:
    """Writes in nobody's name, beside the epoch `view`: that which it helps, else the first that it
    meets."""

    stamp: str
    number: int = 0
    view: int | None = None
    lives: Lives = field(init=False)

    def __post_init__(self) -> None:
        self.lives = SharedLife(self.view or 0)

    def check(self) -> None:
        """Raise nothing: nothing was ever promised."""

    def confirm(self) -> None:
        """Raise nothing: nobody has a right that another one would respect."""

    def join(self, inheritance: int) -> None:
        """Write beside that epoch. Raises Fenced where another one is the newest: whoever let this
        process write has lost the right."""
        if self.view is None:
            self.view, self.lives = inheritance, SharedLife(inheritance)
        if self.view != inheritance:
            raise Fenced(f"epoch {self.view} was taken over: epoch {inheritance} has written")


class ChunkWriterEpoch:
    """Held until `release`, or until another one takes it over."""

    def __init__(
        self,
        client: ObjectClient,
        folder: str,
        number: int,
        owner: str,
        settings: ChunkSettings,
        before_release: Callable[[ChunkWriterEpoch], None],
        leave: Callable[[ChunkWriterEpoch], None],
    ) -> None:
        self._client = client
        self._folder = folder
        self._owner = owner
        self._settings = settings
        self._before_release = before_release
        self._leave = leave
        self.has_helpers = False
        self._looks = SharedLook(self._look)
        self._lost: str | None = None
        self.number = number
        self.stamp = f"{number}:{owner}"
        self.lives: Lives = OwnLives(number)
        self._store_gathered: Callable[[], None] = _do_nothing
        self._renewal = Renewal(
            client, f"{folder}/{number:020d}", settings, is_over=lambda: self.is_lost
        )

    @classmethod
    def acquire(
        cls,
        client: ObjectClient,
        folder: str,
        owner: str,
        settings: ChunkSettings,
        before_release: Callable[[ChunkWriterEpoch], None],
        leave: Callable[[ChunkWriterEpoch], None],
        *,
        take_over: bool,
        record: EpochRecord | None,
    ) -> ChunkWriterEpoch:
        """Acquire the next epoch, after the claim to it was saved in `record`. before_release: runs
        while the epoch is held; leave: says what is there, when nothing is acknowledged any more.
        Raises Fenced naming an owner who may live, Busy when others are faster, Invalid for a tier
        whose format version is newer, Unavailable."""
        token = uuid.uuid4().hex
        known = _find_recorded(record)
        for _ in range(settings.max_tries):
            number, released = _find_latest(client, folder, known)
            if number and not released:
                holder = _holder(client, folder, number)
                is_free = take_over or number == settings.take_over_epoch or has_ended(holder)
                if (
                    not is_free
                    and not _is_recorded(number, holder, record)
                    and not _is_given_up(client, folder, number, holder, settings)
                ):
                    continue  # it changed while it was watched
            if record is not None:
                claims = [*record.load(), _name_claim(number + 1, token)]
                record.save(claims[-_KEPT_CLAIMS:])
            key = f"{folder}/{number + 1:020d}"
            claimed = _claim(client, key, owner, token, settings)
            if claimed and _is_latest(client, folder, number + 1):
                epoch = cls(client, folder, number + 1, owner, settings, before_release, leave)
                epoch._forget_old()
                return epoch
        raise Busy(f"{folder}: {settings.max_tries} other writers were faster", path=folder)

    def gather(self, store_gathered: Callable[[], None]) -> None:
        """Store what was taken to be stored later, by that function, before each look."""
        self._store_gathered = store_gathered

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def view(self) -> int:
        return self.number

    def join(self, inheritance: int) -> None:
        """Do nothing: it writes in its own name."""

    def check(self) -> None:
        """Raise Fenced when the right is known to be lost. Asks nobody."""
        self._raise_if_lost()

    def confirm(self) -> None:
        """Look for the next epoch, by a request that is sent after this call; callers share one.
        What was stored before the call, and what was taken to be, is then found by whoever takes
        over later. Raises Fenced naming the successor, Unavailable when the store does not tell."""
        self._raise_if_lost()
        self._store_gathered()
        try:
            self._looks.wait()
        except Unavailable:
            self._raise_if_lost()  # the look was another thread's
            raise
        self._raise_if_lost()

    def _look(self) -> None:
        """The next number is free as long as nobody took over: numbers are taken one by one, and
        no epoch is ever deleted."""
        successor = self.number + 1
        if self._client.head(f"{self._folder}/{successor:020d}") is not None:
            holder = _holder(self._client, self._folder, successor)
            self._lost = f"was taken over by {holder.get('owner')} as epoch {successor}"
            self._raise_if_lost()

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def release(self) -> None:
        """Release the epoch, after maintenance has ended. Raises Unavailable when others may still
        see it as held."""
        if self._lost is not None:
            return
        self._before_release(self)
        is_held = self._lost is None
        self._lost = self._lost or "was released"  # from here on nothing is acknowledged
        self.stop_renewing()
        if is_held and not self.has_helpers:
            self._leave_what_is_there()
        key = f"{self._folder}/{self.number:020d}.released"
        problem: Exception | None = None
        begin_ms = self._settings.monotonic_ms()
        for attempt in range(self._settings.max_tries):
            try:
                self._client.put_if_absent(key, [], {})
            except (Busy, Unavailable) as error:
                problem = error
                if self._settings.monotonic_ms() - begin_ms >= self._settings.close_timeout_ms // 2:
                    break  # nobody answers
                self._settings.pause(attempt)
            else:
                return
        raise Unavailable(f"{key}: the writer epoch is not released: {problem}", path=key)

    def expect_helpers(self) -> None:
        """Know that other processes may write beside this epoch: what it knows is not all."""
        self.has_helpers = True

    def _leave_what_is_there(self) -> None:
        """It saves the next one time, and nothing rests on it."""
        try:
            self._leave(self)
        except TieredStoreError as error:
            _log.info("%s: the next writer lists what is there: %s", self._folder, error)

    def stop_renewing(self) -> None:
        """Give no more signs of life. Idempotent."""
        self._renewal.stop(self._settings.close_timeout_ms // 2)

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise Fenced(
                f"{self._folder}: epoch {self.number} of {self._owner} {self._lost}",
                path=self._folder,
            )

    def _forget_old(self) -> None:
        """Markers long past only make the listing longer. The epochs themselves stay for ever: who
        held one looks for the next."""
        old = []
        try:
            start_after = f"{self._folder}/{max(self.number - _SWEPT_EPOCHS, 0):020d}"
            for found in self._client.list(f"{self._folder}/", start_after):
                name = found.key.rpartition("/")[2]
                match, sign = _NAME.fullmatch(name), _RENEWED_NAME.fullmatch(name)
                is_old = match and match[2] and int(match[1]) + _KEPT_EPOCHS < self.number
                if is_old or (sign is not None and int(sign[1]) < self.number):
                    old.append(found.key)
            self._client.delete(old)
        except TieredStoreError as error:
            _log.warning("%s: old writer epochs stay for now: %s", self._folder, error)


def _do_nothing() -> None:
    """Nothing was taken."""


def describe_last_writer(client: ObjectClient, folder: str) -> str | None:
    """Describe who holds, or held last, the newest epoch in a folder; None when nobody did."""
    number, _ = _find_latest(client, folder)
    if not number:
        return None
    holder = _holder(client, folder, number)
    since = holder.get("since_ms")
    when = format_time(since) if isinstance(since, int) else "an unknown time"
    return f"{holder['owner']} since {when}"


def _name_claim(number: int, token: object) -> str:
    return f"{number}:{token}"


def _is_recorded(number: int, holder: dict[str, object], record: EpochRecord | None) -> bool:
    """Whether the epoch was claimed with this state directory, whose lock its owner has lost."""
    token = holder.get("token")
    return (
        record is not None
        and isinstance(token, str)
        and _name_claim(number, token) in record.load()
    )


def _is_given_up(
    client: ObjectClient,
    folder: str,
    number: int,
    holder: dict[str, object],
    settings: ChunkSettings,
) -> bool:
    """Whether the owner gave no sign of life for long enough; False when the epoch was released or
    taken over meanwhile. Raises Fenced where the owner may live."""

    def look() -> frozenset[str]:
        start_after = f"{folder}/{number - 1:020d}.released"
        return frozenset(found.key for found in client.list(f"{folder}/", start_after))

    if not wait_for_change(look, holder.get("renewed_every_ms"), settings):
        return True
    if _find_latest(client, folder, number) != (number, False):
        return False
    raise Fenced(
        f"{folder}: this broker prefix has a writer, {holder.get('owner')}, which may live, and "
        "did not run with this state directory; stop it first, then take over: --take-over, or "
        f"tieredStoreChunkTakeOverEpoch={number}",
        path=folder,
    )


def _claim(client: ObjectClient, key: str, owner: str, token: str, settings: ChunkSettings) -> bool:
    """Whether the object is ours, also when a reply was lost on its way."""
    content = orjson.dumps(
        {
            "format": choose_format(has_groups=bool(settings.group_bytes)),
            "owner": owner,
            "token": token,
            "host": socket.gethostname(),
            "since_ms": settings.clock.now_ms(),
            "renewed_every_ms": choose_interval_ms(settings),
            **describe_process(),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
    problem: Exception | None = None
    for _ in range(settings.max_tries):
        try:
            if client.put_if_absent(key, [content], {"w": owner}):
                return True
            return client.get_range(key, 0, _MAX_OWNER_BYTES) == content
        except (Busy, Unavailable) as error:
            problem = error
            settings.pause()
    raise Unavailable(f"{key}: the writer epoch cannot be taken: {problem}", path=key)


def _is_latest(client: ObjectClient, folder: str, number: int) -> bool:
    """Of an epoch just claimed. When that cannot be told, it is let go: whoever tries again would
    meet a live owner, itself."""
    try:
        return _find_latest(client, folder, number - 1)[0] == number
    except TieredStoreError:
        with suppress(TieredStoreError):
            client.put_if_absent(f"{folder}/{number:020d}.released", [], {})
        raise


def _find_recorded(record: EpochRecord | None) -> int:
    """The highest epoch that was there when this state directory made its last claim; 0 when it has
    made none."""
    claims = record.load() if record is not None else ()
    numbers = (claim.partition(":")[0] for claim in claims)
    return max((int(number) - 1 for number in numbers if number.isdecimal()), default=0)


def _find_latest(client: ObjectClient, folder: str, known: int = 0) -> tuple[int, bool]:
    """(number, released); number 0 when there never was one. known: an epoch that surely was there,
    so that those below it need not be listed: none is ever deleted. Where it is not there, it was
    another tier's."""
    start_after = f"{folder}/{known - 1:020d}.released" if known > 0 else ""
    found = _find_latest_behind(client, folder, start_after)
    return found if found[0] or not start_after else _find_latest_behind(client, folder, "")


def _find_latest_behind(client: ObjectClient, folder: str, start_after: str) -> tuple[int, bool]:
    names = [found.key.rpartition("/")[2] for found in client.list(f"{folder}/", start_after)]
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    latest = max((int(match[1]) for match in matches), default=0)
    return latest, any(int(match[1]) == latest and match[2] for match in matches)


def _holder(client: ObjectClient, folder: str, number: int) -> dict[str, object]:
    content = client.get_range(f"{folder}/{number:020d}", 0, _MAX_OWNER_BYTES)
    try:
        found = orjson.loads(content or b"{}")
    except orjson.JSONDecodeError:
        found = {}
    if not isinstance(found, dict):
        found = {}
    check_format(found.get("format", FORMAT_VERSION), folder)
    return {"owner": "unknown", **found}
