"""Changes the default settings of all tiers in a test run, also in child processes. Python imports
this module at startup if its folder is in PYTHONPATH.

    TIEREDSTORE_TEST_GROUP_SIZE=16777216 PYTHONPATH="$PWD/tests/kit/every_process" scripts/test …

TIEREDSTORE_TEST_GROUP_SIZE: `tieredStoreChunkGroupSize`, 0 for no group objects.
"""

from __future__ import annotations

import inspect
import os
from importlib.util import find_spec


def _set_group_bytes(group_bytes: int) -> None:
    from tieredstore.providers.chunks.settings import ChunkSettings

    make = ChunkSettings.__init__
    parameters = list(inspect.signature(make).parameters.values())
    defaults = tuple(
        group_bytes if parameter.name == "group_bytes" else parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    )
    make.__defaults__ = defaults
    assert ChunkSettings().group_bytes == group_bytes


# Other Python programs, such as servers, may not have tieredstore installed.
if "TIEREDSTORE_TEST_GROUP_SIZE" in os.environ and find_spec("tieredstore") is not None:
    _set_group_bytes(int(os.environ["TIEREDSTORE_TEST_GROUP_SIZE"]))
