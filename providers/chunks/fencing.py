"""Whether an object store really refuses to make an object a second time: fencing rests on it."""

from __future__ import annotations

import uuid
from contextlib import suppress

from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.providers.chunks.client import ObjectClient


def explain_ignored(client: ObjectClient) -> str:
    """Say what it means that the object store ignores the condition."""
    return (
        "the endpoint overwrites an object that was to be made only if absent (it ignores "
        f"{client.limits.condition}), so a second writer could not be kept out; `tieredstore "
        "doctor` says what else it does"
    )


def honours_create_if_absent(client: ObjectClient, folder: str) -> bool:
    """Tell whether a second write of one key is refused: put a new object below `folder` twice,
    look which one is there, and delete it. Raises what the client raises."""
    for _ in client.list(f"{folder}/"):
        break  # where nobody answers, a listing is given up much sooner than a write
    key = f"{folder}/probe-{uuid.uuid4().hex}"
    try:
        client.put_if_absent(key, [b"first"], {})
        # The first may be told False after a lost reply; it is there in any case.
        again = client.put_if_absent(key, [b"second"], {})
        honours = not again and client.get_range(key, 0, 16) == b"first"
    except TieredStoreError:
        with suppress(TieredStoreError):  # the first error says more
            client.delete([key])
        raise
    try:
        client.delete([key])
    except TieredStoreError:
        if honours:
            raise  # otherwise what the endpoint ignores says more
    return honours


def check_fencing(client: ObjectClient, folder: str) -> None:
    """Raise Invalid where nothing fences a second writer. Costs a LIST, two PUTs, a GET and a
    DELETE."""
    if not honours_create_if_absent(client, folder):
        raise Invalid(f"{client.url}: {explain_ignored(client)}", path=folder)
