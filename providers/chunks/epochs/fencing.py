"""Test that an object store refuses to overwrite an existing object. Fencing depends on this."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from tieredstore.contracts.objects import ObjectClient
from tieredstore.errors import Invalid, TieredStoreError, Unavailable


class SharedFenceCheck:
    """Runs one fence check for all threads that wait at the same time. `check` raises an error if
    it fails or finds a later epoch. Thread-safe."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._changed = threading.Condition()
        # Checks are numbered from 1. `_good` is the last that raised nothing.
        self._begun = self._ended = self._good = 0
        self._problem = ""

    def wait(self) -> None:
        """Wait until a check that began after this call has succeeded. The thread that runs the
        check raises its error. The other waiting threads raise Unavailable."""
        with self._changed:
            wanted = self._begun + 1
            while self._ended < wanted:
                if self._begun == self._ended:
                    self._begun += 1
                    break
                self._changed.wait()
            else:
                if self._good < wanted:
                    raise Unavailable(self._problem)
                return
        problem = "the fence check was interrupted"
        try:
            self._check()
            problem = ""
        except TieredStoreError as error:
            problem = str(error)
            raise
        finally:
            with self._changed:
                self._ended = wanted
                if not problem:
                    self._good = wanted
                self._problem = problem
                self._changed.notify_all()


ABANDONED_MS = 3_600_000
"""Age (by the server's clock) at which test objects of `honours_create_if_absent` or of
`tieredstore doctor` count as abandoned. No test takes so long."""
_DELETE_ATTEMPTS = 4
_PROBE = re.compile(r"/probe-[0-9a-f]{32}$", re.ASCII)


def explain_ignored(client: ObjectClient) -> str:
    """Explain the consequences if the object store ignores the condition of a create."""
    return (
        "the endpoint overwrites an object that was to be made only if absent (it ignores "
        f"{client.limits.condition}), so a second writer could not be kept out. `tieredstore "
        "doctor` says what else it does"
    )


def honours_create_if_absent(client: ObjectClient, folder: str) -> bool:
    """Return whether the store refuses to create a key twice. The test writes, reads and deletes a
    new object below `folder`. It also deletes test objects that earlier processes left behind.
    Raises the errors of the client."""
    # On an unreachable store, a listing fails much sooner than a write.
    left = [info for info in client.list(f"{folder}/probe-") if _PROBE.search(info.key)]
    if left:
        before_ms = client.now_ms() - ABANDONED_MS
        remove_objects(client, [info.key for info in left if info.modified_ms < before_ms])
    key = f"{folder}/probe-{uuid.uuid4().hex}"
    try:
        client.put_if_absent(key, [b"first"], {})
        # The first put may return False after a lost reply. The object exists in any case.
        again = client.put_if_absent(key, [b"second"], {})
        honours = not again and client.get_range(key, 0, 16) == b"first"
    except BaseException:
        with suppress(TieredStoreError):  # The first error says more.
            remove_objects(client, [key])
        raise
    try:
        remove_objects(client, [key])
    except TieredStoreError:
        if honours:
            raise  # Otherwise the ignored condition says more.
    return honours


def remove_objects(client: ObjectClient, keys: Sequence[str]) -> None:
    """Delete test objects, with retries. Raises the error of the last attempt."""
    for attempt in range(_DELETE_ATTEMPTS):
        try:
            if keys:
                client.delete(keys)
        except TieredStoreError:
            if attempt + 1 == _DELETE_ATTEMPTS:
                raise
        else:
            return


def check_fencing(client: ObjectClient, folder: str) -> None:
    """Raise Invalid if the object store cannot fence a second writer. Costs a LIST, two PUTs, a GET
    and a DELETE."""
    if not honours_create_if_absent(client, folder):
        raise Invalid(f"{client.url}: {explain_ignored(client)}", path=folder)
