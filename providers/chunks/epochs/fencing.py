"""Whether an object store really refuses to make an object a second time: fencing rests on it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from contextlib import suppress

from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.providers.chunks.client import ObjectClient

ABANDONED_MS = 3_600_000
"""No probe takes so long: objects of one that are older (server's clock) are nobody's."""
_DELETE_ATTEMPTS = 4
_PROBE = re.compile(r"/probe-[0-9a-f]{32}$", re.ASCII)


def explain_ignored(client: ObjectClient) -> str:
    """Say what it means that the object store ignores the condition."""
    return (
        "the endpoint overwrites an object that was to be made only if absent (it ignores "
        f"{client.limits.condition}), so a second writer could not be kept out; `tieredstore "
        "doctor` says what else it does"
    )


def honours_create_if_absent(client: ObjectClient, folder: str) -> bool:
    """Tell whether a second write of one key is refused: put a new object below `folder` twice,
    look which one is there, and delete it. Raises what the client raises.

    What a former probe could not delete, or wrote late, goes too.
    """
    # Where nobody answers, a listing is given up much sooner than a write.
    left = [info for info in client.list(f"{folder}/probe-") if _PROBE.search(info.key)]
    if left:
        before_ms = client.now_ms() - ABANDONED_MS
        remove_objects(client, [info.key for info in left if info.modified_ms < before_ms])
    key = f"{folder}/probe-{uuid.uuid4().hex}"
    try:
        client.put_if_absent(key, [b"first"], {})
        # The first may be told False after a lost reply; it is there in any case.
        again = client.put_if_absent(key, [b"second"], {})
        honours = not again and client.get_range(key, 0, 16) == b"first"
    except BaseException:
        with suppress(TieredStoreError):  # the first error says more
            remove_objects(client, [key])
        raise
    try:
        remove_objects(client, [key])
    except TieredStoreError:
        if honours:
            raise  # otherwise what the endpoint ignores says more
    return honours


def remove_objects(client: ObjectClient, keys: Sequence[str]) -> None:
    """Delete the objects of a probe, more than once where that fails. Raises what the last attempt
    raised."""
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
    """Raise Invalid where nothing fences a second writer. Costs a LIST, two PUTs, a GET and a
    DELETE."""
    if not honours_create_if_absent(client, folder):
        raise Invalid(f"{client.url}: {explain_ignored(client)}", path=folder)
