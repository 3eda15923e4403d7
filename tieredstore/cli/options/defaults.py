"""Where a tier, its state and its configuration come from when the command line does not say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tieredstore.tier_url import as_url

VARIABLES: Final = {
    "tier": "TIEREDSTORE_TIER",
    "state": "TIEREDSTORE_STATE",
    "config": "TIEREDSTORE_CONFIG",
}
"""Option -> the variable of the environment that stands for it; an empty one counts as none."""
_PATHS: Final = frozenset({"state", "config"})


class Source(NamedTuple):
    """Options that belong together, and for each where it stands, for people."""

    values: Mapping[str, str]
    origins: Mapping[str, str]


def add_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the command line, and of those that are None what the sources have;
    `origins` says what comes from where. A source that names another tier has nothing to say: its
    state and its configuration are that tier's."""
    found, origins = dict(given), dict[str, str]()
    for source in _sources():
        if _is_of_another(source.values.get("tier"), found.get("tier")):
            continue
        for name, value in source.values.items():
            if name in found and found[name] is None:
                found[name] = Path(value) if name in _PATHS else value
                origins[name] = source.origins[name]
    return {**found, "origins": origins}


def _is_of_another(tier: str | None, chosen: str | None) -> bool:
    return tier is not None and chosen is not None and as_url(tier) != as_url(chosen)


def _sources() -> Iterator[Source]:
    named = {name: variable for name, variable in VARIABLES.items() if os.environ.get(variable)}
    yield Source({name: os.environ[variable] for name, variable in named.items()}, named)
