"""The writer epoch of a broker prefix: a number that only grows, in conditionally created objects.

    <cluster folder>/<broker>/.writer/<number, 20 digits>            owner, JSON
    <cluster folder>/<broker>/.writer/<number, 20 digits>.released   empty: released
    <cluster folder>/<broker>/.writer/<number, 20 digits>.store      empty: store accepts messages
    <cluster folder>/<broker>/.writer/<number, 20 digits>.renewed.…  heartbeats (`renewal`)

The highest number wins. Its number and a random token are saved in the state directory before the
object is created. After a crash, a process with the same state directory can therefore continue.
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

from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.tier_identity import EpochRecord, WriterMark
from tieredstore.errors import Busy, Fenced, TieredStoreError, Unavailable
from tieredstore.providers.chunks.epochs import marks, renewal
from tieredstore.providers.chunks.epochs.fencing import SharedFenceCheck
from tieredstore.providers.chunks.manifests.epoch_manifest import (
    choose_format,
)
from tieredstore.providers.chunks.manifests.generations import (
    EpochGenerations,
    Generations,
    SharedGeneration,
)
from tieredstore.providers.chunks.settings import ChunkSettings

WRITER_FOLDER = ".writer"
_KEPT_EPOCHS = 16
_SWEPT_EPOCHS = 64
"""Number of earlier epochs whose obsolete marker objects are deleted by an epoch. A deletion that
failed is therefore retried by later epochs."""
_KEPT_CLAIMS = 64
_log = logging.getLogger(__name__)
_RENEWED_NAME = re.compile(r"([0-9]{20})\.renewed\.[0-9]{20}", re.ASCII)


def make_own_name(now_ms: int) -> str:
    """Return a unique name for this writer: host, process, time and a random part. The name is
    ASCII because it is sent in a header."""
    host = socket.gethostname().encode("ascii", "replace").decode()
    return f"{host}:{os.getpid()}:{now_ms}:{uuid.uuid4().hex[:8]}"


@dataclass(slots=True)
class UnheldAuthority:
    """Authority of a process that owns no epoch, such as a reader. `view`: number of the epoch
    whose manifest decides which bytes are valid, or None until a manifest is found."""

    stamp: str
    number: int = 0
    view: int | None = None
    generations: Generations = field(init=False)

    def __post_init__(self) -> None:
        self.generations = SharedGeneration(self.view or 0)

    def check(self) -> None:
        """No-op: this authority owns no epoch that could be lost."""

    def confirm(self) -> None:
        """No-op: this authority owns no epoch to confirm."""

    def join(self, epoch_manifest: int) -> None:
        """Write under the given epoch. Raises Fenced if this process has already joined another
        epoch, because that epoch was taken over."""
        if self.view is None:
            self.view, self.generations = epoch_manifest, SharedGeneration(epoch_manifest)
        if self.view != epoch_manifest:
            raise Fenced(f"epoch {self.view} was taken over: epoch {epoch_manifest} has written")


@dataclass(eq=False)
class ChunkWriterEpoch:
    """Writer epoch. It is held until it is released, or until another writer takes it over."""

    client: ObjectClient
    folder: str
    number: int
    owner: str
    settings: ChunkSettings
    before_release: Callable[[ChunkWriterEpoch], None]
    leave: Callable[[ChunkWriterEpoch], None]

    def __post_init__(self) -> None:
        self.has_helpers = False
        self._fence_checks = SharedFenceCheck(self._check_epoch)
        self._lost: str | None = None
        self._seen_number = self.number
        self._other_store: str | None = None
        self.stamp = f"{self.number}:{self.owner}"
        self.generations: Generations = EpochGenerations(self.number)
        self._store_gathered: Callable[[], None] = _do_nothing
        self._renewal = renewal.Renewal(
            self.client,
            f"{self.folder}/{self.number:020d}",
            self.settings,
            is_over=lambda: self.is_lost,
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
        """Acquire the next epoch. Raises Fenced, naming an owner that may be alive, Busy if other
        writers are faster, Invalid for a newer format version of the tier, and Unavailable.
        `record`: saves the claim before the epoch is created. `before_release`: called while the
        epoch is still held. `leave`: writes the shutdown snapshot after the last
        acknowledgement."""
        mark = None if record is None else record.mark
        token = uuid.uuid4().hex if mark is None else mark.token
        known = _find_recorded(record)
        for _ in range(settings.max_tries):
            number, released = marks.find_latest_epoch(client, folder, known)
            if number and not released:
                holder = marks.read_holder(client, folder, number)
                is_free = (
                    take_over or number == settings.take_over_epoch or renewal.has_ended(holder)
                )
                if (
                    not is_free
                    and not _is_recorded(number, holder, record)
                    and not _is_given_up(client, folder, number, holder, settings)
                ):
                    continue  # It changed while it was watched.
            if mark is not None and number != mark.after:
                raise Busy(f"{folder}: expected epoch {mark.after}, found {number}", path=folder)
            if record is not None:
                claims = [*record.load(), _name_claim(number + 1, token)]
                record.save(claims[-_KEPT_CLAIMS:])
            key = f"{folder}/{number + 1:020d}"
            claimed = _claim(client, key, owner, token, mark, settings)
            if claimed and _is_latest(client, folder, number + 1):
                if mark is not None and mark.is_after_start:
                    _check_start(client, folder, number)
                epoch = cls(client, folder, number + 1, owner, settings, before_release, leave)
                epoch._forget_old()
                return epoch
        raise Busy(f"{folder}: {settings.max_tries} other writers were faster", path=folder)

    def gather(self, store_gathered: Callable[[], None]) -> None:
        """Set the function that stores gathered writes (`writing.gathering`). The function runs
        before each fence check."""
        self._store_gathered = store_gathered

    @property
    def view(self) -> int:
        return self.number

    def join(self, epoch_manifest: int) -> None:
        """No-op: this authority writes under its own epoch."""

    def check(self) -> None:
        """Raise Fenced if ownership is known to be lost. Sends no request."""
        self._raise_if_lost()

    def confirm(self) -> None:
        """Run a fence check: look for a later epoch. On success, any later owner sees all writes
        that were stored or gathered before this call. Concurrent callers share a request. Raises
        Fenced naming the successor, Unavailable if the store does not answer."""
        self._raise_if_lost()
        self._store_gathered()
        try:
            self._fence_checks.wait()
        except Unavailable:
            self._raise_if_lost()  # Another thread made the fence check.
            raise
        self._raise_if_lost()

    def become_store(self) -> None:
        """Mark this epoch as owned by a store, not by a job, and run a fence check. The next owner
        finds the marker. If it has looked too early, the fence check finds that owner. Raises
        Fenced, Unavailable."""
        self._raise_if_lost()
        key = f"{self.folder}/{self.number:020d}.store"
        problem: Exception | None = None
        for attempt in range(self.settings.max_tries):
            try:
                self.client.put_if_absent(key, [], {})
            except (Busy, Unavailable) as error:
                problem = error
                self.settings.pause(attempt)
            else:
                return self.confirm()
        raise Unavailable(f"{key}: the store is not announced: {problem}", path=key)

    def find_other_store(self) -> str | None:
        """Return a description of a store that owns a later epoch, or None. The next call continues
        the search where this call ended."""
        while self._other_store is None:
            number = self._seen_number + 1
            if self.client.head(f"{self.folder}/{number:020d}") is None:
                break
            holder = marks.read_holder(self.client, self.folder, number)
            is_other = marks.is_store(holder)
            if is_other is None:
                # The order matters: after a later epoch exists, this one no longer begins to accept
                # messages.
                is_over = self.client.head(f"{self.folder}/{number + 1:020d}") is not None
                is_other = self.client.head(f"{self.folder}/{number:020d}.store") is not None
                if not (is_over or is_other):
                    break
            if is_other:
                self._other_store = f"{holder.get('owner')} as epoch {number}"
            self._seen_number = number
        return self._other_store

    def _check_epoch(self) -> None:
        """Prove ownership by checking that the next number is free. Numbers are assigned in
        sequence, and no epoch is ever deleted."""
        successor = self.number + 1
        if self.client.head(f"{self.folder}/{successor:020d}") is not None:
            holder = marks.read_holder(self.client, self.folder, successor)
            self._lost = f"was taken over by {holder.get('owner')} as epoch {successor}"
            self._raise_if_lost()

    @property
    def is_lost(self) -> bool:
        return self._lost is not None

    def release(self) -> None:
        """Release the epoch, after maintenance has ended. Raises Unavailable if other processes may
        still see the epoch as held."""
        if self._lost is not None:
            return
        self.before_release(self)
        is_held = self._lost is None
        self._lost = self._lost or "was released"  # From here on nothing is acknowledged.
        self.stop_renewing()
        if is_held and not self.has_helpers:
            self._leave_what_is_there()
        key = f"{self.folder}/{self.number:020d}.released"
        problem: Exception | None = None
        begin_ms = self.settings.monotonic_ms()
        for attempt in range(self.settings.max_tries):
            try:
                self.client.put_if_absent(key, [], {})
            except (Busy, Unavailable) as error:
                problem = error
                if self.settings.monotonic_ms() - begin_ms >= self.settings.close_timeout_ms // 2:
                    break  # The store does not answer.
                self.settings.pause(attempt)
            else:
                return
        raise Unavailable(f"{key}: the writer epoch is not released: {problem}", path=key)

    def expect_helpers(self) -> None:
        """Allow helper processes to write under this epoch. This process then no longer knows all
        writes of the epoch."""
        self.has_helpers = True

    def _leave_what_is_there(self) -> None:
        """Write the shutdown snapshot. It is optional and saves work for the next owner."""
        try:
            self.leave(self)
        except TieredStoreError as error:
            _log.info("%s: the next writer lists the tier: %s", self.folder, error)

    def stop_renewing(self) -> None:
        """Stop the heartbeats of the epoch. Idempotent."""
        self._renewal.stop(self.settings.close_timeout_ms // 2)

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise Fenced(
                f"{self.folder}: epoch {self.number} of {self.owner} {self._lost}",
                path=self.folder,
            )

    def _forget_old(self) -> None:
        """Delete old markers to keep the listing short. The epochs themselves are never deleted,
        because former owners look for the next one."""
        old = []
        try:
            start_after = f"{self.folder}/{max(self.number - _SWEPT_EPOCHS, 0):020d}"
            for found in self.client.list(f"{self.folder}/", start_after):
                name = found.key.rpartition("/")[2]
                match, sign = marks.EPOCH_NAME.fullmatch(name), _RENEWED_NAME.fullmatch(name)
                is_old = match and match[2] and int(match[1]) + _KEPT_EPOCHS < self.number
                if is_old or (sign is not None and int(sign[1]) < self.number):
                    old.append(found.key)
            self.client.delete(old)
        except TieredStoreError as error:
            _log.warning("%s: old writer epochs stay for now: %s", self.folder, error)


def _do_nothing() -> None:
    """Do nothing. An epoch without group objects has no gathered writes to store."""


def _name_claim(number: int, token: object) -> str:
    return f"{number}:{token}"


def _is_recorded(number: int, holder: dict[str, object], record: EpochRecord | None) -> bool:
    """Return whether the epoch was claimed with this state directory, and its owner has released
    the directory's lock."""
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
    """Return whether the owner has stopped sending heartbeats for the take-over timeout. Return
    False if the epoch was released or taken over. Raises Fenced if the owner may be alive."""

    def fence_check() -> frozenset[str]:
        start_after = f"{folder}/{number - 1:020d}.released"
        return frozenset(found.key for found in client.list(f"{folder}/", start_after))

    if not renewal.wait_for_change(fence_check, holder.get("renewed_every_ms"), settings):
        return True
    if marks.find_latest_epoch(client, folder, number) != (number, False):
        return False
    raise Fenced(
        f"{folder}: this broker prefix has a writer, {holder.get('owner')}, which may live, and "
        "did not run with this state directory. Stop it first, then take over: --take-over, or "
        f"tieredStoreChunkTakeOverEpoch={number}",
        path=folder,
    )


def _claim(
    client: ObjectClient,
    key: str,
    owner: str,
    token: str,
    mark: WriterMark | None,
    settings: ChunkSettings,
) -> bool:
    """Create the epoch object. Return whether this process created it, even if the reply was
    lost."""
    content = orjson.dumps(
        {
            "format": choose_format(has_groups=bool(settings.group_bytes)),
            "owner": owner,
            "token": token,
            **marks.describe_mark(mark),
            "host": socket.gethostname(),
            "since_ms": settings.clock.now_ms(),
            "renewed_every_ms": renewal.choose_interval_ms(settings),
            **renewal.describe_process(),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
    problem: Exception | None = None
    for _ in range(settings.max_tries):
        try:
            if client.put_if_absent(key, [content], {"w": owner}):
                return True
            return client.get_range(key, 0, marks.MAX_OWNER_BYTES) == content
        except (Busy, Unavailable) as error:
            problem = error
            settings.pause()
    raise Unavailable(f"{key}: the writer epoch cannot be taken: {problem}", path=key)


def _is_latest(client: ObjectClient, folder: str, number: int) -> bool:
    """Return whether the epoch that was just claimed is the latest. If this cannot be determined,
    release the epoch, because a retry would find it held by a live owner."""
    try:
        return marks.find_latest_epoch(client, folder, number - 1)[0] == number
    except TieredStoreError:
        with suppress(TieredStoreError):
            client.put_if_absent(f"{folder}/{number:020d}.released", [], {})
        raise


def _check_start(client: ObjectClient, folder: str, number: int) -> None:
    """Raise Busy if the store that owns epoch `number` has begun to accept messages. This process
    compared its state directory with the tier while that store was starting, so the comparison may
    be outdated."""
    if client.head(f"{folder}/{number:020d}.store") is not None:
        raise Busy(f"{folder}: the store of epoch {number} takes messages since", path=folder)


def _find_recorded(record: EpochRecord | None) -> int:
    """Return the highest epoch in the last claim of this state directory, or 0 without a claim."""
    claims = record.load() if record is not None else ()
    numbers = (claim.partition(":")[0] for claim in claims)
    return max((int(number) - 1 for number in numbers if number.isdecimal()), default=0)
