"""Name of a broker, remembered by its store.

As in Java, a broker without a `brokerName` is named after its host. A recreated container has
another host name, so without the remembered name it would not find its history in the tier.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson

STORE_MEMORY: Final = "tieredstore.tier"
"""JSON file in `storePathRootDir` in which a store remembers its tier. Key `broker`: the name."""
_log = logging.getLogger(__name__)


def add_remembered_name(properties: Mapping[str, str], default_root: str) -> dict[str, str]:
    """Add the remembered `brokerName` to settings that lack one. `default_root`: folder of the
    store if the settings have no `storePathRootDir`."""
    given = dict(properties)
    if given.get("brokerName"):
        return given
    path = Path(given.get("storePathRootDir") or default_root, STORE_MEMORY)
    with suppress(OSError, orjson.JSONDecodeError):  # a start reads it again and reports the fault
        found = orjson.loads(path.read_bytes())
        name = found.get("broker") if isinstance(found, dict) else None
        if isinstance(name, str) and name:
            _log.info("%s: brokerName is not set. The store remembers %s", path, name)
            given["brokerName"] = name
    return given
